"""How fast things go and when there is room again: a token bucket, slots, and the pace of a queue. Pure.

Never a clock of its own: every `now` is handed in, in seconds of one clock that never goes back.
"""

from __future__ import annotations

from collections import deque

SECONDS_PER_MINUTE = 60.0
ROUNDING = 1e-6
"""Of a request or token: who waited as long as was said is not sent away for what floats lose."""
DURATION_WEIGHT = 0.2
"""What the newest duration counts in the mean of the recent ones."""
PACE_WINDOW_SECONDS = 30.0
"""How far back a queue's pace is measured."""
PACE_SPACING_SECONDS = 0.5
"""Samples of the pace are at least so far apart, which bounds their number."""
PACE_SPAN_SECONDS = 1.0
"""A pace is known when its samples reach back so far: engines schedule in bursts."""


class Bucket:
    """A token bucket: a minute's worth may be taken at once, and as much flows in again each minute, evenly.

    What turns out larger than was known when it began is charged afterwards, and may leave a debt that must flow in
    first: over any long time no more than `per_minute` is taken a minute.
    """

    __slots__ = ("_filled_at", "_level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._filled_at = now

    def seconds_until(self, amount: float, now: float) -> float:
        """When so much can be taken: 0 for now. More than the bucket holds can be taken when it is full."""
        self._fill(now)
        missing = min(amount, self.per_minute) - self._level
        return missing * SECONDS_PER_MINUTE / self.per_minute if missing > ROUNDING else 0.0

    def take(self, amount: float, now: float) -> None:
        """Charges so much, whether it is there or not."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        flowed = (now - self._filled_at) * self.per_minute / SECONDS_PER_MINUTE
        self._level = min(float(self.per_minute), self._level + flowed)
        self._filled_at = now


class Slots:
    """Places that are held for a while: how many are taken, and when one of them is likely to be free."""

    __slots__ = ("_mean_seconds", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._mean_seconds: float | None = None

    def enter(self) -> None:
        self.taken += 1

    def leave(self, seconds: float) -> None:
        """A place is free again, after so long."""
        self.taken -= 1
        mean = self._mean_seconds
        self._mean_seconds = seconds if mean is None else mean + DURATION_WEIGHT * (seconds - mean)

    def seconds_until_free(self) -> float | None:
        """Of n holders that began at odd times one leaves every nth part of their mean duration; None: not known."""
        return None if self._mean_seconds is None else self._mean_seconds / max(self.taken, 1)


class QueuePace:
    """How fast a queue drains, out of samples of a counter of what has left it, taken while something waits.

    While nothing waits, things leave as fast as they come, which says nothing of how fast they could.
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, left_total: int, waiting: int) -> None:
        """Called whenever somebody asks; a counter that went back was begun anew."""
        samples = self._samples
        if not waiting or (samples and left_total < samples[-1][1]):
            samples.clear()
        while samples and samples[0][0] < now - PACE_WINDOW_SECONDS:
            samples.popleft()
        if waiting and (not samples or now - samples[-1][0] >= PACE_SPACING_SECONDS):
            samples.append((now, left_total))

    def seconds_for(self, waiting: int, now: float, left_total: int) -> float | None:
        """How long what waits now will take to leave; None: not known yet.

        Where nothing has left since the first sample the answer is the least that fits: the next leaves right now.
        """
        if not self._samples or (span := now - self._samples[0][0]) < PACE_SPAN_SECONDS:
            return None
        return waiting * span / max(left_total - self._samples[0][1], 1)
