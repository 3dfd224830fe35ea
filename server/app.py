"""The ASGI application: routes, errors in the dialect's shape, identity and keys around them.

Never a function-style HTTP middleware: those hide disconnects from what they wrap.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import EngineError
from engine.loading import Engine
from server.admin import admin_routes
from server.auth import ApiKeys
from server.config import ServerConfig
from server.delivery import ClientGoneError, RequestIdentity, identity_headers
from server.handler import Handler
from server.openapi import complete
from server.routes import embedding_routes, generation_routes, model_routes, operation_routes, stream_routes
from server.wire.errors import ErrorFacts, WireError, facts_of
from server.wire.openai_errors import error_body

logger = logging.getLogger(__name__)


def create_app(engine: Engine, config: ServerConfig) -> FastAPI:
    """The application; its lifespan starts and closes the engine."""
    handler = Handler(engine, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.handler = handler
        await engine.core.start()
        try:
            yield
        finally:
            await engine.core.close()
            await handler.grammars.close()
            if handler.audit is not None:
                await asyncio.to_thread(handler.audit.close)

    app = FastAPI(title="tailrace", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.handler = handler
    app.include_router(generation_routes(handler))
    app.include_router(embedding_routes(handler))
    app.include_router(stream_routes(handler))
    app.include_router(model_routes(handler, int(time.time())))
    app.include_router(operation_routes(handler))
    app.include_router(admin_routes(handler))
    complete(app)
    for kind in (EngineError, WireError, HTTPException, ClientGoneError):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(Exception, _answer_crash)
    app.add_middleware(_KeyCheck, keys=ApiKeys(config))
    if config.cors_origins:  # around the key's check: a preflight brings no key, and a page may read a 401
        app.add_middleware(CORSMiddleware, **_cross_origin(config.cors_origins))
    app.add_middleware(RequestIdentity)
    return app


class _KeyCheck:
    """Plain ASGI middleware: no key, no further. A request's key is known from here on under `state.api_key`."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            try:
                scope["state"]["api_key"] = self._keys.check(scope["path"], Headers(scope=scope))
            except WireError as error:
                app = _error_response(facts_of(error))
        await app(scope, receive, send)


def _cross_origin(origins: Sequence[str]) -> dict[str, Any]:
    """What pages of these origins may do: call with a key in a header. Cookies are not used, and so not let in.

    Any header may be sent: the SDKs add some of their own with every version, and none but the key says who one is.
    """
    return {
        "allow_origins": origins,
        "allow_methods": ("GET", "POST"),
        "allow_headers": ("*",),
        "expose_headers": ("x-request-id", "request-id", "retry-after"),
    }


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientGoneError):
        return Response(status_code=499)
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _error_response(ErrorFacts(error.status_code, message, _code_of(error.status_code)), error.headers)
    facts = facts_of(error)
    if facts.status == 500:
        fields = {"request_id": request.state.request_id}
        trace = None if isinstance(error, EngineError) else error  # the engine has logged its own faults once
        logger.error("request failed: %s", error, exc_info=trace, extra={"fields": fields})
    draining = request.app.state.handler.admission.draining
    return _error_response(facts, {"connection": "close"} if draining else None)


async def _answer_crash(request: Request, error: Exception) -> Response:
    """For what nobody foresaw: runs outside of the middleware that stamps the request's id, and so stamps it itself."""
    response = await _answer_error(request, error)
    response.headers.update(identity_headers(request.state.request_id))
    return response


def _code_of(status: int) -> str:
    return {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")


def _error_response(facts: ErrorFacts, headers: object = None) -> Response:
    """OpenAI's error object; a refusal that may pass says when to come back."""
    response = Response(error_body(facts), status_code=facts.status, media_type="application/json")
    if isinstance(headers, dict):
        response.headers.update(headers)
    if facts.retry_after is not None:
        response.headers["retry-after"] = str(math.ceil(facts.retry_after))
    if facts.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
