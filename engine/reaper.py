"""Looks every few seconds for sequences that nobody waits for any more, and ends them: 0 unless something is broken.

Never trusts the core's own books alone: it compares them with what the engine says that it holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping

from engine.aborts import AbortLedger
from engine.backends.base import Backend
from engine.live import LiveSequence
from engine.types import AbortReason

logger = logging.getLogger(__name__)
ABORT_CONFIRM_SECONDS = 10.0
"""An abort that the engine has not confirmed for so long is sent again."""


class Reaper:
    """From `start` to `stop` a timer; `orphans` can be read at any time."""

    def __init__(
        self,
        backend: Backend,
        live: Mapping[str, LiveSequence],
        aborts: AbortLedger,
        abort: Callable[[Collection[str], AbortReason], None],
    ) -> None:
        """`abort` ends live sequences in the core's way."""
        self.reaped_total = 0
        """Orphans that were ended."""
        self._backend = backend
        self._live = live
        self._aborts = aborts
        self._abort = abort
        self._timer: asyncio.TimerHandle | None = None

    def start(self, interval: float) -> None:
        """Reaps every `interval` seconds from now on."""
        self._timer = asyncio.get_running_loop().call_later(interval, self._tick, interval)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def orphans(self) -> int:
        """Sequences in the engine that nobody knows of, and live ones whose consumer is gone without leaving."""
        return len(self._unknown()) + len(self._unattended())

    def reap(self) -> None:
        """Ends the orphans, and sees to aborts that were not confirmed."""
        unknown, unattended = self._unknown(), self._unattended()
        for request_id in (*unknown, *unattended):
            logger.warning("sequence %s has no consumer and is aborted", request_id)
        self.reaped_total += len(unknown) + len(unattended)
        if unknown:
            self._backend.abort(unknown)
        for request_id in unattended:
            self._abort([request_id], self._live[request_id].stream.abort_reason)
        self._see_to_aborts(time.monotonic())

    def _tick(self, interval: float) -> None:
        self.start(interval)
        self.reap()

    def _unknown(self) -> list[str]:
        held = self._backend.request_ids()
        return [request_id for request_id in held if request_id not in self._live and request_id not in self._aborts]

    def _unattended(self) -> list[str]:
        return [request_id for request_id, sequence in self._live.items() if sequence.stream.unattended]

    def _see_to_aborts(self, now: float) -> None:
        """Of an overdue abort the engine holds nothing, then its confirmation was lost; or it has to be told again."""
        overdue = self._aborts.overdue(now - ABORT_CONFIRM_SECONDS)
        if not overdue:
            return
        held = self._backend.request_ids()
        lost = [request_id for request_id in overdue if request_id not in held]
        again = [request_id for request_id in overdue if request_id in held]
        logger.warning("aborts not confirmed: %d sequences are gone, %d are aborted again", len(lost), len(again))
        self._aborts.settle_all(lost)
        self._aborts.sent_again(again, now)
        self._backend.abort(again)
