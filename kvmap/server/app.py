"""The application: its routes, and what they share."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from kvmap.server.answering import Answering, Endpoint, Service, error_response
from kvmap.server.chat_parameters import ChatParameters
from kvmap.server.completion_parameters import CompletionParameters
from kvmap.server.errors import APIError, failed, unknown_model
from kvmap.server.formats import ChatFormat, CompletionFormat
from kvmap.server.reading import require_key
from kvmap.server.summary import Served

ENDPOINTS = (
    Endpoint("/v1/completions", CompletionParameters, CompletionFormat),
    Endpoint("/v1/chat/completions", ChatParameters, ChatFormat),
)
STOP_S = 5.0  # for the round that runs when the server ends


def create_app(service: Service) -> FastAPI:
    """The HTTP application; it starts and stops the engine thread.

    Args:
        service: The thread, not yet started, and what else requests share.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        yield
        service.thread.stop(STOP_S)

    # No pages of documentation: they would load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, openapi_url=None)
    created = int(time.time())
    for endpoint in ENDPOINTS:
        _add_endpoint(app, service, endpoint)
    _add_errors(app)

    @app.get("/health")
    async def health() -> Response:
        """Whether the process lives."""
        return PlainTextResponse("ok")

    @app.get("/ready")
    async def ready() -> Response:
        """Whether prompts are answered: models loaded, self-test passed, not shutting down."""
        service.thread.require()
        return PlainTextResponse("ready")

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type=service.metrics.content_type)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The one model."""
        require_key(request, service.settings)
        return JSONResponse(
            {"object": "list", "data": [_model(service, service.thread.require().served, created)]}
        )

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        """The one model, by its name."""
        require_key(request, service.settings)
        served = service.thread.require().served
        if name != served.model:
            raise unknown_model(name, served.model)
        return JSONResponse(_model(service, served, created))

    return app


def _model(service: Service, served: Served, created: int) -> dict[str, Any]:
    return {
        "id": served.model,
        "object": "model",
        "created": created,
        "owned_by": "kvmap",
        "max_model_len": served.limit,
        "kvmap": {
            "pair": served.pair,
            "mode": served.mode,
            "mapper": served.mapper,
            "family": served.family,
            "evidence": asdict(service.evidence) if service.evidence is not None else None,
        },
    }


def _add_endpoint(app: FastAPI, service: Service, endpoint: Endpoint) -> None:
    @app.post(endpoint.path)
    async def answer() -> Response:
        return Answering(service, endpoint)


def _add_errors(app: FastAPI) -> None:
    """Give every error, also those of routing and of our own, OpenAI's form."""

    @app.exception_handler(APIError)
    async def told(_: Request, error: APIError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def routed(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers or {})
        return error_response(APIError(error.status_code, message, headers=headers))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return error_response(failed())
