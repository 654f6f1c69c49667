"""The server under many clients, and clients that go away."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from conftest import make_tokenizer
from fake_engine import FakeEngine
from openai import AsyncOpenAI
from serving import PATIENCE_S, Running, running, until

from kvmap.runtime.options import Options

LONG = {"model": "fake", "prompt": "a b c", "max_tokens": 400, "ignore_eos": True}
SHORT = {"model": "fake", "prompt": "a b c", "max_tokens": 3}


@pytest.fixture
def slow() -> Iterator[Running]:
    """A long answer takes about three seconds, a round 20 ms."""
    with running(FakeEngine(make_tokenizer(), delay=0.02), queue=32) as server:
        yield server
        assert_well(server)


def assert_well(server: Running) -> None:
    """Nothing is left behind, and the next answer is right."""
    until(lambda: not server.server.thread.busy)
    until(lambda: server.engine.still_held == 0)
    done = server.openai().completions.create(
        model="fake", prompt="the tall man", temperature=0, max_tokens=9
    )
    ids = server.engine.tokenizer("the tall man")["input_ids"]
    assert done.choices[0].text == server.engine.expect(ids, Options(max_new_tokens=9))
    until(lambda: not server.server.thread.busy)
    metrics = server.metrics()
    assert metrics["kvmap_live_cache_bytes"] == 0
    assert metrics["kvmap_queue_length"] == 0


def test_64_clients_at_once_each_get_their_own_answer() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.001), queue=64) as server:

        async def ask(client: AsyncOpenAI, number: int) -> str:
            asked: dict[str, Any] = {
                "model": "fake", "prompt": f"question {number}", "seed": number, "max_tokens": 12,
            }  # fmt: skip
            if number % 2:
                done = await client.completions.create(**asked)
                return done.choices[0].text
            stream = await client.completions.create(**asked, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def everybody() -> list[str]:
            async with AsyncOpenAI(
                base_url=f"{server.url}/v1", api_key="none", max_retries=0
            ) as client:
                return await asyncio.gather(*(ask(client, number) for number in range(64)))

        for number, text in enumerate(asyncio.run(everybody())):
            ids = server.engine.tokenizer(f"question {number}")["input_ids"]
            options = Options(max_new_tokens=12, temperature=1.0, seed=number)
            assert text == server.engine.expect(ids, options)
        assert server.metrics()["kvmap_requests_total /v1/completions completed"] == 64


def test_200_aborted_requests_leave_nothing_behind() -> None:
    """Streaming and not, running and queued; at most a round of each is still computed."""
    with running(FakeEngine(make_tokenizer(), delay=0.005), queue=64) as server:

        async def abort(client: httpx.AsyncClient, number: int) -> None:
            body = {**LONG, "stream": bool(number % 2)}
            wait = 0.005 * (number % 7)
            try:
                async with asyncio.timeout(wait + 0.01):
                    async with client.stream("POST", "/v1/completions", json=body) as answer:
                        async for _ in answer.aiter_bytes():
                            pass
                raise AssertionError("was to be aborted")
            except TimeoutError:
                pass

        async def everybody() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
                for start in range(0, 200, 40):
                    await asyncio.gather(
                        *(abort(client, number) for number in range(start, start + 40))
                    )

        began = time.monotonic()
        asyncio.run(everybody())
        until(lambda: not server.server.thread.busy, patience_s=2)
        assert time.monotonic() - began < 10  # one whole answer takes 0.7 s, 200 take 130
        assert_well(server)
        counted = server.metrics()
        assert counted["kvmap_requests_total /v1/completions completed"] == 1
        assert 0 < counted["kvmap_aborts_total"] <= 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_running_request_stops_within_a_round(slow: Running, stream: bool) -> None:
    body = {**LONG, "stream": stream}
    with httpx.Client(base_url=slow.url, timeout=0.15) as client:
        if stream:
            with client.stream("POST", "/v1/completions", json=body) as answer:
                next(answer.iter_lines())  # and away
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=body)
    rounds = slow.engine.rounds
    until(lambda: not slow.server.thread.busy, patience_s=1)
    assert slow.engine.rounds <= rounds + 3  # of 134
    assert slow.metrics()["kvmap_requests_total /v1/completions aborted"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_queued_request_leaves_the_queue_when_its_client_goes(
    slow: Running, stream: bool
) -> None:
    first = occupy(slow)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{slow.url}/v1/completions", json={**LONG, "stream": stream}, timeout=0.1)
    until(lambda: slow.metrics()["kvmap_queue_length"] == 0, patience_s=1)
    assert slow.server.thread.busy  # the first still runs
    first.close()


def occupy(server: Running) -> openai.Stream[Any]:
    """A running request."""
    stream = server.openai().completions.create(
        model="fake", prompt="a b c", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    return stream


def test_a_full_queue_is_429_with_a_time_to_come_back() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.02), queue=2) as server:
        first = occupy(server)
        url = f"{server.url}/v1/completions"

        async def burst() -> list[httpx.Response]:
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
                asked = [asyncio.create_task(client.post(url, json=SHORT)) for _ in range(6)]
                done, _ = await asyncio.wait(asked, timeout=0.5)
                first.close()
                return [task.result() for task in done] + [
                    await task for task in asked if task not in done
                ]

        answers = asyncio.run(burst())
        assert [each.status_code for each in answers] == [429] * 4 + [200] * 2
        assert answers[0].json()["error"]["code"] == "queue_full"
        assert answers[0].json()["error"]["type"] == "rate_limit_error"
        assert int(answers[0].headers["retry-after"]) >= 1
        assert server.metrics()["kvmap_requests_total /v1/completions busy"] == 4


def test_openais_client_comes_back_by_itself() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.01), queue=0) as server:
        first = occupy(server)
        with pytest.raises(openai.RateLimitError):
            server.openai().completions.create(**SHORT)
        first.close()
        assert server.openai(retries=3).completions.create(**SHORT).choices[0].text is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_ends(stream: bool) -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.03), timeout_s=0.4) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json={**LONG, "stream": stream})
        if stream:
            assert answer.status_code == 200
            assert '"code":"timeout"' in answer.text.split("\n\n")[-2]
            assert "[DONE]" not in answer.text
        else:
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "timeout"
        until(lambda: not server.server.thread.busy, patience_s=1)
        assert server.engine.rounds < 30  # of 134
        assert_well(server)
        assert server.metrics()["kvmap_requests_total /v1/completions timeout"] == 1


def test_time_in_the_queue_counts() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.02), timeout_s=0.5) as server:
        first = occupy(server)
        assert httpx.post(f"{server.url}/v1/completions", json=LONG).status_code == 504
        with pytest.raises(openai.APIError, match=r"took more than 0\.5 s"):
            list(first)
        assert_well(server)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    """Nothing can be sent to it, not even that its time is up."""
    with running(FakeEngine(make_tokenizer(), limit=60_000), timeout_s=2.0) as server:
        body = json.dumps({**LONG, "max_tokens": 50_000, "stream": True, "logprobs": 20})
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", httpx.URL(server.url).port))
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            ended = "kvmap_requests_total /v1/completions timeout"
            until(lambda: server.metrics().get(ended) == 1, patience_s=8)
        assert_well(server)


def test_the_event_loop_answers_while_the_engine_computes(slow: Running) -> None:
    stream = occupy(slow)
    waits = []
    with slow.http() as http:
        for _ in range(20):
            began = time.monotonic()
            assert http.get("/health").status_code == 200
            waits.append(time.monotonic() - began)
    assert slow.server.thread.busy
    assert sorted(waits)[len(waits) // 2] < 0.1
    stream.close()


def test_a_long_prompt_is_encoded_off_the_event_loop(slow: Running) -> None:
    async def both() -> float:
        async with httpx.AsyncClient(base_url=slow.url, timeout=PATIENCE_S) as client:
            text = "the red door " * 40_000
            long = asyncio.create_task(
                client.post("/v1/completions", json={**SHORT, "prompt": text})
            )
            slowest = 0.0
            while not long.done():
                began = time.monotonic()
                await client.get("/health")
                slowest = max(slowest, time.monotonic() - began)
            assert (await long).json()["error"]["code"] == "context_length_exceeded"
            return slowest

    assert asyncio.run(both()) < 1.0


def test_only_a_delivered_turn_is_kept() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.01, keep=True)) as server:
        occupy(server).close()
        until(lambda: not server.server.thread.busy)
        assert server.engine.kept == []
        server.openai().completions.create(**SHORT)
        until(lambda: len(server.engine.kept) == 1)


def test_a_turn_whose_client_goes_in_its_last_round_is_not_kept() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.4, keep=True)) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json={**SHORT, "max_tokens": 1}, timeout=0.2)
        until(lambda: not server.server.thread.busy)
        assert server.engine.rounds == 1
        assert server.engine.kept == []


def test_a_prompt_is_read_no_further_than_the_chunk_in_which_its_client_goes() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.15, chunks=20)) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=SHORT, timeout=0.2)
        until(lambda: not server.server.thread.busy, patience_s=2)
        assert server.engine.chunks_read <= 5
        assert server.engine.rounds == 0
        assert server.metrics()["kvmap_aborts_total"] == 1
        assert_well(server)


def test_metrics_add_up() -> None:
    with running(FakeEngine(make_tokenizer(), delay=0.002)) as server:
        used = [
            server.openai()
            .completions.create(
                model="fake", prompt="a b c", max_tokens=tokens, extra_body={"ignore_eos": True}
            )
            .usage
            for tokens in (1, 4, 10)
        ]
        httpx.post(f"{server.url}/v1/chat/completions", json={"model": "fake"})
        until(lambda: not server.server.thread.busy)
        metrics = server.metrics()
        origins = ("reused", "mapped", "repaired", "native")
        prompt = sum(metrics[f"kvmap_prompt_tokens_total {origin}"] for origin in origins)
        assert prompt == sum(each.prompt_tokens for each in used)
        assert metrics["kvmap_generated_tokens_total"] == 15
        assert metrics["kvmap_proposed_tokens_total"] == 3 * (0 + 1 + 3)
        assert metrics["kvmap_accepted_tokens_total"] == 2 * (0 + 1 + 3)
        assert metrics["kvmap_fallbacks_total"] == 0
        assert metrics["kvmap_ttft_seconds_count"] == 3
        assert metrics["kvmap_tpot_seconds_count"] == 2
        assert metrics["kvmap_stage_seconds_total verify"] == pytest.approx(0.002 * (1 + 2 + 4))
        assert metrics["kvmap_requests_total /v1/chat/completions refused"] == 1
