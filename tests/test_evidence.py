"""What may be served: an export with evidence of its own weights that speaks for it."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import pytest
from commands import Outcome, Workshop, call, one_sentence
from conftest import make_tokenizer
from fake_engine import FakeEngine
from serving import running

from kvmap.cli.serve import main
from kvmap.evaluation.evidence import read_evidence, require_evidence
from kvmap.export import EVIDENCE

ABOVE = {"value": 0.3, "low": 0.2, "high": 0.4, "documents": 6}


@pytest.fixture(scope="module")
def evaluated(shop: Workshop) -> Path:
    """A sweep of two: depth-nearest, evaluated, and a better ridge that nobody evaluated."""
    folder = shop.root / "evaluated"
    for family in ("depth_nearest", "ridge"):
        assert shop.train(folder / family, f"mapper={family}").status == 0
    done = shop.evaluate(f"export={folder / 'depth_nearest'}")
    assert done.status == 0, done.err
    edit(folder, lambda evidence: evidence.update(above_mismatched=ABOVE))  # random models
    return folder


def edit(runs: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = runs / "depth_nearest" / "export" / EVIDENCE
    evidence = json.loads(path.read_text())
    change(evidence)
    path.write_text(json.dumps(evidence))
    return path.parent


def serve(shop: Workshop, *overrides: str) -> Outcome:
    asked = ("prompt=a b c d e f g h", "max_new_tokens=2", "runtime.native_below=0")
    return call(main, *shop.pair, *asked, *overrides)


def test_of_a_sweep_what_has_evidence_is_served_at_the_repair_it_was_evaluated_at(
    shop: Workshop, evaluated: Path
) -> None:
    done = serve(shop, f"runs={evaluated}")
    assert done.status == 0, done.err
    first, *more = done.out.splitlines()
    assert "depth_nearest" in first
    assert "of 1 with evidence (1 without)" in first
    assert "evidence: test documents, 6 passages, repair 4 chosen on nothing" in more[0]
    assert "0.300 [0.200, 0.400] nats/token" in more[1]
    assert "4 repaired\n" in done.out


def test_of_several_with_evidence_the_one_that_closes_more_of_the_gap_is_served(
    shop: Workshop, evaluated: Path
) -> None:
    path = evaluated / "depth_nearest" / "export" / EVIDENCE
    rival = evaluated / "ridge" / "export" / EVIDENCE
    for folder, gap in (("depth_nearest", 0.9), ("ridge", 0.2)):
        evidence = json.loads(path.read_text())
        export = json.loads((evaluated / folder / "export" / "config.json").read_text())
        evidence["weights_sha256"] = export["weights_sha256"]
        for arm in evidence["arms"]:
            arm["gap_closed"] = {"value": gap, "low": gap - 0.1, "high": gap + 0.1, "documents": 6}
        (rival if folder == "ridge" else path).write_text(json.dumps(evidence))
    by_gap, by_diagnostic = (
        serve(shop, f"runs={evaluated}"),
        serve(shop, f"runs={evaluated}", "monitor=val/r2_keys"),
    )
    rival.unlink()
    first = by_gap.out.splitlines()[0]
    assert "/depth_nearest/" in first
    assert first.endswith("best by gap closed = 0.90")
    first = by_diagnostic.out.splitlines()[0]
    assert "/ridge/" in first
    assert "best by val/r2_keys" in first


def test_another_repair_is_served_and_said(shop: Workshop, evaluated: Path) -> None:
    done = serve(shop, f"runs={evaluated}", "repair.tokens=2", "repair.prefix=1")
    assert done.status == 0, done.err
    assert "it speaks of repair 4, and this serves with repair 2 + prefix 1" in done.out


def test_waived_the_better_one_is_served(shop: Workshop, evaluated: Path) -> None:
    done = serve(shop, f"runs={evaluated}", "allow_unverified=true", "repair.tokens=2")
    assert done.status == 0, done.err
    assert "/ridge/" in done.out.splitlines()[0]
    assert "unverified" in done.out.splitlines()[1]


def test_without_evidence_it_is_one_sentence(shop: Workshop, evaluated: Path) -> None:
    said = one_sentence(serve(shop, f"export={evaluated / 'ridge'}"))
    assert "carries no evidence" in said
    assert "kvmap-evaluate export=" in said
    assert "allow_unverified=true" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e: e.update(weights_sha256="00" * 32), "speaks of weights 000000000000"),
        (lambda e: e["above_mismatched"].update(low=-0.01), "not better with the right prompt"),
        (lambda e: e.update(format=99), "has format 99"),
        (lambda e: e.pop("arms"), "evidence.json is damaged (it lacks arms); evaluate again"),
        (lambda e: e.update(arms=[]), "is damaged (arms hold no source); evaluate again"),
        (lambda e: e.update(repair=3), "is damaged (arms hold no mapped + repair 3)"),
        (lambda e: e.update(repair=-5), "evidence.json is damaged (repair=-5 must be"),
    ],
)
def test_evidence_that_speaks_against_it_or_of_something_else_is_refused(
    shop: Workshop,
    evaluated: Path,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    says: str,
) -> None:
    runs = copytree(evaluated, tmp_path / "runs")
    export = edit(runs, change)
    assert says in one_sentence(serve(shop, f"export={export}"))
    assert serve(shop, f"export={export}", "allow_unverified=true").status == 0


def test_clients_are_told_the_evidence(evaluated: Path) -> None:
    evidence = require_evidence(evaluated / "depth_nearest" / "export")
    with running(FakeEngine(make_tokenizer()), evidence=evidence) as server:
        [model] = httpx.get(f"{server.url}/v1/models").json()["data"]
    told = model["kvmap"]["evidence"]
    assert told["above_mismatched"] == ABOVE
    assert told["weights_sha256"] == evidence.weights_sha256
    assert {"source", "target", "mapped + repair 4"} <= {arm["name"] for arm in told["arms"]}
    with running(FakeEngine(make_tokenizer())) as server:
        [model] = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert model["kvmap"]["evidence"] is None


def test_no_evidence_is_no_error_to_read(tmp_path: Path) -> None:
    assert read_evidence(tmp_path) is None
