"""The stream's states: the tables are total, terminal states are final, and every move is in a table or raises."""

from __future__ import annotations

import itertools

import pytest

from server.lifecycle import (
    DELIVERY_NEXT,
    END_STATE,
    GENERATION_NEXT,
    VERDICT_END_STATE,
    Delivery,
    EndState,
    Generation,
    Phase,
    StreamState,
    Verdict,
)

GENERATION_ENDS = [state for state, after in GENERATION_NEXT.items() if not after]
DELIVERY_ENDS = [state for state, after in DELIVERY_NEXT.items() if not after]


def stream(generation: Generation, delivery: Delivery) -> StreamState:
    """A stream that is in these states."""
    state = StreamState()
    state.generation, state.delivery = generation, delivery
    return state


def test_the_tables_are_total() -> None:
    """Every state has its row, every pair its cell; those with an end state are just the pairs of terminal states."""
    assert set(GENERATION_NEXT) == set(Generation)
    assert set(DELIVERY_NEXT) == set(Delivery)
    assert set(END_STATE) == set(itertools.product(Generation, Delivery))
    ended = {pair for pair, end in END_STATE.items() if end is not None}
    assert ended == set(itertools.product(GENERATION_ENDS, DELIVERY_ENDS))
    assert set(VERDICT_END_STATE) == set(Verdict)
    assert {*END_STATE.values(), *VERDICT_END_STATE.values()} == {None, *EndState}


def test_every_state_is_reached_and_left() -> None:
    """From the beginning every state can be reached, and from every state an end."""
    for first, table in ((Generation.NEW, GENERATION_NEXT), (Delivery.IDLE, DELIVERY_NEXT)):
        reached = {first}
        for _ in table:
            reached |= {after for state in reached for after in table[state]}  # type: ignore[index]
        assert reached == set(table)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Generation, Generation)))
def test_a_generation_move(before: Generation, after: Generation) -> None:
    """It is in the table, or to the same state, or raises and changes nothing."""
    state = stream(before, Delivery.IDLE)
    if after is before or after in GENERATION_NEXT[before]:
        state.generate(after)
        assert state.generation is after
    else:
        with pytest.raises(ValueError, match=f"{before} to {after}"):
            state.generate(after)
        assert state.generation is before


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Delivery, Delivery)))
def test_a_delivery_move(before: Delivery, after: Delivery) -> None:
    """As for generation."""
    state = stream(Generation.NEW, before)
    if after is before or after in DELIVERY_NEXT[before]:
        state.deliver(after)
        assert state.delivery is after
    else:
        with pytest.raises(ValueError, match=f"{before} to {after}"):
            state.deliver(after)
        assert state.delivery is before


@pytest.mark.parametrize(("generation", "delivery"), list(itertools.product(Generation, Delivery)))
def test_any_state_can_be_ended(generation: Generation, delivery: Delivery) -> None:
    """Closing and failing are legal in every state and idempotent, keep what had ended, and give an end state."""
    for delivered in (True, False):
        state = stream(generation, delivery)
        for _ in range(2):
            state.close(delivered=delivered)
        kept = generation if generation in GENERATION_ENDS else Generation.ABORTED
        assert state.generation is kept
        assert state.delivery in DELIVERY_ENDS
        assert state.end_state is END_STATE[state.generation, state.delivery]
    state = stream(generation, delivery)
    for _ in range(2):
        state.fail()
    assert state.generation is (generation if generation in GENERATION_ENDS else Generation.FAILED)
    assert state.end_state is not None


@pytest.mark.parametrize(("generation", "delivery"), list(itertools.product(Generation, Delivery)))
@pytest.mark.parametrize("verdict", Verdict)
def test_an_unfinished_stream_has_no_end_state(generation: Generation, delivery: Delivery, verdict: Verdict) -> None:
    """Nor has one of which the verdict is known; afterwards the verdict goes before what the two sides say."""
    state = stream(generation, delivery)
    assert state.end_state is END_STATE[generation, delivery]
    state.verdict = verdict
    assert (state.end_state is None) == (END_STATE[generation, delivery] is None)
    state.close(delivered=True)
    assert state.end_state is VERDICT_END_STATE[verdict]


def test_the_first_verdict_counts() -> None:
    """A deadline that passes after a soft cancel, or after another deadline, changes nothing."""
    state = StreamState()
    state.time_out(Phase.QUEUE)
    state.time_out(Phase.TOTAL)
    assert (state.verdict, state.deadline) == (Verdict.DEADLINE, Phase.QUEUE)
    state = StreamState()
    state.verdict = Verdict.SOFT_CANCEL
    state.time_out(Phase.TOTAL)
    assert (state.verdict, state.deadline) == (Verdict.SOFT_CANCEL, None)


def test_a_refused_request_was_never_submitted() -> None:
    """Whatever closes it afterwards, it stays rejected."""
    state = StreamState()
    state.refuse()
    state.close(delivered=False)
    assert not state.submitted
    assert state.end_state is EndState.REJECTED
