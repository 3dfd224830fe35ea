"""One life of the engine's thread, as the event loop hears of it, and what is counted over all lives.

Never imports torch, and never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVarTuple

if TYPE_CHECKING:
    from engine.backends.transformers.sequence import Delivery

Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class SchedulerTotals:
    """Written by the engine's thread, read by the loop's; see `EngineStats`."""

    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


@dataclass(slots=True)
class StepNews:
    """What the engine's thread says at a time."""

    outputs: Sequence[Delivery]
    scheduled: Sequence[str]
    freed: Sequence[str]
    """Keys of cancelled sequences of which the engine holds nothing any more."""


class EngineRun:
    """Carries the words of one engine's thread to the loop, in their order, until the run is over."""

    def __init__(self, take: Callable[[StepNews], None], end: Callable[[str], None]) -> None:
        """`take` and `end` are called on the loop that runs now."""
        self.over = False
        """The engine was given up: a thread that hung and wakes up late says nothing any more."""
        self._take = take
        self._end = end
        self._loop = asyncio.get_running_loop()

    def stepped(self, outputs: Sequence[Delivery], scheduled: Sequence[str] = (), freed: Sequence[str] = ()) -> None:
        """On the engine's thread."""
        self._call_on_loop(self._take, StepNews(outputs, scheduled, freed))

    def exited(self, reason: str) -> None:
        """On the engine's thread, as the last thing that it does."""
        self._call_on_loop(self._end, reason)

    def _call_on_loop(self, callback: Callable[[*Ts], None], *args: *Ts) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._call, callback, *args)

    def _call(self, callback: Callable[[*Ts], None], *args: *Ts) -> None:
        if not self.over:
            callback(*args)
