"""``kvmap-inspect`` ends with a verdict, and with a status that a script can use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_tokenizer
from transformers import Gemma3TextConfig

from kvmap.cli.inspect import inspect_pair
from kvmap.pair import ModelPair

ROOT = Path(__file__).parent.parent


def run(*overrides: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "kvmap.cli.inspect", *overrides],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def custom(source: Path, target: Path) -> tuple[str, str, str]:
    return "pair=custom", f"pair.source.model={source}", f"pair.target.model={target}"


def test_table_names_every_fact_and_ends_with_the_verdict(
    random_pair: ModelPair, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect_pair(random_pair)
    lines = capsys.readouterr().out.splitlines()
    for fact in ("layers", "KV heads", "head dim", "tokenizer", "rotary", "attention"):
        assert any(line.startswith(fact) for line in lines), fact
    assert lines[-1] == "matched"


def test_command_prints_the_table_and_leaves_no_files(
    source_folder: Path, target_folder: Path, tmp_path: Path
) -> None:
    done = run(*custom(source_folder, target_folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "matched"
    assert list(tmp_path.iterdir()) == []


def test_command_refuses_in_one_sentence(source_folder: Path, tmp_path: Path) -> None:
    Gemma3TextConfig(vocab_size=384, num_hidden_layers=2).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    done = run(*custom(source_folder, tmp_path), "probe=false")
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    sentences = [line for line in done.stderr.splitlines() if "kvmap: refused: the target" in line]
    assert len(sentences) == 1
    assert "sliding-window attention" in sentences[0]
    assert "head dim" in done.stdout


def test_command_asks_for_the_models_of_a_custom_pair() -> None:
    done = run("pair=custom")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "set pair.source.model and pair.target.model" in done.stderr
