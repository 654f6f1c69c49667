"""The server as OpenAI's own client meets it."""

import json
import math
from collections.abc import Iterator

import pytest
from conftest import make_tokenizer
from fake_engine import DIGEST, FakeEngine
from openai import OpenAI
from serving import Running, running

from kvmap.runtime.answer import TokenLogprob
from kvmap.runtime.options import Options
from kvmap.server.chat_template import plain
from kvmap.server.messages import Message

PROMPT = "the red door of the old house"
TURNS = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a blue cup?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(FakeEngine(make_tokenizer())) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> OpenAI:
    return server.openai()


def ids(server: Running, text: str) -> list[int]:
    return server.engine.tokenizer(text)["input_ids"]


def expected(server: Running, text: str, **options: object) -> str:
    return server.engine.expect(ids(server, text), Options(**options))


def chat_text() -> str:
    return plain([Message.model_validate(turn) for turn in TURNS])


def test_the_model_is_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "kvmap"


def test_a_completion_is_the_engines_answer(server: Running, client: OpenAI) -> None:
    done = client.completions.create(model="fake", prompt=PROMPT, temperature=0, max_tokens=20)
    assert done.object == "text_completion"
    assert done.choices[0].text == expected(server, PROMPT, max_new_tokens=20)
    assert done.choices[0].finish_reason in ("stop", "length")
    assert done.choices[0].logprobs is None
    assert done.usage is not None
    assert done.usage.prompt_tokens == len(ids(server, PROMPT))
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens_details is not None
    assert done.usage.prompt_tokens_details.cached_tokens == 0


def test_token_ids_are_a_prompt_as_their_text_is(server: Running, client: OpenAI) -> None:
    forms = (PROMPT, [PROMPT], ids(server, PROMPT), [ids(server, PROMPT)])
    texts = {
        client.completions.create(model="fake", prompt=form, temperature=0).choices[0].text
        for form in forms
    }
    assert texts == {expected(server, PROMPT, max_new_tokens=16)}  # OpenAI's default length


def test_a_streamed_completion_joins_to_the_whole(server: Running, client: OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="fake", prompt=PROMPT, temperature=0, max_tokens=40, stream=True
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == expected(server, PROMPT, max_new_tokens=40)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] in ("stop", "length")
    assert not any(reasons[:-1])
    assert all(chunk.usage is None for chunk in chunks)


def test_a_chat_is_answered_through_the_template(server: Running, client: OpenAI) -> None:
    done = client.chat.completions.create(
        model="fake", messages=TURNS, temperature=0, max_completion_tokens=12
    )
    message = done.choices[0].message
    assert message.role == "assistant"
    assert message.content == expected(server, chat_text(), max_new_tokens=12)
    assert done.object == "chat.completion"


