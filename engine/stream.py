"""A request's sequences as one async context manager: entering submits them, leaving unfinished aborts them.

Never a background task and never an unbounded queue: what its consumer has not taken yet is one merged step a choice.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from engine.gaps import TokenGaps
from engine.output.events import OutputStep
from engine.output.processor import SequenceProcessor
from engine.types import AbortReason, EngineRequest, FinishReason

if TYPE_CHECKING:
    from types import TracebackType

logger = logging.getLogger(__name__)
RECORD_BYTES = 200
"""About what a token's record takes, and each alternative in it."""


class StreamOwner(Protocol):
    """What a stream asks of the core."""

    def attach(self, stream: SequenceStream) -> None:
        """Submits every sequence of the stream, or none and raises. A cancelled stream's only end."""

    def detach(self, stream: SequenceStream, reason: AbortReason) -> None:
        """Aborts what is unfinished and forgets the stream. Idempotent."""

    def abandon(self, stream: SequenceStream, reason: AbortReason, message: str | None) -> None:
        """Aborts what is unfinished and delivers its end. Idempotent."""


class SequenceStream:
    """The output steps of a request's n sequences, in the order they came, merged while nobody takes them.

    Times are on the monotonic clock, in seconds. All methods are called on the event loop's thread.
    """

    def __init__(
        self, owner: StreamOwner, requests: Sequence[EngineRequest], processors: Sequence[SequenceProcessor]
    ) -> None:
        self.requests = requests
        self.processors = processors
        self.abort_reason = AbortReason.DISCONNECT
        """Why leaving unfinished aborts; whoever leaves for another reason sets it first."""
        self.max_buffered_bytes: int | None = None
        """Most that waits for a consumer who is away, text and token records; over it the stream is abandoned."""
        self.overflowed = False
        """That happened."""
        self.abandoned = False
        """Its generation was ended from outside; if that was before it was entered, nothing is ever submitted."""
        self.scheduled_at: float | None = None
        """When the engine began the prefill of the first of its sequences."""
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        """When the engine sampled its first and its latest token, held back or not, late ones left out."""
        self.gaps = TokenGaps()
        """Between the tokens of each of its sequences."""
        self.late_tokens = 0
        """Tokens that the engine sampled for sequences that were aborted already."""
        self.zombie_tokens = 0
        """Of these, the ones for nobody: neither a stop string nor a soft cancel had ended the sequence."""
        self.on_scheduled: Callable[[], None] | None = None
        """Hears when `scheduled_at` is set; it must not raise."""
        self.on_step: Callable[[OutputStep], bool] | None = None
        """Asked to take a step on the spot, in the midst of the engine's, when the consumer waits and has no mail.

        True: it did, and the consumer never hears of the step. It must not raise, nor wait, nor touch the stream.
        """
        self._owner = owner
        self._mail: dict[int, OutputStep] = {}
        self._merged_bytes = 0
        self._unfinished = len(processors)
        self._waiter: asyncio.Future[None] | None = None
        self._nudged = False
        self._consumer: weakref.ref[asyncio.Task[Any]] | None = None
        self._held = 0
        self._on_settled: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        self.consumer = asyncio.current_task()
        self._owner.attach(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.detach(self, self.abort_reason)

    @property
    def generated_tokens(self) -> int:
        """Tokens that the engine sampled for all of the stream's sequences so far, late ones included."""
        return sum(processor.generated_tokens for processor in self.processors) + self.late_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens that usage counts, over all of the stream's sequences so far."""
        return sum(processor.completion_tokens for processor in self.processors)

    @property
    def reasoning_tokens(self) -> int:
        """Of these, the ones whose text is reasoning."""
        return sum(processor.reasoning_tokens for processor in self.processors)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV blocks the engine reused: of choices that share a prompt, the first one's."""
        counted: dict[int, int] = {}
        for request, processor in zip(self.requests, self.processors, strict=True):
            counted.setdefault(id(request.prompt_token_ids), processor.cached_tokens)
        return sum(counted.values())

    @property
    def consumer(self) -> asyncio.Task[Any] | None:
        """The task that takes the steps, at first the one that entered; None before that, and once it is gone.

        Whoever takes a stream over says so here. Only a weak reference is kept.
        """
        return self._consumer() if self._consumer is not None else None

    @consumer.setter
    def consumer(self, task: asyncio.Task[Any] | None) -> None:
        self._consumer = weakref.ref(task) if task is not None else None

    @property
    def unattended(self) -> bool:
        """Nobody is left who could take its steps or leave it."""
        return (task := self.consumer) is None or task.done()

    @property
    def generating(self) -> bool:
        """A choice was submitted and has not ended, whatever its consumer took of it."""
        return any(processor.finished is None for processor in self.processors) and not self.settled

    @property
    def completed(self) -> bool:
        """Every choice ended by itself, whatever its consumer took of it."""
        ends = [processor.finished for processor in self.processors]
        return all(end is not None and end.reason in (FinishReason.STOP, FinishReason.LENGTH) for end in ends)

    @property
    def settled(self) -> bool:
        """The engine holds nothing of any of its sequences."""
        return self._held == 0

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Calls back once the engine holds nothing of the stream any more: now, if so. No token is counted after."""
        if self.settled:
            callback()
        else:
            self._on_settled.append(callback)

    def submitted(self) -> None:
        """The core's side: the engine holds one more of its sequences."""
        self._held += 1

    def released(self) -> None:
        """The core's side: the engine holds one sequence less, since it ended it, freed it or died."""
        self._held -= 1
        if self.settled:
            callbacks, self._on_settled = self._on_settled, []
            for callback in callbacks:
                _call(callback)

    def scheduled(self, now: float) -> None:
        """The core's side: the prefill of one of its sequences began."""
        if self.scheduled_at is None:
            self.scheduled_at = now
            if self.on_scheduled is not None:
                self.on_scheduled()

    def sampled(self, now: float) -> None:
        """The core's side: a step that ended at `now` held tokens of this stream."""
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now

    def sampled_late(self, tokens: int, *, zombie: bool) -> None:
        """The core's side: a step held tokens of a sequence that was aborted before."""
        self.late_tokens += tokens
        if zombie:
            self.zombie_tokens += tokens

    def deliver(self, step: OutputStep) -> None:
        """The core's side: puts a step into the choice's mailbox and wakes the consumer, if nobody takes it at once."""
        if self.on_step is not None and self._idle and self.on_step(step):
            return
        waiting = self._mail.get(step.index)
        if waiting is None:
            self._mail[step.index] = step
        else:
            waiting.merge(step)
            if self.max_buffered_bytes is not None:
                self._measure(step, self.max_buffered_bytes)
        self._wake()

    def _measure(self, merged: OutputStep, most: int) -> None:
        self._merged_bytes += merged.text_bytes
        for record in merged.records or ():
            self._merged_bytes += RECORD_BYTES * (1 + (len(record.logprobs.top) if record.logprobs else 0))
        if self._merged_bytes > most and not self.overflowed:
            self.overflowed = True
            # Not now: the core is in the midst of this sequence's step.
            asyncio.get_running_loop().call_soon(self.abandon, AbortReason.DEADLINE, "the reader is too slow")

    def cancel(self) -> None:
        """A soft cancel: `abandon` because someone asked for it."""
        self.abandon(AbortReason.CANCELLED)

    def abandon(self, reason: AbortReason, message: str | None = None) -> None:
        """Ends the generation and keeps the consumer: each open choice gets its last text, and ABORT.

        With a message, for an end that its client did not ask for, the ends are failures.

        Idempotent, and legal in every state: before entering nothing will be submitted, after the end nothing happens.
        """
        self.abandoned = True
        self._owner.abandon(self, reason, message)

    def nudge(self) -> None:
        """Makes the waiting `next_steps`, or the next one, return at once, with [] if there is no mail."""
        self._nudged = True
        self._wake()

    @property
    def finished(self) -> bool:
        """Every choice has ended and its consumer took all of it."""
        return self._unfinished == 0

    async def next_steps(self) -> list[OutputStep]:
        """The mail of all choices, at once if there is some; [] after a nudge, or at the end."""
        if not self._mail and not self._nudged and not self.finished:
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        self._nudged = False
        steps = list(self._mail.values())
        self._mail.clear()
        self._merged_bytes = 0
        self._unfinished -= sum(step.finished is not None for step in steps)
        return steps

    @property
    def _idle(self) -> bool:
        """The consumer waits, and nothing has woken it yet."""
        return self._waiter is not None and not self._waiter.done()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[OutputStep]:
        if self.finished:
            raise StopAsyncIteration
        return await self.next_steps()


def _call(callback: Callable[[], None]) -> None:
    """A fault in one stream's callback is nobody else's: it must not pass for a fault of the engine."""
    try:
        callback()
    except Exception:
        logger.exception("a settled stream's callback failed")
