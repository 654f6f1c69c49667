"""The benchmark for GPUs, on tiny shapes without one."""

import json
from pathlib import Path

import pytest
import torch

from kvmap.runtime import step

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_it_runs_on_tiny_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import gpu

    out = tmp_path / "folder" / "gpu.json"
    assert gpu.main(["--device", "cpu", "--tiny", "--out", str(out)]) == 0
    told, kept = capsys.readouterr().out, json.loads(out.read_text())
    assert told.startswith("# processor (cpu)")
    assert all(check["passed"] for check in kept["checks"])
    assert len(kept["checks"]) == 8
    assert not kept["failed"] + kept["left_out"]
    tables = {table["title"]: table for table in kept["tables"]}
    for title, table in tables.items():
        assert f"## {title}" in told
        assert table["rows"]
        assert all(len(row) == len(table["header"]) for row in table["rows"])
    first = next(table for title, table in tables.items() if title.startswith("First token"))
    ways = {(way, chunk): ratio for way, chunk, _, ratio, *_ in first["rows"]}
    assert ways.pop(("native", 0)) == 1
    assert set(ways) == {(f"mapped, k={k}", chunk) for k in (1, 2) for chunk in (0, 40)}


def test_a_broken_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_checks import Checks

    right = step._forward

    def late(model: object, by_kind: bool, token: torch.Tensor, at: torch.Tensor, *kv: object):  # type: ignore[no-untyped-def]
        return right(model, by_kind, token, at + 1, *kv)  # type: ignore[arg-type]

    monkeypatch.setattr(step, "_forward", late)
    checks = Checks(torch.device("cpu"), torch.device("cpu"), "eager")
    assert not checks.step_logits()[0]


def test_what_does_not_fit_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu

    monkeypatch.setattr(gpu.Checks, "run", lambda self: iter(()))
    monkeypatch.setattr(gpu.Memory, "missing", lambda self, needed: "needs more")
    gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path / "gpu.json")])
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert kept["left_out"] == ["all speed, since it needs more"]


def test_the_real_shapes_are_those_published() -> None:
    import gpu
    from random_models import RandomSide

    sides = [
        RandomSide(config, torch.bfloat16, torch.device("cpu"))
        for config in (gpu.REAL.source, gpu.REAL.target)
    ]
    assert [side.shape.bytes_per_token(side.dtype) / 1024 for side in sides] == [144, 256]
    assert [round(side.weights / 1e9, 1) for side in sides] == [4.0, 32.8]
