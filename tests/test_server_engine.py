"""The server with a real engine: two small random models."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import engine
from openai import AsyncOpenAI
from serving import Running, running, until

from kvmap.pair import ModelPair, ModelSpec
from kvmap.runtime.engine import Engine
from kvmap.runtime.options import Options
from kvmap.runtime.schedule import Fixed

TURNS = [{"role": "user", "content": "the red door of the old house"}]


@pytest.fixture(scope="module")
def pair(source_folder: Path, target_folder: Path) -> ModelPair:
    sides = (ModelSpec(str(folder), dtype="float32") for folder in (source_folder, target_folder))
    return ModelPair("random", *sides)


@pytest.fixture(scope="module")
def alone(pair: ModelPair) -> Engine:
    """The same engine, asked without a server."""
    return engine(pair, schedule=Fixed(4), session_bytes=0)


@pytest.fixture
def server(pair: ModelPair) -> Iterator[Running]:
    with running(engine(pair, schedule=Fixed(4), confidence=0.0)) as server:
        yield server


def test_an_answer_is_the_engines_own_streamed_or_not(server: Running, alone: Engine) -> None:
    client = server.openai()
    for seed in range(3):
        ask: dict[str, Any] = {
            "model": "random", "prompt": "seven plates to a tall man", "max_tokens": 30,
            "seed": seed, "logprobs": 2, "stop": ["zz"], "top_p": 0.9,
        }  # fmt: skip
        whole = client.completions.create(**ask)
        options = Options(
            max_new_tokens=30, temperature=1.0, top_p=0.9, seed=seed, stop=("zz",), logprobs=2
        )
        own = alone.generate(alone.encode(ask["prompt"]), options)
        assert whole.choices[0].text == own.text
        assert whole.choices[0].finish_reason == own.finish_reason
        assert whole.choices[0].logprobs.token_logprobs == pytest.approx(
            [each.logprob for each in own.logprobs], abs=1e-4
        )
        chunks = list(client.completions.create(**ask, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == own.text


def test_64_clients_at_once_each_get_their_own_answer(server: Running, alone: Engine) -> None:
    async def everybody() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
            asked = (
                client.completions.create(
                    model="random", prompt=f"{number} blue cups", temperature=0, max_tokens=4
                )
                for number in range(64)
            )
            return [done.choices[0].text for done in await asyncio.gather(*asked)]

    options = Options(max_new_tokens=4)
    for number, text in enumerate(asyncio.run(everybody())):
        assert text == alone.generate(alone.encode(f"{number} blue cups"), options).text


def test_aborted_requests_leave_no_cache_and_the_next_answer_is_right(
    pair: ModelPair, alone: Engine
) -> None:
    with running(engine(pair, schedule=Fixed(4), session_bytes=0)) as server:

        async def abort(client: httpx.AsyncClient, number: int) -> None:
            body = {
                "model": "random", "prompt": "a tall man " * 40, "max_tokens": 3000,
                "ignore_eos": True, "stream": bool(number % 2),
            }  # fmt: skip
            try:
                async with asyncio.timeout(0.02 * (number % 5) + 0.01):
                    async with client.stream("POST", "/v1/completions", json=body) as answer:
                        async for _ in answer.aiter_bytes():
                            pass
                raise AssertionError("was to be aborted")
            except TimeoutError:
                pass

        async def everybody() -> None:
            async with httpx.AsyncClient(base_url=server.url) as client:
                await asyncio.gather(*(abort(client, number) for number in range(40)))

        asyncio.run(everybody())
        until(lambda: not server.server.thread.busy, patience_s=5)
        assert server.metrics()["kvmap_live_cache_bytes"] == 0
        done = server.openai().completions.create(
            model="random", prompt="the blue cup", temperature=0, max_tokens=9
        )
        own = alone.generate(alone.encode("the blue cup"), Options(max_new_tokens=9))
        assert done.choices[0].text == own.text


def test_a_conversation_reuses_its_turns(server: Running) -> None:
    client, turns = server.openai(), list(TURNS)
    prompt = 0
    for _ in range(3):
        done = client.chat.completions.create(
            model="random", messages=turns, temperature=0, max_tokens=8
        )
        assert done.usage.prompt_tokens_details.cached_tokens >= prompt
        told = done.model_extra["kvmap"]
        parts = ("mapped_tokens", "repaired_tokens", "reused_tokens", "native_tokens")
        assert sum(told[part] for part in parts) == done.usage.prompt_tokens
        prompt = done.usage.prompt_tokens - 1
        turns += [done.choices[0].message, {"role": "user", "content": "and then?"}]
    assert server.metrics()["kvmap_live_cache_bytes"] > 0


def test_every_mode_answers(server: Running, alone: Engine) -> None:
    for mode in ("mapped", "target", "source"):
        done = server.openai().completions.create(
            model="random",
            prompt="a blue cup",
            temperature=0,
            max_tokens=6,
            extra_body={"mode": mode},
        )
        options = Options(max_new_tokens=6, mode=mode)
        assert done.choices[0].text == alone.generate(alone.encode("a blue cup"), options).text
