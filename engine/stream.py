"""A request's sequences as one async context manager: entering submits them, leaving unfinished aborts them.

Never a background task and never an unbounded queue: what its consumer has not taken yet is one merged step a choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

from engine.output.events import OutputStep
from engine.output.processor import SequenceProcessor
from engine.types import AbortReason, EngineRequest

if TYPE_CHECKING:
    from types import TracebackType


class StreamOwner(Protocol):
    """What a stream asks of the core."""

    def attach(self, stream: SequenceStream) -> None:
        """Submits every sequence of the stream, or none and raises."""

    def detach(self, stream: SequenceStream, reason: AbortReason) -> None:
        """Aborts what is unfinished and forgets the stream. Idempotent."""


class SequenceStream:
    """The output steps of a request's n sequences, in the order they came, merged while nobody takes them."""

    def __init__(
        self, owner: StreamOwner, requests: Sequence[EngineRequest], processors: Sequence[SequenceProcessor]
    ) -> None:
        self.requests = requests
        self.processors = processors
        self.abort_reason = AbortReason.DISCONNECT
        """Why leaving unfinished aborts; whoever leaves for another reason sets it first."""
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        """When the engine sampled its first and its latest token, on the monotonic clock, held back or not."""
        self._owner = owner
        self._mail: dict[int, OutputStep] = {}
        self._unfinished = len(processors)
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._owner.attach(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.detach(self, self.abort_reason)

    @property
    def generated_tokens(self) -> int:
        """Tokens that the engine sampled for all of the stream's sequences so far."""
        return sum(processor.generated_tokens for processor in self.processors)

    @property
    def completion_tokens(self) -> int:
        """Tokens that usage counts, over all of the stream's sequences so far."""
        return sum(processor.completion_tokens for processor in self.processors)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV blocks the engine reused: of choices that share a prompt, the first one's."""
        counted: dict[int, int] = {}
        for request, processor in zip(self.requests, self.processors, strict=True):
            counted.setdefault(id(request.prompt_token_ids), processor.cached_tokens)
        return sum(counted.values())

    def sampled(self, now: float) -> None:
        """The core's side: a step that ended at `now` held tokens of this stream."""
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now

    def deliver(self, step: OutputStep) -> None:
        """The core's side: puts a step into the choice's mailbox and wakes the consumer."""
        waiting = self._mail.get(step.index)
        if waiting is None:
            self._mail[step.index] = step
        else:
            waiting.merge(step)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def finished(self) -> bool:
        """Every choice has ended and its consumer took all of it."""
        return self._unfinished == 0

    async def next_steps(self, patience: float | None = None) -> list[OutputStep]:
        """The mail of all choices, at once if there is some; [] after `patience` seconds of silence, or at the end."""
        if not self._mail and not self.finished:
            await self._wait(patience)
        steps = list(self._mail.values())
        self._mail.clear()
        self._unfinished -= sum(step.finished is not None for step in steps)
        return steps

    async def _wait(self, patience: float | None) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(patience, _wake, waiter) if patience is not None else None
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[OutputStep]:
        if self.finished:
            raise StopAsyncIteration
        return await self.next_steps()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
