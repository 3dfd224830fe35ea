"""The one timer: every stream is asked when it is due and never before, whatever the others say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from server.timer import FORGOTTEN_KEPT, StreamTimer

LATE_SECONDS = 0.25
"""What a busy machine may add."""


class Asked:
    """Notes when it is asked, and says what its test says."""

    def __init__(self, answer: Callable[[float], float | None]) -> None:
        self.at: list[float] = []
        self.over = asyncio.Event()
        self._answer = answer

    def attend(self, now: float) -> float | None:
        self.at.append(now)
        due = self._answer(now)
        if due is None:
            self.over.set()
        return due


async def over(*items: Asked) -> None:
    """Until each was asked for the last time."""
    async with asyncio.timeout(10):
        for item in items:
            await item.over.wait()


async def test_each_is_asked_when_due() -> None:
    """Whatever the order in which they were given, none is asked early, and none much too late."""
    timer = StreamTimer()
    start = time.monotonic()
    delays = [0.06, 0.01, 0.04, 0.0, 0.02]
    items = {delay: Asked(lambda _: None) for delay in delays}
    for delay, item in items.items():
        timer.watch(item, start + delay)
    await over(*items.values())
    for delay, item in items.items():
        (at,) = item.at
        assert start + delay <= at <= start + delay + LATE_SECONDS


async def test_again_and_again() -> None:
    """An item is asked at each time that it names, until it names none."""
    timer = StreamTimer()
    item = Asked(lambda now: None if len(item.at) == 5 else now + 0.01)
    timer.watch(item, time.monotonic())
    await over(item)
    assert len(item.at) == 5
    assert all(later - earlier >= 0.01 for earlier, later in zip(item.at, item.at[1:], strict=False))


async def test_a_time_already_past_does_not_hold_the_loop() -> None:
    """An item that is always due again lets everything else have its turn."""
    timer = StreamTimer()
    hasty = Asked(lambda _: None if other.at else 0.0)
    other = Asked(lambda _: None)
    timer.watch(hasty, 0.0)
    asyncio.get_running_loop().call_later(0.02, timer.watch, other, 0.0)
    await over(hasty, other)


async def test_a_forgotten_one_is_not_asked() -> None:
    """Forgetting is idempotent and the others' times stay."""
    timer = StreamTimer()
    gone, kept = Asked(lambda _: None), Asked(lambda _: None)
    watch = timer.watch(gone, time.monotonic())
    timer.watch(kept, time.monotonic() + 0.01)
    timer.forget(watch)
    timer.forget(watch)
    await over(kept)
    assert gone.at == []


async def test_one_fault_is_not_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """An item that raises is logged and dropped."""

    def fail(_now: float) -> float | None:
        raise ZeroDivisionError

    timer = StreamTimer()
    broken, kept = Asked(fail), Asked(lambda _: None)
    timer.watch(broken, time.monotonic())
    timer.watch(kept, time.monotonic() + 0.01)
    await over(kept)
    assert len(broken.at) == 1
    assert "could not be attended to" in caplog.text


async def test_an_earlier_one_comes_first() -> None:
    """A later call with an earlier time is not kept waiting by the timer that is already set."""
    timer = StreamTimer()
    late, early = Asked(lambda _: None), Asked(lambda _: None)
    start = time.monotonic()
    timer.watch(late, start + 30)
    timer.watch(early, start + 0.01)
    await over(early)
    assert late.at == []


async def test_the_forgotten_leave_no_places() -> None:
    """However far away their times are: a hundred thousand that came and went cost what a thousand do."""
    timer = StreamTimer()
    kept = Asked(lambda _: None)
    timer.watch(kept, time.monotonic() + 0.05)
    for _ in range(100_000):
        timer.forget(timer.watch(Asked(lambda _: None), time.monotonic() + 1e6))
    assert len(timer._heap) <= 2 * FORGOTTEN_KEPT + 2
    await over(kept)
