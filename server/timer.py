"""One timer for all streams: each says when it next wants attention, and is asked then, not before.

Never a task or a timer of a stream's own, and never a word to a socket: what is due is the stream's to do.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from dataclasses import dataclass, field
from typing import Protocol

logger = logging.getLogger(__name__)
FORGOTTEN_KEPT = 1_000
"""Empty places over which it is worth looking whether they are most of the heap."""


class Attended(Protocol):
    """What can be watched."""

    def attend(self, now: float) -> float | None:
        """Does what is due at `now`; returns when to be asked again, on the monotonic clock, or None: never."""


@dataclass(order=True, slots=True)
class Watch:
    """One watched stream's place in the timer."""

    due: float
    serial: int
    item: Attended | None = field(compare=False)


class StreamTimer:
    """A heap of times. A time that moves later, as a deadline does with every token, costs nothing until it comes."""

    def __init__(self) -> None:
        self._heap: list[Watch] = []
        self._serial = itertools.count()
        self._forgotten = 0
        """Empty places in the heap."""
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0.0

    def watch(self, item: Attended, due: float) -> Watch:
        """Asks the item at `due`, and then whenever it said."""
        watch = Watch(due, next(self._serial), item)
        heapq.heappush(self._heap, watch)
        self._arm()
        return watch

    def forget(self, watch: Watch) -> None:
        """The item is not asked again. Idempotent."""
        if watch.item is None:
            return
        watch.item = None
        self._forgotten += 1
        if self._forgotten > FORGOTTEN_KEPT and self._forgotten > len(self._heap) / 2:
            self._heap = [kept for kept in self._heap if kept.item is not None]
            heapq.heapify(self._heap)
            self._forgotten = 0

    def _arm(self) -> None:
        if not self._heap:
            return
        due = self._heap[0].due
        if self._handle is not None:
            if self._armed_for <= due:
                return
            self._handle.cancel()
        self._armed_for = due
        self._handle = asyncio.get_running_loop().call_later(max(0.0, due - time.monotonic()), self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = time.monotonic()
        while self._heap and self._heap[0].due <= now:
            watch = heapq.heappop(self._heap)
            due = self._attend(watch, now)
            if due is not None:
                watch.due = max(due, now)
                heapq.heappush(self._heap, watch)
                if watch.due <= now:
                    break  # at once again, but not before the loop had its turn
        self._arm()

    def _attend(self, watch: Watch, now: float) -> float | None:
        """One stream's fault is not the others'."""
        if watch.item is None:
            self._forgotten -= 1
            return None
        try:
            due = watch.item.attend(now)
        except Exception:
            logger.exception("a stream could not be attended to")
            due = None
        if due is None:
            watch.item = None  # its place is given up here, not by `forget`
        return due
