"""``kvmap-train`` as a user meets it: what it prints, what it refuses, how it sweeps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Workshop, call, contents, one_sentence, read
from conftest import make_tokenizer, save_qwen3
from hydra.core.utils import JobReturn
from transformers import Gemma3TextConfig

from kvmap import training
from kvmap.cli.train import main
from kvmap.leaderboard import Leaderboard

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def finished(shop: Workshop) -> Path:
    folder = shop.root / "finished"
    assert shop.train(folder, "mapper=ridge").status == 0
    return folder


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def forbid_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained"))


def test_a_finished_run_returns_at_once_with_what_it_measured(
    shop: Workshop, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_training(monkeypatch)
    before = contents(finished)
    done = shop.train(finished, "mapper=ridge")
    assert done.status == 0, done.err
    assert done.last_line == f"export: {finished / 'export'}"
    assert contents(finished) == before


def test_a_second_run_into_an_owned_folder_is_refused_and_loses_nothing(
    shop: Workshop, finished: Path
) -> None:
    before = contents(finished)
    sentence = one_sentence(shop.train(finished, "mapper=depth_nearest"))
    assert "belongs to another run" in sentence
    assert "choose another out_dir" in sentence
    assert contents(finished) == before


def test_a_foreign_folder_is_refused_and_left_alone(shop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty (it has notes.txt)" in one_sentence(shop.train(tmp_path))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "run.json").exists()


def test_a_refused_command_can_be_corrected_in_the_same_folder(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_sentence(shop.train(tmp_path / "run", "mapper.k=99"))
    monkeypatch.setattr(training, "train", lambda config, run: {config.monitor: 0.5})
    assert shop.train(tmp_path / "run", "mapper.k=1").status == 0


REFUSED = {
    "k too large": (["mapper.k=99"], "k=99 but the source has 3 layers; use 1 to 3 or all"),
    "k is zero": (["mapper.k=0"], "k=0 but"),
    "k is a word": (["mapper.k=some"], "k=some but"),
    "negative lambda": (["mapper.ridge_lambda=-1"], "ridge_lambda=-1 is no lambda"),
    "unknown inputs": (["mapper.inputs=all"], "inputs=all is unknown; use own or both"),
    "unknown family": (["mapper=magic"], "choose from bottleneck, depth_nearest, mlp, ridge"),
    "unknown key": (["mapper.layers=2"], "mapper.layers"),
    "unknown added key": (["+mapper.layers=2"], "unexpected keyword argument 'layers'"),
    "unknown top-level key": (["layers=2"], "layers"),
    "unknown pair": (["pair=nobody"], "there is no pair/nobody"),
    "unknown monitor": (["monitor=val/luck"], "monitor=val/luck is not measured; use one of val/"),
    "unknown mode": (["monitor_mode=best"], "monitor_mode=best is unknown; use max or min"),
    "unknown direction": (["pair.direction=up"], "pair.direction=up is unknown"),
    "no such corpus": (["data.path=nowhere.txt"], "cannot read the corpus nowhere.txt"),
    "no corpus": (["data.path=null"], "data.path=<file>"),
    "no such model": (["pair.source.model=./nowhere"], "nowhere"),
    "no model": (["pair.source.model=null"], "set pair.source.model"),
    "no units": (
        ["mapper=mlp", "mapper.hidden=0"],
        "mapper.hidden=0 must be a whole number from 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_sentence(shop: Workshop, tmp_path: Path, case: str) -> None:
    overrides, expected = REFUSED[case]
    assert expected in one_sentence(shop.train(tmp_path / "run", *overrides))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "document"), ("\n\n \n", "document"), ("too short", "document")],
    ids=["empty", "blank", "shorter than a document"],
)
def test_a_corpus_without_documents_is_one_sentence(
    shop: Workshop, tmp_path: Path, text: str, expected: str
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(text)
    done = shop.train(tmp_path / "run", f"data.path={corpus}", f"data.root={tmp_path / 'c'}")
    assert expected in one_sentence(done)


def test_two_tokenizers_are_one_sentence(shop: Workshop, tmp_path: Path) -> None:
    other = save_qwen3(tmp_path / "other", seed=1, layers=3, hidden=32)
    make_tokenizer(("entirely other words make other merges",)).save_pretrained(other)
    done = shop.train(tmp_path / "run", f"pair.source.model={other}")
    assert "tokenizer" in one_sentence(done)


def test_a_sliding_window_is_one_sentence(shop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "gemma"
    Gemma3TextConfig(vocab_size=384, num_hidden_layers=2).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    done = shop.train(tmp_path / "run", f"pair.target.model={folder}")
    assert "sliding-window attention" in one_sentence(done)


def test_a_corrupted_shard_is_named_and_the_rest_kept(
    source_folder: Path, target_folder: Path, tmp_path: Path
) -> None:
    shop = Workshop(tmp_path / "shop", source_folder, target_folder)
    assert shop.train(tmp_path / "first", "mapper=depth_nearest").status == 0
    shard = min(shop.collections.rglob("development-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-7])
    before = contents(shop.collections)
    done = shop.train(tmp_path / "second", "mapper=ridge")
    assert shard.name in one_sentence(done)
    after = contents(shop.collections)
    others = [name for name in before if not name.endswith(shard.name)]
    assert {name: after[name] for name in others} == {name: before[name] for name in others}


def test_an_interruption_outside_of_training_has_no_traceback(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    done = shop.train(tmp_path / "run")
    assert done.status == 130
    assert "interrupted" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("strategy", ["ddp", "ddp_find_unused_parameters_true"])
def test_ddp_in_a_sweep_is_refused_with_the_way_out(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    forbid_training(monkeypatch)
    sentence = one_sentence(
        shop.train(tmp_path, "--multirun", f"trainer.strategy={strategy}", "mapper.k=1")
    )
    assert "start the whole sweep again in every rank" in sentence
    assert "use trainer.strategy=ddp_spawn, or one run a command" in sentence


@pytest.mark.parametrize("more", [["trainer.strategy=ddp"], ["--multirun", "mapper.k=1"]])
def test_ddp_alone_and_a_sweep_alone_are_not_refused(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(training, "train", lambda config, run: {config.monitor: 0.5})
    assert shop.train(tmp_path / "run", *more).status == 0


def test_a_sweep_has_a_folder_per_job_a_table_and_returns_numbers(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[object] = []
    whole = Leaderboard.on_job_end

    def on_job_end(
        self: Leaderboard, config: object, job_return: JobReturn, **more: object
    ) -> None:
        returned.append(job_return.return_value)
        whole(self, config, job_return, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Leaderboard, "on_job_end", on_job_end)
    done = shop.train(tmp_path / "sweep", "-m", "mapper=depth_nearest,ridge")
    assert done.status == 0, done.err
    folders = [tmp_path / "sweep" / str(job) for job in range(2)]
    measured = [read(folder / "metrics.json")["val/attention_cosine"] for folder in folders]
    assert returned == measured
    assert all(type(value) is float for value in returned), "no objects are kept for the sweep"
    table = (tmp_path / "sweep" / "leaderboard.md").read_text()
    assert table in done.out
    best = measured.index(max(measured))
    assert table.splitlines()[2].split("|")[2].strip() == str(best)
    assert len(list(shop.collections.glob("*/collection.json"))) == 1, "one collection for all"


def test_a_failing_job_lets_the_others_run_and_fails_the_sweep(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = shop.train(tmp_path / "sweep", "-m", "mapper=ridge", "mapper.k=99,1")
    assert "k=99 but the source has 3 layers" in one_sentence(done)
    assert not (tmp_path / "sweep" / "0" / "metrics.json").exists()
    assert (tmp_path / "sweep" / "1" / "metrics.json").exists()
    assert "mapper.k=1" in (tmp_path / "sweep" / "leaderboard.md").read_text()


LIGHT = """
import sys
from kvmap.cli.train import main
for asked in (["--help"], ["--cfg", "job"], ["--cfg", "job", "--resolve", "mapper=mlp"]):
    sys.argv = ["kvmap-train", *asked]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
heavy = {"torch", "lightning", "transformers", "wandb", "matplotlib", "datasets"}
print("imported:", sorted(heavy & set(sys.modules)))
"""


def test_help_and_config_import_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported: []"
    assert "_target_: kvmap.mappers.mlp.MLP" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_process_in_another_folder_ends_with_a_relative_export(
    shop: Workshop, finished: Path, tmp_path: Path
) -> None:
    done = command(*shop.small, "logger=none", "out_dir=mine", "mapper=ridge", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "export: mine/export"
    assert json.loads((tmp_path / "mine" / "metrics.json").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_process_that_is_refused_has_a_status_and_no_traceback(tmp_path: Path) -> None:
    done = command("pair=custom", "logger=none", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("kvmap: a model of the pair is not named")


def test_the_command_in_this_process_is_the_same() -> None:
    assert call(main, "pair=nobody").status == 1
