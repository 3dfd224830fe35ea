"""One request's answer, streamed or whole: the engine's stream is entered here, and left here whatever happens.

Never a dialect's words and never a socket's: an encoder makes the bytes, delivery carries them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import EngineError, GenerationFailedError
from engine.output.events import OutputStep
from engine.output.result import AnswerResult
from engine.types import AbortReason
from server.account import Account
from server.deadlines import Deadlines, shorter
from server.delivery import ClientGoneError, ClientSocket, SlowClientError, connection_of, run_while_connected
from server.lifecycle import Delivery, Generation, Phase, Verdict
from server.plan import AnswerPlan
from server.services import AnswerServices
from server.threads import off_the_loop
from server.wire import sse
from server.wire.dialect import StreamEncoder, Usage
from server.wire.errors import WireError, facts_of

INLINE_RECORDS = 4_096
"""Tokens and alternatives of a whole answer that are put into JSON on the event loop: some milliseconds."""


class Answer(Response):
    """An ASGI response that generates while it is sent. A refusal before the first byte is raised, for a status."""

    def __init__(
        self, services: AnswerServices, plan: AnswerPlan, account: Account, *, keeps_text: bool = False
    ) -> None:
        """`keeps_text`: also of a stream, for `transcript`."""
        super().__init__()
        self.account = account
        self._services = services
        self._plan = plan
        self._stream = services.core.open(plan.requests, plan.text)
        self._stream.max_buffered_bytes = services.config.max_buffered_bytes
        self._deadlines = Deadlines(
            shorter(services.timeouts, plan.parsed.asked_timeouts), account.started_at, submitted_at=time.monotonic()
        )
        self._heard = AnswerResult(len(plan.requests)) if keeps_text else None
        self._socket: ClientSocket | None = None
        self._silent_tokens = 0
        """Released, and without a frame of their own, as special tokens are: they go with the next one."""
        self._wrote_at = 0.0
        """When the client last got something, on the monotonic clock."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        account = self.account
        socket = self._socket = ClientSocket(
            send, self._services.config.slow_client_timeout_seconds, connection_of(scope)
        )
        try:
            stayed = await self._admitted(socket, receive)
            account.ended_at = time.monotonic()
            arrived = stayed and await socket.arrived()
            account.state.deliver(Delivery.CLOSED if arrived else Delivery.LOST)
        except (EngineError, WireError) as error:
            account.error = str(error)
            if account.state.generation is Generation.NEW:
                account.state.refuse()
            raise
        except Exception as error:
            account.error = type(error).__name__
            account.state.fail()
            await self._last_words(socket, error)
            raise
        finally:
            self._close(socket)

    @property
    def blocked(self) -> bool:
        """Its client's side of the connection is full: text waits for it, merged."""
        return self._socket is not None and self._socket.blocked

    def cancel(self) -> bool:
        """The client wants no more, and reads on: it gets what there is and a good end. False: nothing to cancel."""
        if not self._stream.generating:
            return False
        self.account.state.verdict = Verdict.SOFT_CANCEL
        self._stream.cancel()
        return True

    def transcript(self) -> dict[str, Any]:
        """What was asked and what was said, as far as it came; see `keeps_text`."""
        texts = [] if self._heard is None else [choice.text for choice in self._heard.choices]
        return {"request": self._plan.body.decode("utf-8", "replace"), "texts": texts}

    def attend(self, now: float) -> float | None:
        """See `server.timer.Attended`: deadlines, and keep-alives on a stream."""
        deadline = self._deadlines.next(self._stream)
        if deadline is not None and deadline[0] <= now:
            self.account.state.time_out(deadline[1])
            self._stream.abandon(AbortReason.DEADLINE, f"the deadline {deadline[1].value!r} passed")
            return None
        if self._plan.parsed.streams and now - self._wrote_at >= self._services.config.keepalive_seconds:
            self._wrote_at = now
            self._stream.nudge()
        return self._next_due(deadline, now)

    def _next_due(self, deadline: tuple[float, Phase] | None, now: float) -> float | None:
        """When to look again; a deadline that begins to count meanwhile passes no sooner than its timeout from now."""
        dues = [now + seconds for seconds in self._deadlines.timeouts.values()]
        if deadline is not None:
            dues.append(deadline[0])
        if self._plan.parsed.streams:
            dues.append(self._wrote_at + self._services.config.keepalive_seconds)
        return min(dues, default=None)

    async def _admitted(self, socket: ClientSocket, receive: Receive) -> bool:
        """Whether the client stayed until the socket had all of the answer."""
        plan, stream = self._plan, self._stream
        prompt_tokens = self.account.prompt_tokens
        ticket = self._services.admission.admit(plan.key, sequences=len(plan.requests), prompt_tokens=prompt_tokens)
        stream.on_scheduled = ticket.scheduled
        try:
            return await self._run(socket, receive)
        finally:
            socket.on_half_close = None
            ticket.close(stream.generated_tokens)

    async def _run(self, socket: ClientSocket, receive: Receive) -> bool:
        stream = self._stream
        async with stream:
            self.account.state.generate(Generation.QUEUED)
            self._wrote_at = time.monotonic()
            watch = self._services.timer.watch(self, self._wrote_at)
            work = self._send_stream(socket) if self._plan.parsed.streams else self._send_whole(socket)
            try:
                return await run_while_connected(work, receive)
            except (ClientGoneError, SlowClientError):
                return False
            finally:
                self._services.timer.forget(watch)
                if socket.cut:
                    stream.abort_reason = AbortReason.DEADLINE

    async def _send_stream(self, socket: ClientSocket) -> None:
        stream = self._stream
        encoder = self._plan.parsed.encoder(self._plan.context)
        socket.on_half_close = stream.nudge  # what is written then tells whether the client still reads
        steps, failure = await self._next()
        if failure is not None:
            raise failure  # nothing was sent yet: a status can say it
        await self._start(socket, sse.HEADERS)
        await socket.write(encoder.start())
        if len(self._plan.requests) == 1:  # the steps of several choices go out together, in one packet
            stream.on_step = partial(self._pass_on, socket, encoder)
        while failure is None and not stream.finished:
            if not steps:
                self._services.metrics.keepalive()
            await self._write(socket, encoder.encode(steps) if steps else encoder.keepalive, steps)
            steps, failure = await self._next()
        if failure is None:
            last = encoder.finish(self._usage())
        else:
            self.account.error = str(failure)
            last = encoder.error(facts_of(failure))
        await socket.end(encoder.encode(steps) + last, self._silent_tokens + _released(steps))
        self.account.wrote(steps)

    async def _write(self, socket: ClientSocket, data: bytes, steps: Sequence[OutputStep]) -> None:
        self._silent_tokens += _released(steps)
        if data:
            await socket.write(data, self._silent_tokens)
            self._silent_tokens = 0
            self._wrote_at = time.monotonic()
        self.account.wrote(steps)

    def _pass_on(self, socket: ClientSocket, encoder: StreamEncoder, step: OutputStep) -> bool:
        """Writes a step from within the engine's own, as most of a stream goes: no task wakes up for it.

        False: it must wait, or end something, or went wrong, and comes to `_send_stream`.
        """
        if step.finished is not None or not socket.writes_now:
            return False
        tokens = self._silent_tokens + step.released_tokens
        try:
            data = encoder.encode([step])
            if data and not socket.write_now(data, tokens):
                return False
        except Exception:  # noqa: BLE001 - whatever it was, it happens again in `_send_stream`, which handles it
            return False
        self._silent_tokens = 0 if data else tokens
        self._wrote_at = time.monotonic() if data else self._wrote_at
        if self._heard is not None:
            self._heard.fold(step)
        return True

    async def _send_whole(self, socket: ClientSocket) -> None:
        stream = self._stream
        result = AnswerResult(len(self._plan.requests))
        tokens = 0
        ends: list[OutputStep] = []
        while not stream.finished:
            steps, failure = await self._next()
            if failure is not None:
                raise failure
            for step in steps:
                result.fold(step)
            tokens += _released(steps)
            ends += [step for step in steps if step.finished is not None]
        make_body = partial(self._plan.parsed.whole, self._plan.context, result, self._usage())
        body = await off_the_loop(self._records() * result.completion_tokens > INLINE_RECORDS, make_body)
        await self._start(socket, {"content-type": "application/json", "content-length": str(len(body))})
        await socket.end(body, tokens)
        self.account.wrote(ends)

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
        self.account.state.deliver(Delivery.OPEN)

    async def _next(self) -> tuple[list[OutputStep], EngineError | WireError | None]:
        """The next steps, [] when something else is due, and what the client is to be told instead of more.

        The account hears of them.
        """
        stream, state = self._stream, self.account.state
        steps = await stream.next_steps()
        if self._heard is not None:
            for step in steps:
                self._heard.fold(step)
        if stream.scheduled_at is not None:
            state.generate(Generation.RUNNING)
        failure = self._failure(steps)
        if failure is not None:
            stream.abort_reason = AbortReason.FAULT  # the other choices end with the one that failed
            state.generate(Generation.FAILED if isinstance(failure, GenerationFailedError) else Generation.ABORTED)
        elif stream.finished:
            state.generate(Generation.FINISHED if state.verdict is None else Generation.ABORTED)
        return steps, failure

    def _failure(self, steps: Sequence[OutputStep]) -> EngineError | WireError | None:
        """A deadline that passed, too slow a reader, or the first of these ends that is a failure."""
        phase = self.account.state.deadline
        if phase is not None and (error := self._deadlines.error(phase)) is not None:
            return error
        if self._stream.overflowed:
            self.account.state.time_out(Phase.SLOW_CLIENT)
            message = f"more than {self._stream.max_buffered_bytes} bytes of the answer waited for a slow reader"
            return WireError(504, message, code="slow_client")
        failures = (step.finished.failure for step in steps if step.finished is not None)
        return next((failure for failure in failures if failure is not None), None)

    def _usage(self) -> Usage:
        said = self._stream
        prompt_tokens = self._plan.context.prompt_tokens
        return Usage(prompt_tokens, said.completion_tokens, said.cached_tokens, said.reasoning_tokens)

    def _close(self, socket: ClientSocket) -> None:
        """The answer has ended; the account is complete once the engine holds nothing of it any more."""
        account, state = self.account, self.account.state
        if socket.cut:
            state.time_out(Phase.SLOW_CLIENT)
        elif socket.shut and state.verdict is None:
            state.verdict = Verdict.SHUT_DOWN
        if self._stream.completed and state.generation in (Generation.QUEUED, Generation.RUNNING):
            state.generate(Generation.FINISHED)  # though not all was taken
        state.close(delivered=account.error is not None)
        if state.deadline is Phase.SLOW_CLIENT:
            self._services.metrics.slow_client_cut()
        account.written_tokens, account.written_bytes = socket.written_tokens, socket.bytes_written
        account.delivered_tokens, account.delivered_is = socket.delivered_tokens, socket.delivered_is
        account.ended_at = account.ended_at or time.monotonic()
        self._stream.when_settled(self._settle)

    def _settle(self) -> None:
        self._services.closed(self.measured())

    def measured(self) -> Account:
        """The account, with what the engine has done so far."""
        self.account.measure(self._stream)
        return self.account


def _released(steps: Sequence[OutputStep]) -> int:
    """Tokens that these steps' events complete."""
    return sum(step.released_tokens for step in steps)
