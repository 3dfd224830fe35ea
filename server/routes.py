"""The routes: which path calls what. Never any logic of a request: the handler has it."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from engine.detokenizer import IncrementalDetokenizer
from server.handler import INLINE_BODY_BYTES, Handler, key_of
from server.threads import off_the_loop
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.door import parse_body
from server.wire.errors import WireError
from server.wire.tokenization import DetokenizeRequest, TokenizeRequest


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    """A route's documented body: it is validated by the door, which answers in the dialect's shape."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def generation_routes(handler: Handler) -> APIRouter:
    """OpenAI's Chat Completions and Completions."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=_body_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await handler.generate(request, ChatRequest)

    @router.post("/v1/completions", openapi_extra=_body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await handler.generate(request, CompletionRequest)

    @router.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        await handler.body(request)
        message = f"{handler.engine.model_name!r} generates text: no engine of this server makes embeddings"
        raise WireError(400, message, code="no_embeddings", param="model")

    return router


def model_routes(handler: Handler, created: int) -> APIRouter:
    """What is served, and its tokenizer."""
    router = APIRouter()
    engine = handler.engine

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": handler.models.cards(created)}

    @router.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        return handler.models.card(handler.models.adapter(model_id), created)

    @router.post("/tokenize", openapi_extra=_body_of(TokenizeRequest))
    async def tokenize(request: Request) -> dict[str, Any]:
        body = await handler.body(request)
        asked = parse_body(TokenizeRequest, body)
        handler.models.adapter(asked.model)
        source = asked.source()
        if isinstance(source, str):
            encode = partial(engine.tokenizer.encode, source, add_special_tokens=asked.add_special_tokens)
        else:
            encode = partial(engine.renderer.encode, source)
        tokens = await off_the_loop(len(body) > INLINE_BODY_BYTES, encode)
        return {"count": len(tokens), "max_model_len": engine.limits.context_length, "tokens": tokens}

    @router.post("/detokenize", openapi_extra=_body_of(DetokenizeRequest))
    async def detokenize(request: Request) -> dict[str, Any]:
        asked = parse_body(DetokenizeRequest, await handler.body(request))
        handler.models.adapter(asked.model)
        detokenizer = IncrementalDetokenizer(engine.core.vocabulary, skip_special_tokens=False)
        return {"prompt": detokenizer.push(asked.tokens) + detokenizer.finish()}

    return router


def stream_routes(handler: Handler) -> APIRouter:
    """A request under its response's id, while it runs and for a while after."""
    router = APIRouter()

    @router.get("/v1/streams")
    async def streams(request: Request) -> dict[str, Any]:
        return {"object": "list", "data": handler.requests.open_records(key_of(request))}

    @router.get("/v1/usage/{response_id}")
    async def usage(response_id: str, request: Request) -> dict[str, Any]:
        return handler.requests.usage(response_id, key_of(request))

    @router.post("/v1/streams/{response_id}/cancel")
    async def cancel(response_id: str, request: Request) -> dict[str, Any]:
        return handler.requests.cancel(response_id, key_of(request))

    return router


def operation_routes(handler: Handler) -> APIRouter:
    """For load balancers and Prometheus."""
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @router.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> JSONResponse:
        core = handler.engine.core
        if handler.admission.ready:
            return JSONResponse({"status": "ready"})
        reason = "draining" if handler.admission.draining else core.failure or core.paused or "starting"
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        body, content_type = handler.metrics.exposition(request.headers.get("accept"))
        return Response(body, media_type=content_type)

    return router
