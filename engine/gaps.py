"""The gaps between a stream's tokens, counted into fixed buckets: what the inter-token latency histogram is made of.

Never a clock: whoever adds a gap has measured it.
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets, in seconds, each inclusive as Prometheus has it; one more bucket is open at its end."""


class TokenGaps:
    """A histogram of inter-token latencies. Of a sequence's first step there is no gap."""

    __slots__ = ("counts", "longest", "seconds", "tokens")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDARIES) + 1)
        """Observations in each bucket, not cumulative."""
        self.tokens = 0
        """Observations: tokens that had one before them in their sequence, those of its first step left out."""
        self.seconds = 0.0
        """Sum of all observations."""
        self.longest = 0.0
        """The longest silence before a step, in seconds: what a reader waited, however many tokens then came."""

    def add(self, seconds: float, tokens: int) -> None:
        """A step came so long after its sequence's one before, and held `tokens` tokens, at least 1.

        Counted as `tokens` observations of an equal share each.
        """
        self.counts[bisect_left(BOUNDARIES, seconds / tokens)] += tokens
        self.tokens += tokens
        self.seconds += seconds
        self.longest = max(self.longest, seconds)

    def quantile(self, q: float) -> float | None:
        """The `q`-quantile in seconds, 0 <= q <= 1, interpolated within its bucket; None without observations.

        Never more than `longest`, which also ends the open bucket.
        """
        if not self.tokens:
            return None
        rank, below = q * self.tokens, 0
        edges = (0.0, *BOUNDARIES, self.longest)
        for bucket, count in enumerate(self.counts):
            if count and below + count >= rank:
                low, high = edges[bucket], edges[bucket + 1]
                return min(self.longest, low + (high - low) * (rank - below) / count)
            below += count
        return self.longest
