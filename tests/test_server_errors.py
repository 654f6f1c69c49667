"""What the server refuses, and how it says so."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from conftest import make_tokenizer
from fake_engine import BrokenEngine, FakeEngine
from serving import Running, running, until

from kvmap.errors import KVMapError
from kvmap.server.run import listen, serve
from kvmap.server.settings import ServerSettings

LIMIT = 60
COMPLETION = {"model": "fake", "prompt": "the red door"}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "the red door"}]}
JSON = {"content-type": "application/json"}
MISSING = "missing_required_parameter"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    engine = FakeEngine(make_tokenizer(), limit=LIMIT)
    with running(engine, max_body_bytes=20_000) as server:
        yield server
        done = httpx.post(f"{server.url}/v1/completions", json=COMPLETION)
        assert done.status_code == 200  # no refusal above has harmed it


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refusal, which has OpenAI's form and nothing beside."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


def messages(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


BOTH = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 10**30}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": 7}, "stop"),
    ({"stop_token_ids": "7"}, "stop_token_ids"),
    ({"stop_token_ids": [7.5]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"mode": "magic"}, "mode"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"shout": True}}, "stream_options.shout"),
    ({"stream": True, "stream_options": 5}, "stream_options"),
    ({"user": 7}, "user"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": -1}, "frequency_penalty"),
    ({"logit_bias": {"7": 1}}, "logit_bias"),
    ({"best_of": 2}, "best_of"),
    ({"guided_json": {}}, "guided_json"),
    ({"model": 7}, "model"),
    ({"model": None}, "model"),
]
COMPLETIONS = [
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [10**400]}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"messages": []}, "messages"),
]
CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "pirate", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (messages(None), "messages[0].content"),
    (messages(7), "messages[0].content"),
    (messages([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content"),
    (messages(["a"]), "messages[0].content"),
    (messages("a", tool_calls=[{}]), "messages[0].tool_calls"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"prompt": "a"}, "prompt"),
]
CASES = [
    *(("/v1/completions", {**COMPLETION, **more}, param) for more, param in BOTH + COMPLETIONS),
    *(("/v1/chat/completions", {**CHAT, **more}, param) for more, param in BOTH + CHATS),
]


@pytest.mark.parametrize(("path", "body", "param"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES])
def test_a_wrong_parameter_is_named(
    server: Running, path: str, body: dict[str, Any], param: str
) -> None:
    error = refused(httpx.post(server.url + path, content=json.dumps(body), headers=JSON), 400)
    assert error["type"] == "invalid_request_error"
    assert error["code"] in {"invalid_value", "unknown_parameter", "unsupported_parameter", MISSING}
    assert error["param"] == param
    assert param.split("[")[0] in error["message"]
    assert not re.search("Traceback|Message|StreamOptions", error["message"])


@pytest.mark.parametrize(
    ("path", "needed"), [("/v1/completions", "prompt"), ("/v1/chat/completions", "messages")]
)
def test_what_is_missing_is_named(server: Running, path: str, needed: str) -> None:
    for body, param in (({"model": "fake"}, needed), ({needed: "a"}, "model")):
        assert refused(httpx.post(server.url + path, json=body), 400)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b'{"model": "fake",}', b"[]", b'"a"', b"null", b"\xff\xfe", b'{"a": NaN}',
        b'{"prompt": "\\ud800"}', b'{"\\udfff": 1}', b"[" * 15_000,
        b'{"seed": ' + b"9" * 9_000 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(server: Running, body: bytes) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", content=body, headers=JSON)
    assert "body" in refused(answer, 400)["message"]


def test_a_body_of_another_type_is_refused(server: Running) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", content=b"a=b")
    assert "application/json" in refused(answer, 415)["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_refused(server: Running, chunked: bool) -> None:
    body = json.dumps({**COMPLETION, "prompt": "a" * 30_000}).encode()
    content = iter([body[:9000], body[9000:]]) if chunked else body
    answer = httpx.post(f"{server.url}/v1/completions", content=content, headers=JSON)
    assert refused(answer, 413)["code"] == "body_too_large"


def test_a_prompt_of_megabytes_is_within_the_default_limit() -> None:
    with running(FakeEngine(make_tokenizer(), limit=LIMIT)) as server:
        body = {**COMPLETION, "prompt": [5] * 1_000_000}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=20)
        assert "1000000 tokens" in refused(answer, 400)["message"]


def test_a_prompt_beyond_the_models_names_both_lengths(server: Running) -> None:
    for more, others in (({"max_tokens": 58}, "58"), ({"prompt": [5] * 61}, "61")):
        answer = httpx.post(f"{server.url}/v1/completions", json={**COMPLETION, **more})
        error = refused(answer, 400)
        assert error["code"] == "context_length_exceeded"
        assert others in error["message"]
        assert str(LIMIT) in error["message"]


def test_a_prompt_that_just_fits_is_answered(server: Running) -> None:
    for prompt, more in (([5] * (LIMIT - 1), {}), ([5] * (LIMIT - 8), {"max_tokens": 8})):
        body = {**COMPLETION, "prompt": prompt, "ignore_eos": True, **more}
        done = httpx.post(f"{server.url}/v1/completions", json=body)
        assert done.json()["usage"]["total_tokens"] == LIMIT


def test_another_model_is_not_found(server: Running) -> None:
    error = refused(
        httpx.post(f"{server.url}/v1/completions", json={**COMPLETION, "model": "x"}), 404
    )
    assert error["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="this server has fake"):
        server.openai().models.retrieve("gpt-4")


def test_unknown_paths_and_methods_have_the_same_form(server: Running) -> None:
    assert "/v1/embeddings" in refused(httpx.post(f"{server.url}/v1/embeddings"), 404)["message"]
    answer = httpx.get(f"{server.url}/v1/completions")
    assert "GET" in refused(answer, 405)["message"]
    assert answer.headers["allow"] == "POST"


def test_openais_client_raises_its_own_errors(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().completions.create(model="fake", prompt="a", n=3)
    assert caught.value.param == "n"


def test_a_defect_is_500_and_the_next_answer_is_right(server: Running) -> None:
    server.engine.fault = RuntimeError("out of memory")
    error = refused(httpx.post(f"{server.url}/v1/completions", json=COMPLETION), 500)
    assert error["type"] == "server_error"
    assert "memory" not in error["message"]
    assert httpx.post(f"{server.url}/v1/completions", json=COMPLETION).status_code == 200
    until(lambda: not server.engine.still_held)  # the engine lets go just after the answer left


def test_a_defect_in_a_stream_is_an_event_and_no_done() -> None:
    engine = FakeEngine(make_tokenizer(), delay=0.02)
    with running(engine) as server:
        stream = server.openai().completions.create(
            model="fake", prompt="a", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        engine.fault = RuntimeError("out of memory")
        with pytest.raises(openai.APIError, match="failed on this request"):
            list(stream)
        assert server.metrics()["kvmap_requests_total /v1/completions failed"] == 1


def test_a_key_is_asked_for_where_one_is_set() -> None:
    with running(FakeEngine(make_tokenizer()), api_key="sécret") as server:
        for key in (None, "Bearer wrong", "Bearer", "Basic sécret", "Bearer sécret2"):
            headers = {"authorization": key.encode()} if key else {}
            for answer in (
                httpx.post(f"{server.url}/v1/completions", json=COMPLETION, headers=headers),
                httpx.get(f"{server.url}/v1/models", headers=headers),
            ):
                assert refused(answer, 401)["code"] == "invalid_api_key"
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/metrics").status_code == 200
    with running(FakeEngine(make_tokenizer()), api_key="secret") as server:
        assert server.openai("secret").models.list().data
        with pytest.raises(openai.AuthenticationError):
            server.openai("wrong").models.list()


def test_without_a_mapper_the_mapped_mode_is_refused() -> None:
    with running(FakeEngine(make_tokenizer(), mapped=False)) as server:
        body = {**COMPLETION, "mode": "mapped"}
        assert (
            refused(httpx.post(f"{server.url}/v1/completions", json=body), 400)["param"] == "mode"
        )
        done = httpx.post(f"{server.url}/v1/completions", json=COMPLETION).json()
        assert done["kvmap"]["mapper"] is None


def test_it_is_ready_only_after_the_self_test() -> None:
    engine = FakeEngine(make_tokenizer(), test_delay=0.4)
    with running(engine, wait=False) as server:
        until(lambda: server.server.started)
        assert httpx.get(f"{server.url}/health").status_code == 200
        refused(httpx.get(f"{server.url}/ready"), 503)
        refused(httpx.post(f"{server.url}/v1/completions", json=COMPLETION), 503)
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
        assert httpx.post(f"{server.url}/v1/completions", json=COMPLETION).status_code == 200


def test_an_engine_that_fails_its_self_test_is_not_served() -> None:
    with pytest.raises(KVMapError, match="not faithful"):
        serve(lambda: BrokenEngine(make_tokenizer()), ServerSettings(port=0))


def test_a_port_in_use_is_one_sentence() -> None:
    taken = listen(ServerSettings(port=0))
    with taken, pytest.raises(KVMapError, match=r"in use; choose another with server\.port="):
        serve(lambda: FakeEngine(make_tokenizer()), ServerSettings(port=taken.getsockname()[1]))
    with pytest.raises(KVMapError, match="cannot be listened on"):
        listen(ServerSettings(host="198.51.100.1"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1), ("port", 65536), ("queue", -1), ("timeout_s", 0), ("drain_s", -1),
        ("max_body_bytes", 0), ("max_tokens", 0), ("api_key", ""), ("model", ""),
        ("api_key", 7), ("model", 7), ("port", "http"), ("timeout_s", "long"), ("host", ""),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(name: str, value: object) -> None:
    with pytest.raises(KVMapError, match=f"server.{name}"):
        ServerSettings(**{name: value})


def test_the_key_is_not_shown_with_the_settings() -> None:
    assert "hush" not in repr(ServerSettings(api_key="hush"))
