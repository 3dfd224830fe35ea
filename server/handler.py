"""From a request's bytes to its answer: read, validate, lower, check, and only then open a stream.

Never after the headers: everything that can be refused is refused here, before any engine work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from engine.errors import EngineError
from engine.loading import Engine
from engine.prompt.lowering import GenerateRequest, lower
from engine.types import EngineRequest
from server.account import Account
from server.admission import Admission
from server.answer import Answer, AnswerPlan, AnswerServices
from server.config import ServerConfig
from server.delivery import ClientGoneError, client_request_id, read_body
from server.lifecycle import Delivery, Generation
from server.log import log_account
from server.metrics import Metrics
from server.threads import off_the_loop
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.dialect import AnswerContext, ParsedRequest
from server.wire.door import parse_body
from server.wire.errors import WireError

SHOWN = 64
"""Characters of a client's word, and words of a client's list, that an error or a log line repeats."""
INLINE_BODY_BYTES = 16 * 1024
"""Bodies up to this are lowered on the event loop: a thread would cost more than the template and the tokenizer."""


class Handler:
    """What the routes call."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.admission = Admission(engine.core, config.max_queued_requests)
        self.metrics = Metrics(engine.core)
        self._services = AnswerServices(engine.core, self.admission, config, self._closed)

    async def body(self, request: Request) -> bytes:
        return await read_body(request.receive, request.headers, self.config.max_body_bytes)

    async def generate(self, request: Request, model: type[ChatRequest | CompletionRequest]) -> Response:
        """Answers a request for generation. Raises what the client is to be told with a status."""
        account = self._open_account(request)
        try:
            body = await self.body(request)
            parsed = parse_body(model, body)
            plan = await self._plan(parsed, account, len(body))
        except BaseException as error:
            self._refused(account, error)
            raise
        return Answer(self._services, plan, account)

    def _refused(self, account: Account, error: BaseException) -> None:
        """Closes the account of a request that got no answer of its own."""
        if isinstance(error, EngineError | WireError):
            account.rejected, account.error = True, str(error)
        else:
            gone = isinstance(error, ClientGoneError | asyncio.CancelledError)
            account.state.generate(Generation.ABORTED if gone else Generation.FAILED)
            account.state.deliver(Delivery.LOST if gone else Delivery.CLOSED)
        account.ended_at = time.monotonic()
        self._closed(account)

    def check_model(self, asked: str | None) -> None:
        """An absent model is the served one; any other name is a 404."""
        if asked is not None and asked != self.engine.model_name and asked not in self.engine.model_aliases:
            message = f"the model {asked[:SHOWN]!r} does not exist here; this server serves {self.engine.model_name!r}"
            raise WireError(404, message, code="model_not_found", param="model")

    def _open_account(self, request: Request) -> Account:
        self.metrics.streams_open.inc()
        return Account(
            request_id=request.state.request_id,
            endpoint=request.url.path,
            model=self.engine.model_name,
            streams=False,
            started_at=time.monotonic(),
            client_request_id=client_request_id(request.headers),
        )

    async def _plan(self, parsed: ParsedRequest, account: Account, body_bytes: int) -> AnswerPlan:
        account.streams = parsed.streams
        account.ignored_fields = tuple(name[:SHOWN] for name in parsed.ignored_fields[:SHOWN])
        self.check_model(parsed.asked_model)
        generate = parsed.lower(account.request_id)
        self.admission.check()
        requests = await self._lower(generate, body_bytes)
        for request in requests:
            self.engine.core.backend.check(request)
        account.prompt_tokens = sum(len(request.prompt_token_ids) for request in requests[:: generate.n])
        context = AnswerContext(
            request_id=account.request_id,
            created=int(time.time()),
            model=self.engine.model_name,
            prompt_tokens=account.prompt_tokens,
            choices=len(requests),
            token_bytes=self.engine.core.vocabulary.token_bytes,
        )
        return AnswerPlan(parsed, requests, generate.text, context)

    async def _lower(self, generate: GenerateRequest, body_bytes: int) -> Sequence[EngineRequest]:
        return await off_the_loop(
            body_bytes > INLINE_BODY_BYTES, partial(lower, generate, self.engine.renderer, self.engine.limits)
        )

    def _closed(self, account: Account) -> None:
        self.metrics.streams_open.dec()
        self.metrics.ended(account)
        log_account(account)
