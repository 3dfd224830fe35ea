"""The ledger of frames against a plain list: tokens of whole frames, whatever is acknowledged and when it is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.frame_ledger import FRAMES_KEPT, FrameLedger

frames = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5)), max_size=40)


@given(frames, st.lists(st.integers(0, 2_000), max_size=10))
def test_a_frame_counts_with_its_last_byte(sizes: list[tuple[int, int]], acknowledged: list[int]) -> None:
    """Tokens of frames that were acknowledged whole, none of one that was cut: at every count of bytes."""
    ledger, noted = FrameLedger(), [(0, 0)]
    for size, tokens in sizes:
        noted.append((noted[-1][0] + size, noted[-1][1] + tokens))
        ledger.note(*noted[-1])
    for count in sorted(acknowledged):
        assert ledger.delivered(count) == max(tokens for end, tokens in noted if end <= count)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_asking_between_the_frames_changes_nothing(asked: list[bool]) -> None:
    """What is forgotten was counted."""
    ledger = FrameLedger()
    for index, ask in enumerate(asked):
        ledger.note(10 * (index + 1), index + 1)
        if ask:
            assert ledger.delivered(10 * index + 5) == index
    assert ledger.delivered(10 * len(asked)) == len(asked)


def test_a_long_stream_is_forgotten_as_it_arrives() -> None:
    """The ledger asks to be told what arrived, seldom, and keeps no more than what is under way."""
    ledger, asked = FrameLedger(), 0
    under_way = 3 * FRAMES_KEPT
    for frame in range(1, 100_001):
        ledger.note(frame, frame)
        if ledger.crowded:
            asked += 1
            assert ledger.delivered(frame - under_way) == max(0, frame - under_way)
    assert asked < 100_000 / FRAMES_KEPT
    assert len(ledger._ends) <= 2 * (under_way + FRAMES_KEPT)
