"""The harness through an arm: the target's numbers are a plain model's, contexts are read once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluating import SMALL, Noise, corpus, export, named, settings

from kvmap.errors import KVMapError
from kvmap.evaluation.answering import Answering
from kvmap.evaluation.arms import Arm, Role
from kvmap.evaluation.candidates import Export
from kvmap.evaluation.evaluate import Evaluation
from kvmap.evaluation.harness import Harness, run_harness
from kvmap.evaluation.models import Models
from kvmap.evaluation.prompts import Prompt
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.table import table
from kvmap.pair import ModelPair, ModelSpec

pytest.importorskip("lm_eval")

CHOICE = """
task: cups
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
WRITING = """
task: writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{written}}}}"
generation_kwargs: {{until: ["x"], max_gen_toks: 9, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
ROLLING = """
task: rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
"""
QUESTIONS = [
    "the red door of the old house stands",
    "anna keeps a blue cup near",
    "ben takes three keys to the market and sells",
    "in the morning",
]
ENDS = [" open", " the green box", " seven plates", " a tall man"]
TASKS = ["cups", "writing", "rolling"]


@pytest.fixture
def models(random_pair: ModelPair) -> Models:
    return Models(random_pair)


@pytest.fixture(scope="module")
def embedded() -> Models:
    """The embedded pair, whose vocabulary has no padding."""
    sides = (ModelSpec(f"embedded:{side}", dtype="float32") for side in ("source", "target"))
    return Models(ModelPair("tiny", *sides))


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Task files and their data."""
    rows = [
        {"question": question, "choices": ENDS, "answer": number, "written": ENDS[number]}
        for number, question in enumerate(QUESTIONS)
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, text in zip(TASKS, (CHOICE, WRITING, ROLLING), strict=True):
        (folder / f"{name}.yaml").write_text(text.format(data=data))
    return folder


def samples(model: Any, folder: Path, names: list[str]) -> dict[str, Any]:
    """Answers of the model to each task, and the metrics."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(model=model, tasks=names, task_manager=manager, bootstrap_iters=0)


def answering(models: Models, arm: Arm) -> Answering:
    noise = named(Noise(models.pair.source.shape, models.pair.target.shape))
    return Answering(models, arm, noise if arm.mapper else None)


@pytest.mark.parametrize("arm", [Arm("target"), Arm("source"), Arm("exact", 3)], ids=str)
def test_native_arms_equal_a_plain_model(embedded: Models, tasks: Path, arm: Arm) -> None:
    from kvmap.evaluation.lm_eval_model import ArmLM

    plain = plain_model(embedded, arm)
    theirs = samples(plain, tasks, TASKS)
    mine = samples(ArmLM(answering(embedded, arm)), tasks, TASKS)
    for task in TASKS:
        for one, other in zip(mine["samples"][task], theirs["samples"][task], strict=True):
            if task == "writing":
                assert one["resps"] == other["resps"]
                continue
            ours, wanted = (
                [value for (resp,) in each["resps"] for value in _numbers(resp)]
                for each in (one, other)
            )
            assert ours == pytest.approx(wanted, abs=1e-3)
        for name, value in theirs["results"][task].items():
            if isinstance(value, float):
                assert mine["results"][task][name] == pytest.approx(value, rel=1e-4), name


def plain_model(models: Models, arm: Arm, **more: Any) -> Any:
    """The harness's own wrapper of a transformers model."""
    pytest.importorskip("accelerate")  # which that wrapper wants
    from lm_eval.models.huggingface import HFLM

    tokenizer = models.pair.target.tokenizer
    return HFLM(pretrained=models.of(arm.answerer), tokenizer=tokenizer, batch_size=1, **more)


@pytest.mark.parametrize("arm", [Arm("target"), Arm("source"), Arm("exact", 3)], ids=str)
def test_native_scores_are_the_models_own(models: Models, arm: Arm) -> None:
    from kvmap.evaluation.lm_eval_model import ArmLM

    model = ArmLM(answering(models, arm))
    pairs = [(question, end) for question in QUESTIONS for end in ENDS]
    found = model.loglikelihood([_Request(pair) for pair in pairs], disable_tqdm=True)
    for (question, end), (score, greedy) in zip(pairs, found, strict=True):
        context, whole = (model.tok_encode(text) for text in (question, question + end))
        said = models.of(arm.answerer)(torch.tensor([whole])).logits[0, :, : models.vocabulary]
        rows, ids = said[len(context) - 1 : -1], torch.tensor(whole[len(context) :])
        wanted = rows.log_softmax(-1).gather(1, ids[:, None]).sum().item()
        assert score == pytest.approx(wanted, abs=1e-3)
        assert greedy == torch.equal(rows.argmax(1), ids)


class _Request:
    """What the harness hands over."""

    def __init__(self, args: tuple[str, ...]) -> None:
        self.args = args


def _numbers(resp: Any) -> list[float]:
    return [float(value) for value in resp] if isinstance(resp, tuple) else [float(resp)]


def test_a_context_is_read_and_mapped_once_for_all_its_continuations(
    models: Models, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvmap.evaluation.lm_eval_model import ArmLM

    read = []
    usual = Prompt._read
    monkeypatch.setattr(Prompt, "_read", lambda self, side: read.append(side) or usual(self, side))
    model = ArmLM(answering(models, Arm("mapped", 2, mapper="Noise")))
    samples(model, tasks, ["cups"])
    assert read == ["source"] * len(QUESTIONS)


@pytest.mark.parametrize("role", ["mapped", "mismatched", "window"])
def test_mapped_arms_say_how_much_of_their_contexts_was_repaired(
    models: Models, role: Role
) -> None:
    from kvmap.evaluation.lm_eval_model import ArmLM

    mapper = "" if role == "window" else "Noise"
    requests = [_Request((question, end)) for question in QUESTIONS for end in ENDS]
    native = ArmLM(answering(models, Arm("target"))).loglikelihood(requests, disable_tqdm=True)
    shares = []
    for repair in (0, 3, 1000):
        model = ArmLM(answering(models, Arm(role, repair, mapper=mapper)))
        found = model.loglikelihood(requests, disable_tqdm=True)
        shares.append(model.repaired_share)
        same = [
            one[0] == pytest.approx(other[0], abs=1e-3)
            for one, other in zip(found, native, strict=True)
        ]
        assert all(same) if repair == 1000 else not any(same)
    assert 0 < shares[0] < shares[1] < shares[2] == 1


def test_harness_scores_are_ours(models: Models, tasks: Path) -> None:
    harness = Harness(["cups"], include_path=str(tasks), defaults=False, limit=3)
    arms = [answering(models, Arm("target")), answering(models, Arm("mapped", 2, mapper="Noise"))]
    scores = run_harness(harness, arms)
    assert [(each.arm, each.metric) for each in scores] == [
        (arm, metric) for arm in ("target", "mapped + repair 2") for metric in ("acc", "acc_norm")
    ]
    assert all(each.samples == 3 and 0 <= each.value <= 1 for each in scores)
    with pytest.raises(KVMapError, match="knows no 'nope'"):
        run_harness(Harness(["nope"], include_path=str(tasks), defaults=False), arms)


def test_an_evaluation_runs_the_harness_on_its_arms(
    random_pair: ModelPair, tasks: Path, tmp_path: Path
) -> None:
    small = replace(SMALL, replacement=0, conversations=0, greedy=0, development=0)
    result = Evaluation(
        pair=random_pair,
        corpus=corpus(tmp_path),
        exports=[Export.find(export(random_pair, tmp_path / "run/export"))],
        settings=settings(sizes=small),
        out_dir=tmp_path / "evaluation",
        harness=Harness(["cups"], ["target", "mapped"], str(tasks), defaults=False),
        shown=False,
    ).run()
    assert [(each.arm, each.metric) for each in result.harness] == [
        (arm, metric) for arm in ("target", "mapped + repair 6") for metric in ("acc", "acc_norm")
    ]
    assert EvaluationResult.read(tmp_path / "evaluation") == result
    assert "cups acc, mapped + repair 6: " in table(result)


def test_answers_of_another_mapper_are_never_reused(models: Models, tmp_path: Path) -> None:
    from lm_eval.api.model import CachingLM

    from kvmap.evaluation.lm_eval_model import ArmLM

    with pytest.raises(KVMapError, match="use_cache"):
        CachingLM(ArmLM(answering(models, Arm("target"))), str(tmp_path / "cache.db"))


def test_long_contexts_keep_their_end_as_the_harness_does(embedded: Models) -> None:
    from kvmap.evaluation.lm_eval_model import ArmLM

    plain = plain_model(embedded, Arm("target"), max_length=12)
    ours = ArmLM(answering(embedded, Arm("target")), max_length=12)
    ids = list(range(1, 40))
    request = [(("", ""), ids, [7, 8, 9])]
    (mine,), (theirs,) = (
        each._loglikelihood_tokens(request, disable_tqdm=True) for each in (ours, plain)
    )
    assert mine[0] == pytest.approx(theirs[0], abs=1e-4)
    with pytest.raises(KVMapError, match="exceeds max_length=12"):
        ours._loglikelihood_tokens([(("", ""), [1], ids)])
