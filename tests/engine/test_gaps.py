"""Gaps between tokens are counted once each, into the right bucket, and only where there are two tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.gaps import BOUNDARIES, TokenGaps

steps = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=50)


@given(steps)
def test_every_observation_is_in_one_bucket(gaps: list[tuple[float, int]]) -> None:
    """Counts add up to the tokens, seconds to the time, and each share lies between its bucket's bounds."""
    subject = TokenGaps()
    expected = [0] * (len(BOUNDARIES) + 1)
    for seconds, tokens in gaps:
        subject.add(seconds, tokens)
        expected[sum(bound < seconds / tokens for bound in BOUNDARIES)] += tokens
    assert subject.counts == expected
    assert subject.tokens == sum(tokens for _, tokens in gaps) == sum(subject.counts)
    assert subject.seconds == pytest.approx(sum(seconds for seconds, _ in gaps))
    assert subject.longest == max((seconds for seconds, _ in gaps), default=0.0)


@given(steps.filter(bool), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(gaps: list[tuple[float, int]], q: float) -> None:
    """Interpolated, so only as exact as its bucket; never beyond the longest gap."""
    subject = TokenGaps()
    for gap in gaps:
        subject.add(*gap)
    shares = sorted(seconds / tokens for seconds, tokens in gaps for _ in range(tokens))
    rank = next(index for index in range(len(shares)) if index + 1 >= q * len(shares))
    edges = (0.0, *BOUNDARIES, max(subject.longest, BOUNDARIES[-1]))
    low, high = next(pair for pair in pairwise(edges) if shares[rank] <= pair[1])
    quantile = subject.quantile(q)
    assert quantile is not None
    assert min(low, subject.longest) <= quantile <= min(high, subject.longest)


def test_quantiles_by_hand() -> None:
    """None of nothing; halves of an even spread; the open bucket ends with the longest."""
    subject = TokenGaps()
    assert subject.quantile(0.5) is None
    for _ in range(100):
        subject.add(0.09, 1)
    assert subject.quantile(0.5) == pytest.approx(0.0875)
    assert subject.quantile(1.0) == 0.09
    subject.add(30.0, 1)
    assert subject.quantile(1.0) == 30.0
