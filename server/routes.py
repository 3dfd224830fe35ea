"""The routes: which path calls what. Never any logic of a request: the handler has it."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from engine.detokenizer import IncrementalDetokenizer
from engine.prompt.answer_plan import told
from server.handler import INLINE_BODY_BYTES, Handler, key_of
from server.openapi import OF_A_BODY, OF_A_KEY, OF_AN_ANSWER, body_of, errors, events, texts
from server.threads import off_the_loop
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.door import parse_body
from server.wire.errors import WireError
from server.wire.tokenization import DetokenizeRequest, TokenizeRequest


def generation_routes(handler: Handler) -> APIRouter:
    """OpenAI's Chat Completions and Completions."""
    stream = events("The whole answer, or with `stream` its events")
    router = APIRouter(responses=stream | errors(*OF_AN_ANSWER))

    @router.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await handler.generate(request, ChatRequest)

    @router.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await handler.generate(request, CompletionRequest)

    return router


def embedding_routes(handler: Handler) -> APIRouter:
    """OpenAI's Embeddings, which clients of chat models ask for too: told why there are none."""
    router = APIRouter()

    any_object = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}

    @router.post("/v1/embeddings", status_code=400, responses=errors(*OF_A_BODY), openapi_extra=any_object)
    async def embeddings(request: Request) -> Response:
        await handler.body(request)
        message = f"{handler.engine.model_name!r} generates text: no engine of this server makes embeddings"
        raise WireError(400, message, code="no_embeddings", param="model")

    return router


def model_routes(handler: Handler, created: int) -> APIRouter:
    """What is served, and its tokenizer."""
    router = APIRouter(responses=errors(*OF_A_KEY))
    engine = handler.engine

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": handler.models.cards(created)}

    @router.get("/v1/models/{model_id:path}", responses=errors(404))
    async def model(model_id: str) -> dict[str, Any]:
        return handler.models.card(handler.models.adapter(model_id), created)

    @router.post("/tokenize", openapi_extra=body_of(TokenizeRequest), responses=errors(*OF_A_BODY))
    async def tokenize(request: Request) -> dict[str, Any]:
        body = await handler.body(request)
        asked = parse_body(TokenizeRequest, body)
        handler.models.adapter(asked.model)
        source = asked.source()
        if isinstance(source, str):
            encode = partial(engine.tokenizer.encode, source, add_special_tokens=asked.add_special_tokens)
        else:
            encode = partial(engine.renderer.encode, told(source, engine.families, engine.renderer))
        tokens = await off_the_loop(len(body) > INLINE_BODY_BYTES, encode)
        return {"count": len(tokens), "max_model_len": engine.limits.context_length, "tokens": tokens}

    @router.post("/detokenize", openapi_extra=body_of(DetokenizeRequest), responses=errors(*OF_A_BODY))
    async def detokenize(request: Request) -> dict[str, Any]:
        asked = parse_body(DetokenizeRequest, await handler.body(request))
        handler.models.adapter(asked.model)
        detokenizer = IncrementalDetokenizer(engine.core.vocabulary, skip_special_tokens=False)
        return {"prompt": detokenizer.push(asked.tokens) + detokenizer.finish()}

    return router


def stream_routes(handler: Handler) -> APIRouter:
    """A request under its response's id, while it runs and for a while after."""
    router = APIRouter(responses=errors(*OF_A_KEY))

    @router.get("/v1/streams")
    async def streams(request: Request) -> dict[str, Any]:
        return {"object": "list", "data": handler.requests.open_records(key_of(request))}

    @router.get("/v1/usage/{response_id}", responses=errors(404))
    async def usage(response_id: str, request: Request) -> dict[str, Any]:
        return handler.requests.usage(response_id, key_of(request))

    @router.post("/v1/streams/{response_id}/cancel", responses=errors(404))
    async def cancel(response_id: str, request: Request) -> dict[str, Any]:
        return handler.requests.cancel(response_id, key_of(request))

    return router


def operation_routes(handler: Handler) -> APIRouter:
    """For load balancers and Prometheus. Their HEAD goes without saying: the document has what GET is for."""
    router = APIRouter()

    @router.get("/health")
    @router.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/ready", responses={503: {"description": "Takes no requests, and why", "model": dict[str, str]}})
    @router.api_route("/ready", methods=["GET", "HEAD"], include_in_schema=False)
    async def ready() -> JSONResponse:
        core = handler.engine.core
        if handler.admission.ready:
            return JSONResponse({"status": "ready"})
        reason = "draining" if handler.admission.draining else core.failure or core.paused or "starting"
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    exposition = texts("text/plain", "application/openmetrics-text", description="Prometheus's metrics")

    @router.get("/metrics", response_class=PlainTextResponse, responses=exposition)
    async def metrics(request: Request) -> Response:
        body, content_type = handler.metrics.exposition(request.headers.get("accept"))
        return Response(body, media_type=content_type)

    return router
