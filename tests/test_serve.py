"""``kvmap-serve`` as a user meets it: which export it takes, and what it refuses."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from commands import Outcome, Workshop, call, one_sentence, read
from serving import until

from kvmap.cli.serve import main


@pytest.fixture(scope="module")
def runs(shop: Workshop) -> Path:
    folder = shop.root / "runs"
    for k in ("1", "all"):
        assert shop.train(folder / k, "mapper=ridge", f"mapper.k={k}").status == 0
    return folder


def serve(shop: Workshop, *overrides: str) -> Outcome:
    """``kvmap-serve`` with the mapper in use, however short the prompt and unproven the export."""
    plain = ("runtime.native_below=0", "allow_unverified=true")
    return call(main, *shop.pair, *plain, *overrides)


def test_it_takes_the_best_of_a_folder_and_says_which_and_why(shop: Workshop, runs: Path) -> None:
    taken = []
    for mode in ("max", "min"):
        done = serve(
            shop, f"runs={runs}", "prompt=a b c", "max_new_tokens=3", f"monitor_mode={mode}"
        )
        assert done.status == 0, done.err
        first, second = done.out.splitlines()[:2]
        assert "best by val/attention_cosine" in first
        assert second.startswith("unverified: ")
        assert "carries no evidence" in second
        taken.append("/all/" in first)
    assert taken[0] != taken[1]


def test_an_answer_ends_with_where_its_time_went(shop: Workshop, runs: Path) -> None:
    done = serve(
        shop, f"export={runs / '1'}", "prompt=a b c d e", "repair.tokens=2", "max_new_tokens=9"
    )
    assert done.status == 0, done.err
    assert "2 repaired\n" in done.out
    for stage in ("source prefill", "transfer", "map", "repair", "draft", "verify", "roll back"):
        assert any(line.startswith(stage) for line in done.out.splitlines())
    assert done.last_line.startswith("in all")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["prompt="], "the prompt is empty"),
        (["server.queue=-1"], "server.queue=-1"),
        (["guard=maybe", "server.port=0"], "guard=maybe"),
        (["prompt=a", "export=nowhere/at/all"], "nowhere/at/all is neither"),
        (["prompt=a", "repair.tokens=-2"], "repair.tokens=-2"),
        (["prompt=a", "max_new_tokens=0"], "max_new_tokens=0"),
        (["prompt=a", "monitor=val/luck"], "monitor=val/luck"),
        (["prompt=a", "guard=on"], "kvmap-guard"),
        (["prompt=a", "guard=maybe"], "guard=maybe"),
        (["prompt=a", "schedule=fixed", "schedule.size=0"], "schedule.size=0"),
        (["prompt=a", "confidence=2"], "confidence=2"),
        (["prompt=a", "mode=magic"], "mode=magic"),
        (["prompt=a", "runtime.mapper_dtype=int4"], "int4"),
        (["prompt=a", "export=a", "checkpoint=b"], "one setting"),
        (["prompt=a", "allow_unverified=maybe"], "allow_unverified=maybe must be true or false"),
        (["server.port=abc", "monitor=val/luck"], "server.port=abc"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(
    shop: Workshop, runs: Path, asked: list[str], says: str
) -> None:
    assert says in one_sentence(serve(shop, f"runs={runs}", *asked))


def test_without_a_prompt_it_serves_until_it_is_told_to_end(shop: Workshop, runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = serve(shop, f"export={runs / '1'}", f"server.port={port}")
    assert f"port {port} of 127.0.0.1 is in use" in one_sentence(busy)

    def client() -> httpx.Response:
        try:
            until(lambda: is_ready(f"http://127.0.0.1:{port}/ready"))
            body = {"model": "mine", "prompt": "a b c d", "max_tokens": 3, "temperature": 0}
            return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client)
        done = serve(shop, f"export={runs / '1'}", f"server.port={port}", "server.model=mine")
    assert done.status == 0, done.err
    assert f"listening on http://127.0.0.1:{port}" in done.out
    told = answer.result().json()["kvmap"]
    exported = read(runs / "1" / "export" / "config.json")
    assert (told["mapper"], told["family"]) == (exported["weights_sha256"], "ridge")


def is_ready(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def test_checkpoint_is_another_word_for_export(shop: Workshop, runs: Path) -> None:
    done = serve(shop, f"checkpoint={runs / '1'}", "prompt=a b", "max_new_tokens=2")
    assert done.status == 0, done.err
    assert "named on the command line" in done.out


@pytest.mark.parametrize("mode", ["target", "source"])
def test_native_answers_need_no_export(shop: Workshop, tmp_path: Path, mode: str) -> None:
    done = serve(shop, f"runs={tmp_path}", "prompt=a b c", "max_new_tokens=2", f"mode={mode}")
    assert done.status == 0, done.err
    assert "read natively" in done.out


def test_a_folder_without_runs_is_one_sentence(shop: Workshop, tmp_path: Path) -> None:
    assert "no finished run" in one_sentence(serve(shop, f"runs={tmp_path}", "prompt=a"))


def test_an_export_of_another_pair_is_refused(shop: Workshop, runs: Path) -> None:
    export = runs / "1"
    done = call(main, "pair=tiny", f"export={export}", "prompt=a", "allow_unverified=true")
    assert "was fitted on a source" in one_sentence(done)
