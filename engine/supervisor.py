"""Keeps one engine stepping for ever: notices its death or its stall, and starts it again with exponential back-off.

Never looks into a step and never ends a stream itself: it tells its owner.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.backends.base import Backend
from engine.errors import EngineUnavailableError
from engine.types import StepOutputs

logger = logging.getLogger(__name__)
CHECKS_PER_TIMEOUT = 4
"""A stall is noticed after its timeout, and at most a quarter of it later."""
LEAST_PAUSE = 0.1
"""Seconds between two starts that fail, whatever the settings say."""


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """All in seconds."""

    backoff: float = 1.0
    """Pause before the first restart; each failure after it doubles the pause."""
    backoff_max: float = 60.0
    """Longest pause. An engine that lived for longer than this starts over with the shortest."""
    stall_timeout: float = 300.0
    """An engine with work that makes no step for so long counts as dead."""
    close_timeout: float = 45.0
    """How long a dead engine may take to close; then it is left to itself."""
    reap_interval: float = 5.0
    """Between two looks for sequences that nobody waits for."""


class Supervised(Protocol):
    """Who owns the supervised engine's sequences."""

    @property
    def has_work(self) -> bool:
        """The engine owes a step: a sequence is live, or its abort not confirmed."""

    def take_step(self, step: StepOutputs) -> None:
        """What one engine step did."""

    def engine_died(self, reason: str) -> None:
        """The engine holds nothing any more and takes nothing; `failure` says why already."""


class Supervisor:
    """Runs the backend's step loop as one task, from `start` to `stop`."""

    def __init__(self, backend: Backend, config: SupervisionConfig, owner: Supervised) -> None:
        self.failure: str | None = None
        """Why the engine is down; None while it is up, and before its first start."""
        self.restarts_total = 0
        """Times that a dead engine came up again."""
        self._backend = backend
        self._config = config
        self._owner = owner
        self._task: asyncio.Task[None] | None = None
        self._watchdog = _Watchdog(config.stall_timeout, lambda: owner.has_work)
        self._backoff = config.backoff
        self._next_attempt_at = 0.0

    @property
    def ready(self) -> bool:
        """The engine is up."""
        return self._task is not None and self.failure is None

    @property
    def retry_after(self) -> float:
        """Seconds until the next attempt to start the engine; during one, the pause that would follow it."""
        left = self._next_attempt_at - time.monotonic()
        return left if left > 0 else self._backoff

    def work_arrived(self) -> None:
        """The first sequence after a silence that was rightful."""
        self._watchdog.progress += 1

    async def start(self) -> None:
        """Starts the engine and its loop. What the backend raises the first time is raised, not retried."""
        await self._backend.start()
        self._task = asyncio.create_task(self._run(), name="engine step loop")

    async def stop(self) -> None:
        """Ends the loop and closes the backend, in bounded time."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._close()

    async def _run(self) -> None:
        while True:
            started_at = time.monotonic()
            try:
                await self._step_until_death()
            except Exception as error:
                logger.exception("the engine died")
                self._mark_dead(str(error) or type(error).__name__, lived=time.monotonic() - started_at)
            await self._close()
            await self._restart()

    async def _step_until_death(self) -> None:
        """Raises what the engine died of."""
        loop = asyncio.get_running_loop()
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._watchdog.watch(lambda: timeout.reschedule(loop.time()))
                await self._step_for_ever()
        except TimeoutError:
            if not timeout.expired():
                raise
            message = f"the engine made no step for {self._config.stall_timeout:g} seconds"
            raise EngineUnavailableError(message) from None
        finally:
            self._watchdog.rest()

    async def _step_for_ever(self) -> None:
        while True:
            step = await self._backend.next_step()
            self._watchdog.progress += 1
            self._owner.take_step(step)

    def _mark_dead(self, reason: str, lived: float) -> None:
        self.failure = reason
        if lived > self._config.backoff_max:
            self._backoff = self._config.backoff
        self._next_attempt_at = time.monotonic() + self._backoff
        self._owner.engine_died(reason)

    async def _restart(self) -> None:
        """Tries until the engine is up."""
        while True:
            self._next_attempt_at = time.monotonic() + self._backoff
            await asyncio.sleep(self._backoff)
            self._backoff = max(LEAST_PAUSE, min(2 * self._backoff, self._config.backoff_max))
            try:
                await self._backend.start()
                break
            except Exception as error:
                self.failure = f"the engine could not be started again: {str(error) or type(error).__name__}"
                logger.exception("the engine could not be started again; next attempt in %g s", self._backoff)
                await self._close()
        self.restarts_total += 1
        self.failure = None
        logger.info("the engine is up again")

    async def _close(self) -> None:
        """Closes the backend; one that takes too long, or fails, is left to itself."""
        try:
            async with asyncio.timeout(self._config.close_timeout):
                await self._backend.close()
        except Exception:
            logger.exception("the engine did not close as it should")


class _Watchdog:
    """Looks now and then whether there was progress while there was work: one timer, and no clock call in a step.

    It counts its own looks and not the time, so that a process that was held up itself blames nobody.
    """

    def __init__(self, timeout: float, has_work: Callable[[], bool]) -> None:
        self.progress = 0
        """Goes up with each step, and with work after a silence."""
        self._interval = timeout / CHECKS_PER_TIMEOUT
        self._has_work = has_work
        self._seen = 0
        self._quiet_checks = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, on_stall: Callable[[], None]) -> None:
        """Calls back when nothing moved for the whole timeout; the time counts from the last progress."""
        self._quiet_checks = 0
        self._schedule(on_stall)

    def rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, on_stall: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._check, on_stall)

    def _check(self, on_stall: Callable[[], None]) -> None:
        quiet = self.progress == self._seen and self._has_work()
        self._seen = self.progress
        self._quiet_checks = self._quiet_checks + 1 if quiet else 0
        if self._quiet_checks == CHECKS_PER_TIMEOUT:
            on_stall()
        else:
            self._schedule(on_stall)
