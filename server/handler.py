"""From a request's bytes to its answer: read, validate, lower, check, and only then open a stream.

Never after the headers: everything that can be refused is refused here, before any engine work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from engine.errors import EngineError
from engine.loading import Engine
from engine.prompt.answer_plan import planned, started
from engine.prompt.lowering import GenerateRequest, lower
from engine.slumber import Slumber
from engine.types import EngineRequest, TextParams
from server.account import Account
from server.admission import Admission
from server.answer import Answer
from server.audit import AuditLog
from server.auth import ApiKey
from server.config import ServerConfig
from server.delivery import BodyLimits, ClientGoneError, client_request_id, read_body
from server.grammars import Grammars
from server.known_requests import KnownRequests, name_of
from server.lifecycle import Delivery, Generation
from server.log import log_request
from server.metrics import Metrics
from server.plan import AnswerPlan
from server.served_models import ServedModels
from server.services import AnswerServices, configured_timeouts
from server.threads import off_the_loop
from server.timer import StreamTimer
from server.usage import UsageRecords
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.dialect import REASONING_FIELDS, AnswerContext, ParsedRequest
from server.wire.door import SHOWN, parse_body
from server.wire.errors import WireError

INLINE_BODY_BYTES = 16 * 1024
"""Bodies up to this are lowered on the event loop: a thread would cost more than the template and the tokenizer."""


class Handler:
    """What the routes call."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.models = ServedModels(engine)
        self.slumber = None if engine.controls is None else Slumber(engine.core, engine.controls)
        self.admission = Admission(engine.core, config)
        self.grammars = Grammars(engine.grammars)
        self.audit = AuditLog.from_config(config)
        self.metrics = Metrics(
            engine.core,
            model_name=engine.model_name,
            queue_limit=config.max_queued_requests,
        )
        self.metrics.watch_admission(self.admission)
        if engine.controls is not None:
            self.metrics.watch_controls(engine.controls)
        if self.audit is not None:
            self.metrics.watch_audit(self.audit)
        self.requests = KnownRequests(UsageRecords(config.usage_retention_seconds, config.usage_max_records))
        self.metrics.watch_blocked(self.requests.blocked)
        self._services = AnswerServices(
            engine.core,
            self.admission,
            config,
            self.metrics,
            StreamTimer(),
            configured_timeouts(config),
            self._closed,
        )

    async def body(self, request: Request) -> bytes:
        """The whole body, within the bounds of one and of all that are being read."""
        with self.admission.bodies.share() as came:
            return await read_body(request.receive, request.headers, BodyLimits(self.config.max_body_bytes, came))

    async def generate(self, request: Request, model: type[ChatRequest | CompletionRequest]) -> Response:
        """Answers a request for generation. Raises what the client is to be told with a status."""
        account = self._open_account(request)
        try:
            body = await self.body(request)
            parsed = parse_body(model, body)
            plan = await self._plan(parsed, account, body, key_of(request))
            answer = Answer(self._services, plan, account, keeps_text=self.audit is not None)
        except BaseException as error:
            self._refused(account, error)
            raise
        self.requests.opened(answer)
        return answer

    def _refused(self, account: Account, error: BaseException) -> None:
        """Closes the account of a request that got no answer of its own."""
        if isinstance(error, EngineError | WireError):
            account.error = str(error)
            account.state.refuse()
        else:
            gone = isinstance(error, ClientGoneError | asyncio.CancelledError)
            account.state.generate(Generation.ABORTED if gone else Generation.FAILED)
            account.state.deliver(Delivery.LOST if gone else Delivery.CLOSED)
        account.ended_at = time.monotonic()
        self._closed(account)

    def _open_account(self, request: Request) -> Account:
        self.metrics.opened()
        return Account(
            request_id=request.state.request_id,
            endpoint=request.url.path,
            model=self.engine.model_name,
            streams=False,
            started_at=time.monotonic(),
            key_name=name_of(key_of(request)),
            client_request_id=client_request_id(request.headers),
        )

    async def _plan(self, parsed: ParsedRequest, account: Account, body: bytes, key: ApiKey | None) -> AnswerPlan:
        account.streams = parsed.streams
        account.ignored_fields = tuple(name[:SHOWN] for name in parsed.ignored_fields[:SHOWN])
        adapter = self.models.adapter(parsed.asked_model)
        account.model = adapter or self.engine.model_name
        generate = await off_the_loop(len(body) > INLINE_BODY_BYTES, partial(parsed.lower, account.request_id))
        generate = replace(generate, adapter=adapter)
        self.admission.check(key)
        requests, text = await off_the_loop(len(body) > INLINE_BODY_BYTES, partial(self._lower, generate))
        for request in requests:
            self.engine.core.backend.check(request)
        requests = await self.grammars.compiled(requests)
        account.choices = len(requests)
        account.max_tokens = max(request.sampling.max_tokens for request in requests)
        account.prompt_tokens = sum(len(request.prompt_token_ids) for request in requests[:: generate.n])
        context = AnswerContext(
            request_id=account.request_id,
            created=int(time.time()),
            model=account.model,
            prompt_tokens=account.prompt_tokens,
            choices=len(requests),
            token_bytes=self.engine.core.vocabulary.token_bytes,
            system_fingerprint=self.models.fingerprint,
            parses_tools=text.parsing is not None and text.parsing.tools is not None,
            reasoning_fields=REASONING_FIELDS[self.config.reasoning_field],
        )
        return AnswerPlan(parsed, requests, text, context, key, body)

    def _lower(self, generate: GenerateRequest) -> tuple[Sequence[EngineRequest], TextParams]:
        """What the engine is asked, and how its answers are read."""
        families, renderer = self.engine.families, self.engine.renderer
        generate = planned(generate, families, renderer)
        requests = lower(generate, renderer, self.engine.limits)
        return requests, started(generate, requests[0].prompt_token_ids, renderer)

    def _closed(self, account: Account) -> None:
        """Each account comes here once, complete."""
        record = account.as_record()
        log_request(record)
        answer = self.requests.closed(account, record)
        self.metrics.ended(account)
        if self.audit is not None and answer is not None:
            self.audit.record(record | answer.transcript())


def key_of(request: Request) -> ApiKey | None:
    """The key that the request was let in with; None on an open server."""
    key: ApiKey | None = getattr(request.state, "api_key", None)
    return key
