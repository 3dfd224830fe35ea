"""What an engine's own thread or process has said and the core has not heard yet: steps in order, and then its end.

Never an engine: a backend puts in what it hears, on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque

from engine.errors import EngineUnavailableError
from engine.types import StepOutputs


class StepMailbox:
    """From `open` to `end`. What was put in before the end is given out before it is told."""

    def __init__(self, ended: str | None = None) -> None:
        self.ended = ended
        """Why no step will come any more; None while some may."""
        self._steps: deque[StepOutputs] = deque()
        self._news = asyncio.Event()

    def open(self) -> None:
        """A fresh engine: nothing of the one before is given out."""
        self._steps.clear()
        self.ended = None

    def put(self, step: StepOutputs) -> None:
        self._steps.append(step)
        self._news.set()

    def end(self, reason: str) -> str:
        """No step follows but those put in by the same turn of the loop. Returns why: the first reason counts."""
        if self.ended is None:
            self.ended = reason
        self._news.set()
        return self.ended

    async def next(self) -> StepOutputs:
        """The oldest step; after the end `EngineUnavailableError`, again and again. Cancelling loses nothing."""
        while not self._steps:
            if self.ended is not None:
                raise EngineUnavailableError(self.ended)
            self._news.clear()
            await self._news.wait()
        return self._steps.popleft()
