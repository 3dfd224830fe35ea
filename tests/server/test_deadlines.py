"""Deadlines: each counts in its own phase and from its own beginning, and the earliest comes next."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.deadlines import Deadlines, shorter
from server.lifecycle import Phase

TIMEOUTS = {Phase.QUEUE: 1.0, Phase.FIRST_TOKEN: 2.0, Phase.BETWEEN_TOKENS: 3.0, Phase.TOTAL: 100.0}
PHASES = st.sampled_from(list(TIMEOUTS))


@dataclass(frozen=True)
class At:
    """A progress."""

    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    generating: bool = True


QUEUED = At()
PREFILL = At(scheduled_at=10.5)
DECODING = At(scheduled_at=10.5, first_token_at=11.0, last_token_at=50.0)


@pytest.mark.parametrize(
    ("progress", "due"),
    [
        (QUEUED, (11.0, Phase.QUEUE)),
        (PREFILL, (12.0, Phase.FIRST_TOKEN)),
        (DECODING, (53.0, Phase.BETWEEN_TOKENS)),
        (replace(DECODING, last_token_at=99.0), (100.0, Phase.TOTAL)),
        (replace(DECODING, generating=False), None),
    ],
)
def test_the_phase_decides(progress: At, due: tuple[float, Phase] | None) -> None:
    """Queue and first token count from the submission, the total from the arrival, gaps from the last token."""
    assert Deadlines(TIMEOUTS, arrived_at=0.0, submitted_at=10.0).next(progress) == due


@given(st.sampled_from([QUEUED, PREFILL, DECODING]), st.dictionaries(PHASES, st.floats(0.001, 1e6)))
def test_a_timeout_that_is_not_set_never_passes(progress: At, timeouts: dict[Phase, float]) -> None:
    """What comes next is of a phase that has a timeout; with none there is none."""
    due = Deadlines(timeouts, arrived_at=0.0, submitted_at=10.0).next(progress)
    assert due is None or due[1] in timeouts


@given(st.dictionaries(PHASES, st.floats(0.001, 1e6)), st.dictionaries(PHASES, st.floats(0.001, 1e6)))
def test_the_shorter_timeout_holds(one: dict[Phase, float], other: dict[Phase, float]) -> None:
    """A client can only shorten: whoever names a phase binds it, and of two the shorter one holds."""
    both = shorter(one, other)
    assert set(both) == {*one, *other}
    assert all(both[phase] == min(side[phase] for side in (one, other) if phase in side) for phase in both)
    assert both == shorter(other, one)
