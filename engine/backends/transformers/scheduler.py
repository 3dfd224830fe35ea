"""The scheduler inside the engine's thread: first come, first served, and it tells what the stock one keeps to itself.

Written against the private parts of transformers 5.19 like `continuous`. Never on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from typing import Any, Protocol

from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from engine.backends.transformers.run import SchedulerTotals
from engine.backends.transformers.sequence import Delivery


class StepListener(Protocol):
    """Who hears, on the engine's thread, what the engine does."""

    def stepped(self, outputs: Series[Delivery], scheduled: Series[str] = (), freed: Series[str] = ()) -> None:
        """A step's outputs; request ids whose prefill begins; keys of cancelled sequences that are gone."""

    def exited(self, reason: str) -> None:
        """The thread is over."""


class SequenceScheduler(FIFOScheduler):  # type: ignore[misc]
    """Decode before prefill. `attach` comes before the first sequence.

    The stock scheduler admits nothing after a preemption until some sequence *finishes*. When the running ones
    are all cancelled instead, it would never admit anything again; here a cancel or an empty engine lifts the bar.

    The stock engine empties its queue of submissions and then its queue of cancels, so a sequence that is submitted
    and cancelled in between is cancelled before it is there, to no effect. Keys only grow, and sequences arrive in
    their order: a cancelled key above the newest is kept until its sequence comes.
    """

    def attach(self, listener: StepListener, totals: SchedulerTotals) -> None:
        self._listener = listener
        self._totals = totals
        self._newest_key = 0
        self._scheduled: list[str] = []

    def add_waiting_request(self, state: Any) -> None:
        key = int(state.request_id)
        if key <= self._newest_key:
            self._totals.preemptions += 1  # it was here before, and comes again
        self._newest_key = max(self._newest_key, key)
        super().add_waiting_request(state)

    def clear_cancelled_requests(self) -> list[RequestState]:
        keys = self._requests_to_cancel
        cancelled: list[RequestState] = super().clear_cancelled_requests()
        if cancelled or not self.active_requests:
            self.block_new_requests = False
        if keys:
            early = {key for key in keys if int(key) > self._newest_key}
            self._requests_to_cancel |= early
            if gone := [key for key in keys if key not in early]:
                self._listener.stepped((), freed=gone)
        return cancelled

    def schedule_batch(
        self, token_budget: int, cache_budget: int
    ) -> tuple[list[FutureRequestState] | None, bool, int, int]:
        batch, *rest = super().schedule_batch(token_budget, cache_budget)
        scheduled, self._scheduled = self._scheduled, []
        only_prefills = bool(batch) and not any(future.has_new_token for future in batch)
        if scheduled or only_prefills:  # of which there will be no outputs to tell that the engine lives
            self._listener.stepped((), scheduled=scheduled)
        return batch, *rest

    def _infer_request_tokens(self, state: Any, request_ids_to_remove_from_waiting: set[str]) -> list[int]:
        computed = state.position_offset
        token_ids: list[int] = super()._infer_request_tokens(state, request_ids_to_remove_from_waiting)
        if state.position_offset > computed and state.sequence.generated == 0:
            state.sequence.cached_tokens = state.position_offset - computed
        return token_ids

    def _schedule_request(self, state: Any, *args: Any) -> None:
        super()._schedule_request(state, *args)
        sequence = state.sequence
        if not sequence.scheduled:
            sequence.scheduled = True
            self._scheduled.append(sequence.request.request_id)
            if self.cache.use_prefix_sharing:
                self._totals.prefix_cache_queries += len(sequence.request.prompt_token_ids)
                self._totals.prefix_cache_hits += sequence.cached_tokens
