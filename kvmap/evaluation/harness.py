"""lm-evaluation-harness tasks on some arms, as scores of ours."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvmap.errors import KVMapError
from kvmap.evaluation.answering import Answering
from kvmap.evaluation.arms import Role
from kvmap.evaluation.result import HarnessScore


@dataclass(frozen=True)
class Harness:
    """Which tasks of the harness to run.

    Attributes:
        tasks: Their names; empty for none.
        arms: Roles of the arms to run them on; ``mapped`` at the operating point.
        include_path: Folder with task files of one's own; they are found at once, where the
            harness's own take half a minute, so give ``defaults: true`` for those.
        defaults: Whether to look at the harness's own tasks.
        num_fewshot: Examples before each question; None for the task's own.
        limit: Documents per task; None for all.
    """

    tasks: list[str] = field(default_factory=list)
    arms: list[Role] = field(
        default_factory=lambda: ["target", "source", "mapped", "window", "mismatched"]
    )
    include_path: str | None = None
    defaults: bool = True
    num_fewshot: int | None = None
    limit: int | None = None


def require_harness() -> None:
    """See that the harness is there before an evaluation takes its time.

    Raises:
        KVMapError: It is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise KVMapError("harness.tasks need lm-evaluation-harness; pip install 'kvmap[eval]'")


def run_harness(harness: Harness, answering: Sequence[Answering]) -> list[HarnessScore]:
    """Run the tasks on every arm.

    Args:
        harness: Which tasks.
        answering: The arms.

    Raises:
        KVMapError: The harness is missing, or knows no such task.
    """
    if not harness.tasks:
        return []
    require_harness()
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from kvmap.evaluation.lm_eval_model import ArmLM

    manager = TaskManager(
        include_path=harness.include_path, include_defaults=harness.defaults, verbosity="ERROR"
    )
    known = set(manager.all_tasks)
    for task in harness.tasks:
        if task not in known:
            raise KVMapError(
                f"harness.tasks: lm-evaluation-harness knows no {task!r}; name its folder in "
                "harness.include_path, or set harness.defaults=true"
            )
    scores: list[HarnessScore] = []
    for each in answering:
        model = ArmLM(each)
        found = simple_evaluate(
            model=model,
            tasks=list(harness.tasks),
            task_manager=manager,
            num_fewshot=harness.num_fewshot,
            limit=harness.limit,
            bootstrap_iters=1000,
            log_samples=False,
            verbosity="ERROR",
        )
        scores += _scores(found or {}, each.arm.name, model.repaired_share)
    return scores


def _scores(found: Any, arm: str, repaired_share: float) -> list[HarnessScore]:
    """The numbers in the harness's dict."""
    scores = []
    for task, numbers in found["results"].items():
        samples = int(found.get("n-samples", {}).get(task, {}).get("effective", 0))
        for key, value in numbers.items():
            metric, _, filtered = key.partition(",")
            if metric.endswith("_stderr") or not isinstance(value, int | float) or not filtered:
                continue
            error = numbers.get(f"{metric}_stderr,{filtered}")
            stderr = float(error) if isinstance(error, int | float) else None
            name = metric if filtered == "none" else f"{metric} ({filtered})"
            scores.append(
                HarnessScore(arm, task, name, float(value), stderr, samples, repaired_share)
            )
    return scores