def test_a_streamed_chat_has_the_role_first_one_reason_and_the_usage_last(
    server: Running, client: OpenAI
) -> None:
    chunks = list(
        client.chat.completions.create(
            model="fake",
            messages=TURNS,
            temperature=0,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *parts, usage = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert all(part.choices[0].delta.role is None for part in parts[1:])
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == expected(server, chat_text(), max_new_tokens=30)
    assert sum(part.choices[0].finish_reason is not None for part in parts) == 1
    assert parts[-1].choices[0].finish_reason in ("stop", "length")
    assert parts[-1].choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.prompt_tokens == len(ids(server, chat_text()))
    assert all(part.usage is None for part in parts)
    assert "kvmap" not in (parts[-1].model_extra or {})
    assert usage.model_extra["kvmap"]["mapper"] == DIGEST


def test_a_chat_without_a_length_gets_what_fits() -> None:
    with running(FakeEngine(make_tokenizer(), limit=100), max_tokens=10_000) as server:
        done = server.openai().chat.completions.create(
            model="fake", messages=TURNS, temperature=0, extra_body={"ignore_eos": True}
        )
        assert done.choices[0].finish_reason == "length"
        assert done.usage is not None
        assert done.usage.total_tokens == 100


def test_an_answer_says_which_mapper_and_what_became_of_the_prompt(
    server: Running, client: OpenAI
) -> None:
    raw = client.completions.with_raw_response.create(
        model="fake", prompt=PROMPT, max_tokens=30, extra_body={"ignore_eos": True}
    )
    assert raw.headers["x-kvmap-mapper"] == DIGEST
    assert raw.headers["x-kvmap-family"] == "ridge"
    told = raw.parse().model_extra["kvmap"]
    count = len(ids(server, PROMPT))
    assert told["mapper"] == DIGEST
    assert told["family"] == "ridge"
    assert told["mapped_tokens"] + told["repaired_tokens"] + told["reused_tokens"] == count
    assert told["acceptance_rate"] == pytest.approx(2 / 3)
    assert told["fell_back"] is False


@pytest.mark.parametrize("mode", ["target", "source"])
def test_a_mode_without_the_mapper_names_none(client: OpenAI, mode: str) -> None:
    raw = client.completions.with_raw_response.create(
        model="fake", prompt=PROMPT, extra_body={"mode": mode}
    )
    assert "x-kvmap-mapper" not in raw.headers
    told = raw.parse().model_extra["kvmap"]
    assert (told["mode"], told["mapper"], told["mapped_tokens"]) == (mode, None, 0)


def test_a_finish_chunk_carries_the_kvmap_object(server: Running) -> None:
    body = {"model": "fake", "prompt": PROMPT, "stream": True}
    with server.http() as http:
        lines = http.post("/v1/completions", json=body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert [chunk["choices"][0]["finish_reason"] is not None for chunk in chunks] == [
        "kvmap" in chunk for chunk in chunks
    ]
    assert "usage" not in chunks[-1]


def test_a_seed_decides_and_none_draws_one(client: OpenAI) -> None:
    def ask(**more: int) -> str:
        done = client.completions.create(model="fake", prompt=PROMPT, max_tokens=12, **more)
        return done.choices[0].text

    assert ask(seed=1) == ask(seed=1)
    assert len({ask(seed=1), ask(seed=2), ask(), ask()}) == 4  # temperature 1 is the default


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_before_them(
    server: Running, client: OpenAI, stream: bool
) -> None:
    whole = expected(server, PROMPT, max_new_tokens=40)
    stop = whole[9:12]
    done = client.completions.create(
        model="fake", prompt=PROMPT, temperature=0, max_tokens=40, stop=[stop], stream=stream
    )
    if stream:
        chunks = list(done)
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole[: whole.find(stop)]
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert done.choices[0].text == whole[: whole.find(stop)]
        assert done.choices[0].finish_reason == "stop"


def test_stop_tokens_and_least_tokens_reach_the_engine(server: Running, client: OpenAI) -> None:
    prompt = ids(server, PROMPT)
    third = server.engine.token(prompt, Options(), 2)
    for least, count in ((0, 3), (4, 20)):
        done = client.completions.create(
            model="fake",
            prompt=prompt,
            temperature=0,
            max_tokens=20,
            extra_body={"stop_token_ids": [third], "min_tokens": least, "ignore_eos": True},
        )
        assert done.usage is not None
        assert done.usage.completion_tokens == count


def test_completion_logprobs_name_the_chosen_token_and_the_likeliest(client: OpenAI) -> None:
    whole = client.completions.create(
        model="fake", prompt=PROMPT, temperature=0, max_tokens=8, logprobs=2
    )
    found = whole.choices[0].logprobs
    assert found is not None
    count = whole.usage.completion_tokens
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == count
    for token, logprob, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[token] == logprob == -0.5
        assert len(top) == 2
    assert found.text_offset[0] == 0
    chunks = client.completions.create(
        model="fake", prompt=PROMPT, temperature=0, max_tokens=8, logprobs=2, stream=True
    )
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [token for part in parts for token in part.tokens] == found.tokens
    assert [offset for part in parts for offset in part.text_offset] == found.text_offset


def test_chat_logprobs_hold_each_tokens_bytes(server: Running, client: OpenAI) -> None:
    ask = {"model": "fake", "messages": TURNS, "temperature": 0, "max_tokens": 25}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    content = whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens
    assert all(len(each.top_logprobs) == 3 for each in content)
    end = server.engine.tokenizer.eos_token
    said = b"".join(bytes(each.bytes) for each in content if each.token != end)
    assert said.decode(errors="replace") == whole.choices[0].message.content
    chunks = client.chat.completions.create(**ask, logprobs=True, stream=True)
    parts = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert [each.token for part in parts for each in part] == [each.token for each in content]
    assert all(each.top_logprobs == [] for part in parts for each in part)
    without = client.chat.completions.create(**ask)
    assert without.choices[0].logprobs is None


def test_a_token_without_probability_has_a_number_that_json_knows() -> None:
    class Never(FakeEngine):
        def _logprobs(self, tokens: list[int], options: Options) -> list[TokenLogprob]:
            return [TokenLogprob(token, -math.inf, ((token, -math.inf),)) for token in tokens]

    with running(Never(make_tokenizer())) as server:
        client = server.openai()
        done = client.completions.create(model="fake", prompt="a", max_tokens=1, logprobs=1)
        assert done.choices[0].logprobs.token_logprobs == [-9999.0]
        said = client.chat.completions.create(
            model="fake", messages=TURNS, max_tokens=1, logprobs=True, top_logprobs=1
        )
        assert said.choices[0].logprobs.content[0].top_logprobs[0].logprob == -9999.0


def test_values_that_ask_for_nothing_are_accepted(client: OpenAI) -> None:
    client.completions.create(
        model="fake",
        prompt=PROMPT,
        n=1,
        best_of=1,
        echo=False,
        suffix=None,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        user="someone",
        stop=None,
        seed=None,
        logprobs=None,
    )
    client.chat.completions.create(
        model="fake",
        messages=TURNS,
        max_tokens=2,
        tools=None,
        response_format={"type": "text"},
        logit_bias=None,
    )


def test_an_answer_can_be_sent_back_as_a_turn_and_is_reused() -> None:
    with running(FakeEngine(make_tokenizer(), keep=True)) as server:
        client, turns = server.openai(), list(TURNS)
        first = client.chat.completions.create(model="fake", messages=turns, max_tokens=9, seed=5)
        turns += [first.choices[0].message, {"role": "user", "content": "and the keys?"}]
        second = client.chat.completions.create(model="fake", messages=turns, max_tokens=9)
        assert second.usage is not None
        reused = second.usage.prompt_tokens_details.cached_tokens
        assert reused >= first.usage.prompt_tokens
        assert second.model_extra["kvmap"]["reused_tokens"] == reused


def test_text_parts_and_the_developer_role_are_the_same_message(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "a blue "}, {"type": "text", "text": "cup?"}]
    same = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    said = {
        client.chat.completions.create(
            model="fake", messages=messages, temperature=0, max_tokens=9
        ).choices[0].message.content
        for messages in (TURNS, same)
    }  # fmt: skip
    assert len(said) == 1


def test_the_plain_template_is_a_prefix_of_its_next_turn() -> None:
    turns = [Message(role="user", content="one\n")]
    answer = " two\n\nuser\n"
    later = [*turns, Message(role="assistant", content=answer), Message(role="user", content="3")]
    assert plain(later).startswith(plain(turns) + answer)


def test_a_tokenizers_own_template_is_used() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    )
    with running(FakeEngine(tokenizer)) as server:
        ask = {"model": "fake", "temperature": 0, "max_tokens": 7}
        done = server.openai().chat.completions.create(**ask, messages=TURNS[1:])
        said = expected(server, "<a blue cup?>:", max_new_tokens=7)
        assert done.choices[0].message.content == said
        with server.http() as http:
            refused = http.post("/v1/chat/completions", json={**ask, "messages": TURNS})
        assert refused.status_code == 400
        assert "no system" in refused.json()["error"]["message"]
        assert refused.json()["error"]["param"] == "messages"
