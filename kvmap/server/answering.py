"""One request for an answer, from its body to its last byte."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kvmap.evaluation.evidence import Evidence
from kvmap.runtime.answer import FinishReason, Piece, TokenLogprob
from kvmap.server.engine_thread import EngineThread
from kvmap.server.errors import APIError, Outcome, invalid, timed_out, unknown_model
from kvmap.server.formats import JSON, Format
from kvmap.server.job import Event, Job
from kvmap.server.metrics import Metrics
from kvmap.server.parameters import Parameters
from kvmap.server.reading import read_json, require_key
from kvmap.server.settings import ServerSettings
from kvmap.server.summary import Summary

GRACE_S = 1.0  # for telling a client that its time is up
DONE = b"data: [DONE]\n\n"
Gone = asyncio.Future[None]
"""Is done when the client has gone."""


class Endpoint(NamedTuple):
    """One of the two APIs."""

    path: str
    parameters: type[Parameters]
    format: type[Format]


@dataclass(frozen=True)
class Service:
    """What every request shares."""

    thread: EngineThread
    settings: ServerSettings
    metrics: Metrics
    evidence: Evidence | None = None


class Answering(Response):
    """Answers one request, whole or in a stream of server-sent events.

    It watches the connection all the while: when the client has gone, the job is abandoned, be it
    queued or running.

    Args:
        service: What every request shares.
        endpoint: Which API is spoken.
    """

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        super().__init__()
        self._service, self._endpoint = service, endpoint
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or tell why not; count how it ended."""
        settings = self._service.settings
        outcome: Outcome = "failed"
        try:
            try:
                async with asyncio.timeout(settings.timeout_s):
                    await self._answer(Request(scope, receive), send)
                    outcome = "completed"
            except TimeoutError:
                raise timed_out(settings.timeout_s) from None
        except ClientDisconnect:
            outcome = "aborted"
        except APIError as error:
            outcome = error.outcome
            await self._tell(error, scope, receive, send)
        finally:
            self._service.metrics.end(self._endpoint.path, outcome)

    async def _answer(self, request: Request, send: Send) -> None:
        thread, settings = self._service.thread, self._service.settings
        require_key(request, settings)
        served, encode, texts = thread.require()
        values = await read_json(request, settings.max_body_bytes)
        asked = self._endpoint.parameters.read(values)
        if asked.model != served.model:
            raise unknown_model(asked.model, served.model)
        if asked.mode == "mapped" and served.family is None:
            raise invalid("mode=mapped needs a mapper, and none is loaded", "mode")
        thread.require_place()
        prompt = await encode(asked)
        job = Job(prompt, asked.options(len(prompt), served.limit, settings.max_tokens))
        form = self._endpoint.format(served.model, texts, asked.asked_logprobs, asked.include_usage)
        headers = served.headers(asked.mode)
        gone = asyncio.ensure_future(_disconnect(request.receive))
        try:
            thread.submit(job)
            if asked.stream:
                await self._stream(job, gone, form, headers, send)
            else:
                whole = JSONResponse(await _whole(job, gone, form), headers=headers)
                self._begun = True
                await whole(request.scope, request.receive, send)
        finally:
            gone.cancel()
            thread.abandon(job)  # which changes nothing for one that has ended

    async def _stream(
        self, job: Job, gone: Gone, form: Format, headers: dict[str, str], send: Send
    ) -> None:
        event = await _next(job, gone)
        if isinstance(event, APIError):
            raise event  # nothing is sent yet, so that it gets its own status
        await self._begin(headers, send)
        await _say(form.opening(), send)
        reason: FinishReason | None = None
        while isinstance(event, Piece):
            reason = event.finish_reason
            await _say(form.grown(event.text, event.logprobs), send)
            event = await _next(job, gone)
        if isinstance(event, APIError):
            raise event
        assert reason is not None  # a summary follows a last piece
        await _say(form.closing(reason, event), send)
        await send({"type": "http.response.body", "body": DONE})

    async def _begin(self, headers: dict[str, str], send: Send) -> None:
        told = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # proxies would collect the events
            **headers,
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in told.items()]
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _tell(self, error: APIError, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an error: as a response, or as an event if the response has begun."""
        if not self._begun:
            await error_response(error)(scope, receive, send)
            return
        with suppress(TimeoutError):  # a client that does not read is left alone
            async with asyncio.timeout(GRACE_S):
                await _say([error.body()], send)
                await send({"type": "http.response.body", "body": b""})


def error_response(error: APIError) -> JSONResponse:
    """An error as a response of its own."""
    return JSONResponse(error.body(), error.status, error.headers)


async def _whole(job: Job, gone: Gone, form: Format) -> JSON:
    """Wait for all of an answer."""
    text, reason = "", None
    logprobs: list[TokenLogprob] = []
    while not isinstance(event := await _next(job, gone), Summary):
        if isinstance(event, APIError):
            raise event
        text += event.text
        logprobs += event.logprobs
        reason = event.finish_reason
    assert reason is not None  # a summary follows a last piece
    return form.whole(text, logprobs, reason, event)


async def _next(job: Job, gone: Gone) -> Event:
    """A job's next event.

    Raises:
        ClientDisconnect: Nobody waits for it any more.
    """
    coming = asyncio.ensure_future(job.next())
    either: set[asyncio.Future[Any]] = {coming, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientDisconnect
        return coming.result()
    finally:
        coming.cancel()


async def _say(chunks: list[JSON], send: Send) -> None:
    """Send chunks as server-sent events."""
    if not chunks:
        return
    lines = (json.dumps(chunk, ensure_ascii=False, separators=(",", ":")) for chunk in chunks)
    body = "".join(f"data: {line}\n\n" for line in lines).encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnect(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
