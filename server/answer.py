"""One request's answer, streamed or whole: the engine's stream is entered here, and left here whatever happens.

Never a dialect's words and never a socket's: an encoder makes the bytes, delivery carries them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.core import EngineCore
from engine.errors import EngineError, GenerationFailedError
from engine.output.events import OutputStep
from engine.output.result import AnswerResult
from engine.stream import SequenceStream
from engine.types import AbortReason, EngineRequest, TextParams
from server.account import Account
from server.admission import Admission
from server.config import ServerConfig
from server.delivery import ClientGoneError, ClientSocket, SlowClientError, connection_of, run_while_connected
from server.lifecycle import Delivery, Generation
from server.threads import off_the_loop
from server.wire import sse
from server.wire.dialect import AnswerContext, ParsedRequest, Usage
from server.wire.errors import facts_of

INLINE_RECORDS = 4_096
"""Tokens and alternatives of a whole answer that are put into JSON on the event loop: some milliseconds."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Everything that was decided before the engine is asked."""

    parsed: ParsedRequest
    requests: Sequence[EngineRequest]
    text: TextParams
    context: AnswerContext


@dataclass(frozen=True, slots=True)
class AnswerServices:
    """What every answer uses of the server."""

    core: EngineCore
    admission: Admission
    config: ServerConfig
    closed: Callable[[Account], None]
    """Takes each account when its answer has ended."""


class Answer(Response):
    """An ASGI response that generates while it is sent. A refusal before the first byte is raised, for a status."""

    def __init__(self, services: AnswerServices, plan: AnswerPlan, account: Account) -> None:
        super().__init__()
        self._services = services
        self._plan = plan
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        account = self._account
        socket = ClientSocket(send, self._services.config.slow_client_timeout_seconds, connection_of(scope))
        stream = self._services.core.open(self._plan.requests, self._plan.text)
        try:
            await self._run(stream, socket, receive)
        except EngineError as error:
            account.error = str(error)
            account.rejected = account.state.generation is Generation.NEW
            raise
        except Exception as error:
            account.error = type(error).__name__
            account.state.fail()
            await self._last_words(socket, error)
            raise
        finally:
            self._close(stream, socket)

    async def _run(self, stream: SequenceStream, socket: ClientSocket, receive: Receive) -> None:
        self._services.admission.check(len(self._plan.requests))
        state = self._account.state
        async with stream:
            state.generate(Generation.QUEUED)
            work = self._stream(stream, socket) if self._plan.parsed.streams else self._whole(stream, socket)
            try:
                stayed = await run_while_connected(work, receive)
                state.deliver(Delivery.CLOSED if stayed else Delivery.LOST)
            except ClientGoneError:
                state.deliver(Delivery.LOST)
            except SlowClientError:
                stream.abort_reason = AbortReason.DEADLINE
                state.timed_out = True
                state.deliver(Delivery.LOST)

    async def _stream(self, stream: SequenceStream, socket: ClientSocket) -> None:
        encoder = self._plan.parsed.encoder(self._plan.context)
        steps = await self._next(stream)
        if (failure := _failure(steps)) is not None:
            raise failure  # nothing was sent yet: a status can say it
        await self._start(socket, sse.HEADERS)
        await socket.write(encoder.start())
        while True:
            data = encoder.encode(steps) if steps else encoder.keepalive
            if (failure := _failure(steps)) is not None:
                self._account.error = str(failure)
                await socket.end(data + encoder.error(facts_of(failure)))
                self._account.wrote(steps)
                return
            if stream.finished:
                await socket.end(data + encoder.finish(self._usage(stream)))
                self._account.wrote(steps)
                return
            if data:
                await socket.write(data)
            self._account.wrote(steps)
            steps = await self._next(stream)

    async def _whole(self, stream: SequenceStream, socket: ClientSocket) -> None:
        result = AnswerResult(len(self._plan.requests))
        taken: list[OutputStep] = []
        while not stream.finished:
            steps = await self._next(stream)
            if (failure := _failure(steps)) is not None:
                raise failure
            for step in steps:
                result.fold(step)
            taken += steps
        make_body = partial(self._plan.parsed.whole, self._plan.context, result, self._usage(stream))
        body = await off_the_loop(self._records() * result.completion_tokens > INLINE_RECORDS, make_body)
        await self._start(socket, {"content-type": "application/json", "content-length": str(len(body))})
        await socket.end(body)
        self._account.wrote(taken)

    def _records(self) -> int:
        """What a token brings into a whole answer: itself, and the alternatives that were asked for."""
        return 1 + (self._plan.requests[0].sampling.logprobs or 0)

    async def _last_words(self, socket: ClientSocket, error: Exception) -> None:
        """A fault that nobody foresaw ends a stream with an event like any other: SDKs do not notice a cut."""
        if socket.started and not socket.ended and self._plan.parsed.streams:
            with suppress(SlowClientError, ClientGoneError):
                await socket.end(self._plan.parsed.encoder(self._plan.context).error(facts_of(error)))

    async def _start(self, socket: ClientSocket, headers: Mapping[str, str]) -> None:
        await socket.start(200, headers)
        self._account.state.deliver(Delivery.OPEN)

    async def _next(self, stream: SequenceStream) -> list[OutputStep]:
        """The next steps, or [] when it is time for a keep-alive; the account hears of them."""
        steps = await stream.next_steps(self._services.config.keepalive_seconds)
        state = self._account.state
        if steps:
            state.generate(Generation.RUNNING)
        if (failure := _failure(steps)) is not None:
            stream.abort_reason = AbortReason.FAULT  # the other choices end with the one that failed
            state.generate(Generation.FAILED if isinstance(failure, GenerationFailedError) else Generation.ABORTED)
        elif stream.finished:
            state.generate(Generation.FINISHED)
        return steps

    def _usage(self, stream: SequenceStream) -> Usage:
        return Usage(self._plan.context.prompt_tokens, stream.completion_tokens, stream.cached_tokens)

    def _close(self, stream: SequenceStream, socket: ClientSocket) -> None:
        """The account is closed on every way out, once."""
        account = self._account
        state = account.state
        state.close(delivered=account.error is not None)
        account.first_token_at, account.last_token_at = stream.first_token_at, stream.last_token_at
        account.generated_tokens = stream.generated_tokens
        account.completion_tokens = stream.completion_tokens
        account.cached_tokens = stream.cached_tokens
        account.written_bytes = socket.bytes_written
        account.ended_at = time.monotonic()
        self._services.closed(account)


def _failure(steps: Sequence[OutputStep]) -> EngineError | None:
    """The first of these ends that is a failure, as the error that it is to the client."""
    failures = (step.finished.failure for step in steps if step.finished is not None)
    return next((failure for failure in failures if failure is not None), None)
