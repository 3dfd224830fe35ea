"""An engine put to sleep and woken: its memory is another's meanwhile, and no sequence is taken.

Never while a sequence is live: those end first, with a word on why.
"""

from __future__ import annotations

import asyncio

from engine.backends.base import EngineControls
from engine.core import EngineCore
from engine.errors import EngineUnavailableError
from engine.types import AbortReason, FinishReason

SETTLE_SECONDS = 30.0
"""How long the engine may take to confirm what was aborted: a step, as a rule."""
LOOK_SECONDS = 0.02
ENDED = "the engine was put to sleep"


class Slumber:
    """One change at a time, in the order in which they were asked for."""

    def __init__(self, core: EngineCore, controls: EngineControls) -> None:
        self._core = core
        self._controls = controls
        self._turn = asyncio.Lock()

    @property
    def level(self) -> int:
        """0 while the engine is awake."""
        return self._controls.sleep_level

    async def sleep(self, level: int) -> None:
        """Ends what is live and frees the engine's memory. Idempotent. `EngineUnavailableError` when it can't now."""
        async with self._turn:
            if self.level == level:
                return
            if not self._core.up:
                raise EngineUnavailableError(self._core.failure or "the engine is not running")
            self._core.paused = "the engine is asleep; POST /wake_up wakes it"
            try:
                await self._end_all()
                await self._controls.sleep(level)
            finally:
                self._follow()

    async def wake_up(self) -> None:
        """Takes sequences again when this returns. Idempotent."""
        async with self._turn:
            try:
                if self.level:
                    await self._controls.wake_up()
            finally:
                self._follow()

    async def _end_all(self) -> None:
        self._core.end_all(FinishReason.ABORT, ENDED, AbortReason.SHUTDOWN)
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._core.unsettled:  # noqa: ASYNC110 - each confirmation has its own stream to tell, none tells all
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise EngineUnavailableError("the engine does not let go of its sequences and stays awake") from None

    def _follow(self) -> None:
        """Whatever happened: an engine that is awake takes sequences."""
        if not self.level:
            self._core.paused = None
