"""The step loop: one pass over each engine step's batch, fanned out to the streams; and the one place that aborts.

Never text logic, never HTTP: processors make the text, streams carry it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.backends.base import Backend
from engine.detokenizer import Vocabulary
from engine.errors import EngineUnavailableError
from engine.output.events import OutputStep
from engine.output.processor import SequenceProcessor
from engine.stream import SequenceStream
from engine.types import AbortReason, EngineRequest, EngineStats, FinishReason, SequenceOutput, StepOutputs, TextParams

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _LiveSequence:
    processor: SequenceProcessor
    stream: SequenceStream


class EngineCore:
    """Owns a backend and every live sequence on it. All methods are called on the event loop's thread."""

    def __init__(self, backend: Backend, vocabulary: Vocabulary) -> None:
        self.backend = backend
        self.vocabulary = vocabulary
        self.generated_tokens_total = 0
        """Every token that the engine sampled, also for sequences that were gone."""
        self.zombie_tokens_total = 0
        """Of these, the tokens sampled after their sequence was aborted."""
        self.steps_total = 0
        self.aborts_total: Counter[AbortReason] = Counter()
        """Sequences ended before the backend ended them, by who asked."""
        self.failure: str | None = None
        """Why the engine is down, once it is."""
        self._live: dict[str, _LiveSequence] = {}
        self._idle = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Sequences can be submitted."""
        return self._loop_task is not None and self.failure is None

    @property
    def live_sequences(self) -> int:
        """Sequences that were submitted and neither finished nor aborted."""
        return len(self._live)

    def stats(self) -> EngineStats:
        return self.backend.stats()

    async def start(self) -> None:
        """Starts the backend and the step loop; returns when sequences can be submitted."""
        await self.backend.start()
        self._loop_task = asyncio.create_task(self._run(), name="engine step loop")

    async def close(self) -> None:
        """Ends every live sequence, the loop and the backend."""
        self.end_all(FinishReason.ABORT, "the engine is shutting down", AbortReason.SHUTDOWN)
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.backend.close()

    def open(self, requests: Sequence[EngineRequest], text: TextParams) -> SequenceStream:
        """A stream over these sequences, choice i being request i. Nothing runs before it is entered."""
        processors = [
            SequenceProcessor(self.vocabulary, request, text, index) for index, request in enumerate(requests)
        ]
        return SequenceStream(self, requests, processors)

    def attach(self, stream: SequenceStream) -> None:
        """Submits the stream's sequences, all or none. `EngineUnavailableError` when the engine is down."""
        if not self.ready:
            raise EngineUnavailableError(self.failure or "the engine is not running")
        try:
            for request, processor in zip(stream.requests, stream.processors, strict=True):
                self.backend.submit(request)
                self._live[request.request_id] = _LiveSequence(processor, stream)
        except BaseException:
            self.detach(stream, AbortReason.FAULT)
            raise

    def detach(self, stream: SequenceStream, reason: AbortReason) -> None:
        """Aborts what the stream has unfinished and forgets it: engine first, state last. Idempotent."""
        live = [request.request_id for request in stream.requests if request.request_id in self._live]
        self._abort(live, reason)

    def end_all(self, finish: FinishReason, message: str, reason: AbortReason) -> None:
        """Ends every live sequence with a last step that says why; its consumer still gets what was held back."""
        ended = list(self._live.items())
        self._abort([request_id for request_id, _ in ended], reason)
        for _, sequence in ended:
            sequence.stream.deliver(sequence.processor.end(finish, message))

    async def wait_idle(self) -> None:
        """Returns when no sequence is live."""
        while self._live:
            self._idle.clear()
            await self._idle.wait()

    def _forget(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        if not self._live:
            self._idle.set()

    def _abort(self, request_ids: Collection[str], reason: AbortReason) -> None:
        if not request_ids:
            return
        self.aborts_total[reason] += len(request_ids)
        if self.failure is None:
            self.backend.abort(request_ids)
        for request_id in request_ids:
            self._forget(request_id)

    async def _run(self) -> None:
        try:
            while True:
                self._dispatch(await self.backend.next_step())
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failure = str(error) or type(error).__name__
            logger.exception("the engine died")
            self.end_all(FinishReason.ERROR, f"the engine died: {self.failure}", AbortReason.FAULT)

    def _dispatch(self, step: StepOutputs) -> None:
        self.steps_total += 1
        now = time.monotonic()
        overrun = [request_id for output in step.outputs if (request_id := self._feed(output, now)) is not None]
        self._abort(overrun, AbortReason.STOP_STRING)

    def _process(self, processor: SequenceProcessor, output: SequenceOutput) -> OutputStep:
        """A fault of one sequence's text is that sequence's end, and nobody else's."""
        try:
            return processor.feed(output)
        except Exception:
            logger.exception("the output of %s could not be processed", output.request_id)
            return processor.fail("the server could not turn this answer's tokens into text")

    def _feed(self, output: SequenceOutput, now: float) -> str | None:
        """Hands one output to its sequence; returns the id when the answer ended before the backend knows of it."""
        self.generated_tokens_total += len(output.token_ids)
        sequence = self._live.get(output.request_id)
        if sequence is None:
            self.zombie_tokens_total += len(output.token_ids)
            return None
        if output.token_ids:
            sequence.stream.sampled(now)
        update = self._process(sequence.processor, output)
        if update.delta is not None or update.released_tokens or update.finished is not None:
            sequence.stream.deliver(update)
        if output.finish_reason is not None:
            self._forget(output.request_id)
            return None
        return output.request_id if update.finished is not None else None
