"""One pass over each engine step's batch, fanned out to the streams; and the one place that aborts.

Never text logic, never HTTP: processors make the text, streams carry it. Never the engine's own life: its supervisor
starts it, watches it and starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from engine.aborts import AbortLedger
from engine.backends.base import Backend
from engine.detokenizer import Vocabulary
from engine.errors import EngineUnavailableError
from engine.live import FAULTY_TEXT, LiveSequence
from engine.output.events import OutputStep
from engine.output.processor import SequenceProcessor
from engine.reaper import Reaper
from engine.stream import SequenceStream
from engine.supervisor import SupervisionConfig, Supervisor
from engine.types import AbortReason, EngineRequest, EngineStats, FinishReason, SequenceOutput, StepOutputs, TextParams

logger = logging.getLogger(__name__)
DEFAULT_SUPERVISION = SupervisionConfig()


class EngineCore:
    """Owns a backend and every live sequence on it. All methods are called on the event loop's thread."""

    def __init__(
        self, backend: Backend, vocabulary: Vocabulary, supervision: SupervisionConfig = DEFAULT_SUPERVISION
    ) -> None:
        self.backend = backend
        self.vocabulary = vocabulary
        self.generated_tokens_total = 0
        """Every token that the engine sampled, also for sequences that were gone."""
        self.zombie_tokens_total = 0
        """Of these, the ones for nobody: sampled after their sequence was aborted, and not by a stop or soft cancel."""
        self.steps_total = 0
        """Engine steps with output."""
        self.scheduled_total = 0
        """Sequences whose prefill began: how the queue drains, aborts of waiting ones left out."""
        self.aborts_total: Counter[AbortReason] = Counter()
        """Sequences ended before the backend ended them, by who asked."""
        self.on_freed: Callable[[AbortReason, float], None] | None = None
        """Hears of each abort that the engine confirmed, and the seconds that it took."""
        self.paused: str | None = None
        """Why no sequence is taken although the engine is up; None as a rule."""
        self._live: dict[str, LiveSequence] = {}
        self._aborts = AbortLedger()
        self._idle = asyncio.Event()
        self._supervision = supervision
        self._supervisor = Supervisor(backend, supervision, self)
        self._reaper = Reaper(backend, self._live, self._aborts, self._abort)

    @property
    def ready(self) -> bool:
        """Sequences can be submitted."""
        return self.up and self.paused is None

    @property
    def up(self) -> bool:
        """The engine lives, asleep or awake."""
        return self._supervisor.ready

    @property
    def failure(self) -> str | None:
        """Why the engine is down, while it is."""
        return self._supervisor.failure

    @property
    def retry_after(self) -> float:
        """While the engine is down: seconds until the next attempt to start it."""
        return self._supervisor.retry_after

    @property
    def restarts_total(self) -> int:
        """Times that the engine died and came up again."""
        return self._supervisor.restarts_total

    @property
    def live_sequences(self) -> int:
        """Sequences that were submitted and neither finished nor aborted."""
        return len(self._live)

    @property
    def unsettled(self) -> int:
        """Sequences that were aborted and of which the engine may hold something still."""
        return len(self._aborts)

    @property
    def orphaned_requests(self) -> int:
        """Sequences in the engine without a consumer: 0, unless something is broken."""
        return self._reaper.orphans

    @property
    def reaped_total(self) -> int:
        """Orphans that were found and aborted."""
        return self._reaper.reaped_total

    @property
    def has_work(self) -> bool:
        """The engine owes a step: a sequence is live, or its abort not confirmed."""
        return bool(self._live or self._aborts)

    def held_back_characters(self) -> int:
        """Over all live sequences: characters that wait for what a stop string or a character still lacks."""
        return sum(sequence.processor.held_back_characters for sequence in self._live.values())

    def stats(self) -> EngineStats:
        return self.backend.stats()

    async def start(self) -> None:
        """Starts the backend and the step loop; returns when sequences can be submitted."""
        await self._supervisor.start()
        self._reaper.start(self._supervision.reap_interval)

    async def close(self) -> None:
        """Ends every live sequence, the loop and the backend."""
        self.end_all(FinishReason.ABORT, "the engine is shutting down", AbortReason.SHUTDOWN)
        self._reaper.stop()
        await self._supervisor.stop()
        self._aborts.settle_all()

    def open(self, requests: Sequence[EngineRequest], text: TextParams) -> SequenceStream:
        """A stream over these sequences, choice i being request i. Nothing runs before it is entered."""
        processors = [
            SequenceProcessor(self.vocabulary, request, text, index) for index, request in enumerate(requests)
        ]
        return SequenceStream(self, requests, processors)

    def attach(self, stream: SequenceStream) -> None:
        """Submits the stream's sequences, all or none. `EngineUnavailableError` when the engine is down."""
        if stream.abandoned:
            for processor in stream.processors:
                LiveSequence(processor, stream).end(FinishReason.ABORT)
            return
        if not self.ready:
            reason = self.failure or self.paused or "the engine is not running"
            raise EngineUnavailableError(reason, retry_after=self.retry_after)
        if not self.has_work:
            self._supervisor.work_arrived()
        try:
            for request, processor in zip(stream.requests, stream.processors, strict=True):
                self.backend.submit(request)
                self._live[request.request_id] = LiveSequence(processor, stream)
                stream.submitted()
        except BaseException:
            self.detach(stream, AbortReason.FAULT)
            raise

    def detach(self, stream: SequenceStream, reason: AbortReason) -> None:
        """Aborts what the stream has unfinished and forgets it: engine first, state last. Idempotent."""
        self._abort(self._live_of(stream), reason)

    def abandon(self, stream: SequenceStream, reason: AbortReason, message: str | None = None) -> None:
        """Aborts what the stream has unfinished and delivers its end to a consumer that stays. Idempotent."""
        self._end(self._live_of(stream), FinishReason.ABORT, message, reason)

    def end_all(self, finish: FinishReason, message: str, reason: AbortReason) -> None:
        """Ends every live sequence with a last step that says why; its consumer still gets what was held back."""
        self._end(list(self._live), finish, message, reason)

    async def wait_idle(self) -> None:
        """Returns when no sequence is live."""
        while self._live:
            self._idle.clear()
            await self._idle.wait()

    def engine_died(self, reason: str) -> None:
        """The supervisor's side: every stream ends, and the engine holds nothing any more."""
        self.paused = None  # the next engine starts awake
        self.end_all(FinishReason.ERROR, f"the engine died: {reason}", AbortReason.FAULT)
        self._aborts.settle_all()

    def take_step(self, step: StepOutputs) -> None:
        """The supervisor's side: what one engine step did. Confirmations come last: no output follows them."""
        now = time.monotonic()
        if step.scheduled:
            self._schedule(step.scheduled, now)
        if step.outputs:
            self._dispatch(step.outputs, now)
        for request_id in step.freed:
            self._confirm(request_id, now)

    def _live_of(self, stream: SequenceStream) -> list[str]:
        return [request.request_id for request in stream.requests if request.request_id in self._live]

    def _forget(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        if not self._live:
            self._idle.set()

    def _abort(self, request_ids: Collection[str], reason: AbortReason) -> None:
        """Ends live sequences. The engine's word that it freed them is awaited in the ledger, also if it is dead."""
        if not request_ids:
            return
        self.aborts_total[reason] += len(request_ids)
        if self.failure is None:
            self.backend.abort(request_ids)
        now = time.monotonic()
        for request_id in request_ids:
            self._aborts.add(request_id, self._live[request_id].stream, reason, now)
            self._forget(request_id)

    def _confirm(self, request_id: str, now: float) -> None:
        entry = self._aborts.settle(request_id)
        if entry is not None and self.on_freed is not None:
            self.on_freed(entry.reason, now - entry.requested_at)

    def _end(self, request_ids: list[str], finish: FinishReason, message: str | None, reason: AbortReason) -> None:
        ended = [self._live[request_id] for request_id in request_ids]
        self._abort(request_ids, reason)
        for sequence in ended:
            sequence.end(finish, message)

    def _schedule(self, request_ids: Iterable[str], now: float) -> None:
        for request_id in request_ids:
            self.scheduled_total += 1
            sequence = self._live.get(request_id)
            if sequence is not None:
                sequence.stream.scheduled(now)

    def _dispatch(self, outputs: Iterable[SequenceOutput], now: float) -> None:
        self.steps_total += 1
        overrun = [request_id for output in outputs if (request_id := self._feed(output, now)) is not None]
        self._abort(overrun, AbortReason.STOP_STRING)

    def _process(self, processor: SequenceProcessor, output: SequenceOutput) -> OutputStep:
        """A fault of one sequence's text is that sequence's end, and nobody else's."""
        try:
            return processor.feed(output)
        except Exception:
            logger.exception("the output of %s could not be processed", output.request_id)
            return processor.fail(FAULTY_TEXT)

    def _feed(self, output: SequenceOutput, now: float) -> str | None:
        """Hands one output to its sequence; returns the id when the answer ended before the backend knows of it."""
        tokens = len(output.token_ids)
        self.generated_tokens_total += tokens
        sequence = self._live.get(output.request_id)
        if sequence is None:
            self._feed_late(output, now)
            return None
        if tokens:
            sequence.stream.sampled(now)
            if sequence.last_token_at is not None:
                sequence.stream.gaps.add(now - sequence.last_token_at, tokens)
            sequence.last_token_at = now
        update = self._process(sequence.processor, output)
        if update.parts or update.released_tokens or update.finished is not None:
            sequence.stream.deliver(update)
        if output.finish_reason is not None:
            self._forget(output.request_id)
            sequence.stream.released()
            return None
        return output.request_id if update.finished is not None else None

    def _feed_late(self, output: SequenceOutput, now: float) -> None:
        """Counts what was sampled for a sequence that was aborted; its own end confirms the abort as well."""
        tokens = len(output.token_ids)
        entry = self._aborts.get(output.request_id)
        if entry is not None:
            entry.stream.sampled_late(tokens, zombie=entry.is_zombie)
        if entry is None or entry.is_zombie:
            self.zombie_tokens_total += tokens
        if output.finish_reason is not None:
            self._confirm(output.request_id, now)
