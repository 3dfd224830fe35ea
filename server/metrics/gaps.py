"""A histogram of the times between tokens that takes each account's distribution in one go, not token by token.

Never a bound of its own: the buckets are those that the accounts were counted in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.gaps import BOUNDARIES, TokenGaps

_ENDS = [*map(floatToGoString, BOUNDARIES), "+Inf"]


class GapHistogram(Collector):
    """Sums `TokenGaps` by label values. A series begins with its first gap."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._seconds: dict[tuple[str, ...], float] = {}

    def add(self, gaps: TokenGaps, *labels: str) -> None:
        """Adds one account's gaps; their number is the tokens after the first, whatever the steps were."""
        counts = self._counts.setdefault(labels, [0] * len(_ENDS))
        for bucket, count in enumerate(gaps.counts):
            counts[bucket] += count
        self._seconds[labels] = self._seconds.get(labels, 0.0) + gaps.seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, counts in self._counts.items():
            buckets = list(zip(_ENDS, map(float, accumulate(counts)), strict=True))
            family.add_metric(labels, buckets, self._seconds[labels])
        yield family
