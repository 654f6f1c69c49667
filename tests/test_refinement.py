"""A refined mapper serves its target better; nothing else about it changes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from commands import Outcome, Workshop, call, contents, one_sentence, read
from torch import Tensor

from kvmap import cache, load_mapper
from kvmap.errors import KVMapError
from kvmap.evaluation.models import Models
from kvmap.export import ExportConfig
from kvmap.pair import ModelPair
from kvmap.refinement.cuts import Cuts, DrawnCuts, EvenCuts
from kvmap.refinement.module import Refinement
from kvmap.refinement.settings import RefinementSettings

SMALL = [
    "refinement.shortest=16",
    "refinement.continuation=8",
    "refinement.epochs=3",
    "refinement.batch_size=2",
    "refinement.lr=1e-3",
]
MLP_RUN = ["mapper=mlp", "mapper.hidden=4", "mapper.epochs=1", "mapper.batch_size=32"]


def refine(shop: Workshop, folder: Path, *overrides: str) -> Outcome:
    """``kvmap-refine`` into a folder."""
    from kvmap.cli.refine import main

    flags = [override for override in overrides if override.startswith("-")]
    more = [override for override in overrides if override not in flags]
    return call(main, *flags, *shop.small, "logger=none", f"out_dir={folder}", *SMALL, *more)


@pytest.fixture(scope="module")
def start(shop: Workshop) -> Path:
    """A run to start from."""
    folder = shop.root / "start"
    assert shop.train(folder, *MLP_RUN).status == 0
    return folder


@pytest.fixture(scope="module")
def refined(shop: Workshop, start: Path) -> Path:
    """A refinement that was not interrupted."""
    folder = shop.root / "refined"
    done = refine(shop, folder, f"export={start}")
    assert done.status == 0, done.err
    assert done.last_line == f"export: {folder / 'export'}"
    return folder


@pytest.fixture
def refinement(start: Path, random_pair: ModelPair) -> Refinement:
    settings = RefinementSettings(shortest=16, continuation=8)
    made = Refinement(load_mapper(start), random_pair, settings)
    made.models = Models(random_pair)
    return made


def documents(count: int = 5, tokens: int = 64) -> Tensor:
    return torch.randint(300, (count, tokens), generator=torch.Generator().manual_seed(3))


def test_the_target_says_more_nearly_what_it_says_after_its_own_kv(
    refined: Path, start: Path, refinement: Refinement, random_pair: ModelPair
) -> None:
    better = Refinement(load_mapper(refined), random_pair, refinement.settings)
    better.models = refinement.models
    cuts = Cuts(documents(), [16, 40, 56])
    with torch.no_grad():
        assert better.divergence(cuts) < refinement.divergence(cuts)


def test_the_export_says_what_it_was_refined_from(
    shop: Workshop, refined: Path, start: Path
) -> None:
    before, after = (ExportConfig.read(each / "export") for each in (start, refined))
    assert after.refined_from == before.weights_sha256 != after.weights_sha256
    assert before.refined_from is None
    assert (after.family, after.arguments) == (before.family, before.arguments)
    assert before.weights_sha256 in (refined / "export" / "README.md").read_text()
    metrics = read(refined / "metrics.json")
    assert set(metrics) == {*read(start / "metrics.json"), "selection/loss"}
    assert metrics["fit_seconds"] > read(start / "metrics.json")["fit_seconds"]
    assert after.metrics == metrics
    done = shop.evaluate(f"export={refined}", f"out_dir={refined / 'evaluation'}")
    assert done.status == 0, done.err
    assert "refined" in (refined / "evaluation" / "report.md").read_text()


def test_what_it_starts_from_stays_as_it_is(shop: Workshop, start: Path, tmp_path: Path) -> None:
    before = contents(start)
    assert refine(shop, tmp_path / "run", f"export={start / 'export'}").status == 0
    assert contents(start) == before


def test_it_maps_as_serving_does(refinement: Refinement) -> None:
    models = refinement.models
    assert models is not None
    own = cache.prefill(models.source, documents(2))
    for learning, served in zip(
        refinement.map(own), models.map(refinement.mapper, own), strict=True
    ):
        torch.testing.assert_close(learning, served)


def test_the_divergence_is_that_of_the_formula(refinement: Refinement) -> None:
    models, ids, prompt = refinement.models, documents(2), 20
    assert models is not None
    with torch.no_grad():
        exact = models.target(ids[:, : prompt + 8]).logits[:, prompt:]
        kv = refinement.map(cache.prefill(models.source, ids[:, :prompt]))
        places = torch.arange(prompt, prompt + 8)
        mapped = cache.forward(models.target, ids[:, prompt : prompt + 8], cache.write(kv), places)
        p, q = F.softmax(exact, -1), F.softmax(mapped, -1)
        expected = (p * (p.log() - q.log())).sum(-1).mean()
        torch.testing.assert_close(refinement.divergence(Cuts(ids, [prompt])), expected)


def test_several_cuts_of_a_document_do_not_see_one_another(refinement: Refinement) -> None:
    ids = documents(2)
    with torch.no_grad():
        each = [refinement.divergence(Cuts(ids, [prompt])) for prompt in (16, 20, 50)]
        together = refinement.divergence(Cuts(ids, [16, 20, 50]))
    torch.testing.assert_close(together, torch.stack(each).mean())


def test_only_the_mapper_learns(refinement: Refinement) -> None:
    models = refinement.models
    assert models is not None
    refinement.divergence(Cuts(documents(2), [30])).backward()
    moved = [each.grad for each in refinement.parameters()]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in moved)
    assert any(bool(grad.abs().max() > 0) for grad in moved if grad is not None)
    frozen = [*models.source.parameters(), *models.target.parameters()]
    assert all(each.grad is None for each in frozen)
    assert not {name for name in refinement.state_dict() if not name.startswith("mapper.")}


def test_drawn_cuts_are_every_document_once_and_leave_room() -> None:
    settings = RefinementSettings(batch_size=2, cuts=3, shortest=16, continuation=8)
    ids = documents()
    drawn = DrawnCuts(ids, settings, seed=1, epoch=lambda: 4)
    first, again = list(drawn), list(drawn)
    assert len(first) == len(drawn) == 3
    assert sorted(torch.cat([each.ids for each in first]).tolist()) == sorted(ids.tolist())
    for each, same in zip(first, again, strict=True):
        assert torch.equal(each.ids, same.ids)
        assert each.prompts == same.prompts == sorted(each.prompts)
        assert all(16 <= prompt <= 56 for prompt in each.prompts)
    other = list(DrawnCuts(ids, settings, seed=1, epoch=lambda: 5))
    assert [each.prompts for each in other] != [each.prompts for each in first]


def test_even_cuts_reach_from_the_shortest_to_the_longest_prompt() -> None:
    settings = RefinementSettings(batch_size=2, shortest=16, continuation=8)
    even = EvenCuts(documents(), settings)
    assert torch.equal(torch.cat([each.ids for each in even]), documents())
    assert [each.prompts for each in even] == [[16, 29, 43, 56]] * len(even)
    only = EvenCuts(documents(), RefinementSettings(shortest=56, continuation=8))
    assert [each.prompts for each in only] == [[56]] * len(only)


def test_an_interrupted_refinement_ends_where_a_straight_one_does(
    shop: Workshop, start: Path, refined: Path, tmp_path: Path
) -> None:
    whole = Refinement.training_step

    def broken(self: Refinement, batch: Any, number: int) -> Tensor:
        if self.current_epoch == 1 and number == 1:
            raise KeyboardInterrupt
        return whole(self, batch, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refinement, "training_step", broken)
        done = refine(shop, tmp_path / "run", f"export={start}")
    assert done.status == 130
    assert not (tmp_path / "run" / "export").exists()
    assert refine(shop, tmp_path / "run", f"export={start}").status == 0
    straight, found = (read(each / "metrics.json") for each in (refined, tmp_path / "run"))
    for name in set(straight) - {"fit_seconds"}:
        assert found[name] == pytest.approx(straight[name], rel=1e-5), name


def test_one_that_stopped_between_its_last_epoch_and_its_export_goes_on(
    shop: Workshop, start: Path, refined: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(refined, tmp_path / "run"))
    shutil.rmtree(folder / "export")
    (folder / "metrics.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refinement, "training_step", lambda *_: pytest.fail("trained again"))
        assert refine(shop, folder, f"export={start}").status == 0
    assert read(folder / "metrics.json") == read(refined / "metrics.json")


def test_a_sweep_is_ranked_by_what_was_learned(shop: Workshop, start: Path, tmp_path: Path) -> None:
    done = refine(
        shop, tmp_path, "-m", f"export={start}", "refinement.lr=1e-9,1e-3", "refinement.epochs=1"
    )
    assert done.status == 0, done.err
    table = (tmp_path / "leaderboard.md").read_text().splitlines()
    assert "refined to KL" in table[0]
    assert "lr=0.001" in table[2]
    assert "lr=1e-09" in table[3]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "name what to refine: export="),
        (["export=nowhere"], "nowhere is neither a folder here nor a hub repository"),
        (["export={start}", "refinement.lr=0"], "refinement.lr=0 must be a number above 0"),
        (["export={start}", "refinement.cuts=0"], "refinement.cuts=0 must be a whole number"),
        (["export={start}", "refinement.shortest=60"], "hold no prompt of refinement.shortest=60"),
        (["export={start}", "seed=-1"], "seed=-1 is no seed"),
        (["export={start}", "pair.direction=target_to_source"], "give pair.direction=source_to"),
        (["export={ridge}"], "a ridge mapper has nothing that learns by gradient steps"),
    ],
)
def test_what_it_cannot_do_is_one_sentence_and_leaves_no_run(
    shop: Workshop, start: Path, tmp_path: Path, asked: list[str], says: str
) -> None:
    ridge = shop.root / "ridge"
    assert shop.train(ridge, "mapper=ridge").status == 0
    asked = [each.format(start=start, ridge=ridge) for each in asked]
    assert says in one_sentence(refine(shop, tmp_path / "run", *asked))
    assert not (tmp_path / "run" / "run.json").exists()


def test_more_than_one_process_is_refused(refinement: Refinement) -> None:
    class Two:
        world_size = 2

    refinement._trainer = Two()  # type: ignore[assignment]
    with pytest.raises(KVMapError, match="one process, not 2"):
        refinement.setup("fit")
