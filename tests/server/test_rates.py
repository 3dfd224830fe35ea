"""Buckets, slots and the pace of a queue: who waits as told finds room, and no bound is passed over any time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.rates import PACE_SPACING_SECONDS, PACE_WINDOW_SECONDS, Bucket, QueuePace, Slots

AMOUNTS = st.integers(1, 5_000)
PAUSES = st.floats(0, 300, allow_nan=False)


@given(st.integers(1, 1_000), st.lists(st.tuples(PAUSES, AMOUNTS), max_size=40), PAUSES)
def test_a_bucket_keeps_its_rate(per_minute: int, asked: list[tuple[float, int]], began: float) -> None:
    """Whatever comes when, what is let in by t seconds is a minute's worth, its refill, and one that was too large."""
    bucket = Bucket(per_minute, began)
    now, taken, largest = began, 0, 0
    for pause, amount in asked:
        now += pause
        if not bucket.seconds_until(amount, now):
            bucket.take(amount, now)
            taken += amount
            largest = max(largest, amount)
        assert taken <= per_minute * (1 + (now - began) / 60) + max(0, largest - per_minute) + 1e-3


@given(st.integers(1, 1_000), st.lists(AMOUNTS, max_size=10), AMOUNTS, PAUSES)
def test_who_waits_as_told_finds_room(per_minute: int, charged: list[int], amount: int, pause: float) -> None:
    """There is room after the seconds that were named, for any debt and any amount, and not much before."""
    bucket = Bucket(per_minute, 0.0)
    for charge in charged:
        bucket.take(charge, pause)
    seconds = bucket.seconds_until(amount, pause)
    if seconds > 1:
        assert bucket.seconds_until(amount, pause + 0.9 * seconds) > 0
    assert bucket.seconds_until(amount, pause + seconds) == 0


def test_a_full_bucket_lets_a_minute_in_at_once() -> None:
    """The first minute's requests may come together; the next one waits its share of a minute."""
    bucket = Bucket(6, 0.0)
    for _ in range(6):
        assert bucket.seconds_until(1, 0.0) == 0
        bucket.take(1, 0.0)
    assert bucket.seconds_until(1, 0.0) == pytest.approx(10)


def test_a_debt_flows_in_first() -> None:
    """What an answer used beyond the bucket is waited for: over the long run the rate holds."""
    bucket = Bucket(60, 0.0)
    bucket.take(60 + 120, 0.0)
    assert bucket.seconds_until(1, 0.0) == pytest.approx(121)


def test_slots_know_nothing_before_the_first_leaves() -> None:
    """No estimate is made up."""
    slots = Slots()
    slots.enter()
    assert slots.seconds_until_free() is None


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.integers(1, 50))
def test_slots_estimate_from_recent_durations(durations: list[float], taken: int) -> None:
    """Of n that run one leaves within an nth of a duration that was seen; as many are taken as entered and stayed."""
    slots = Slots()
    for duration in durations:
        slots.enter()
        slots.leave(duration)
    for _ in range(taken):
        slots.enter()
    seconds = slots.seconds_until_free()
    assert slots.taken == taken
    assert seconds is not None
    assert min(durations) / taken <= seconds * (1 + 1e-9)
    assert seconds <= max(durations) / taken * (1 + 1e-9)


@given(st.floats(0.5, 50), st.integers(1, 1_000), st.floats(0.01, 3), st.integers(30, 200))
def test_a_steady_queue_is_measured(rate: float, waiting: int, pause: float, asks: int) -> None:
    """Where `rate` sequences leave a second the wait is waiting/rate, however often somebody asks."""
    pace = QueuePace()
    now, left = 0.0, 0
    for ask in range(asks):
        now, left = ask * pause, int(rate * ask * pause)
        pace.sample(now, left, waiting)
    seconds = pace.seconds_for(waiting, now, left)
    span = min(now, PACE_WINDOW_SECONDS)
    if span < 1 + PACE_SPACING_SECONDS + pause:
        return
    assert seconds is not None
    drained = rate * span
    slack = 1 + rate * (pause + PACE_SPACING_SECONDS)  # one sequence, and the window's edge
    assert waiting * span / (drained + slack) * 0.5 <= seconds
    assert seconds <= 2 * waiting * span / max(drained - slack, 0.5)


def test_an_idle_time_says_nothing_of_the_pace() -> None:
    """Sequences that left while nothing waited are not counted: they left as fast as they came."""
    pace = QueuePace()
    for second in range(20):
        pace.sample(float(second), left_total=second, waiting=0)
    assert pace.seconds_for(1, 20.0, 20) is None
    for second in range(20, 23):
        pace.sample(float(second), left_total=(second - 18) * 10, waiting=100)
    assert pace.seconds_for(100, 22.0, 40) == pytest.approx(100 * 2 / 20)


def test_a_queue_that_does_not_drain() -> None:
    """The longer nothing leaves the longer is the wait; it is never endless and never a division by zero."""
    pace = QueuePace()
    pace.sample(0.0, 7, waiting=3)
    assert pace.seconds_for(3, 0.5, 7) is None
    assert pace.seconds_for(3, 2.0, 7) == 6
    assert pace.seconds_for(3, 10.0, 7) == 30


def test_a_counter_that_begins_anew() -> None:
    """An engine that was started again counts from 0: older samples are forgotten."""
    pace = QueuePace()
    pace.sample(0.0, 1_000, waiting=5)
    pace.sample(10.0, 3, waiting=5)
    assert pace.seconds_for(5, 10.0, 3) is None
    assert pace.seconds_for(5, 12.0, 7) == pytest.approx(5 * 2 / 4)


@given(st.lists(st.floats(0, 0.2), min_size=100, max_size=400))
def test_samples_are_bounded(pauses: list[float]) -> None:
    """However often admission is asked, there are at most as many samples as fit the window."""
    pace = QueuePace()
    now = 0.0
    for pause in pauses:
        now += pause
        pace.sample(now, 0, waiting=1)
        assert len(pace._samples) <= PACE_WINDOW_SECONDS / PACE_SPACING_SECONDS + 1
