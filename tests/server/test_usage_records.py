"""The accounts of ended requests: found under their id for a while, by their key alone, never more than the bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.usage import UsageRecords, request_id_of


class Clock:
    """A clock that its test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 3)), max_size=40), st.integers(0, 5))
def test_bounds(arrivals: list[tuple[int, float]], most: int) -> None:
    """Never more than the bound, never one past its time; the newest within both are all there."""
    clock = Clock()
    records = UsageRecords(5.0, most, clock)
    added: list[tuple[str, float]] = []
    for number, (name, pause) in enumerate(arrivals):
        clock.now += pause
        request_id = f"{number}-{name}"
        records.add(request_id, None, {"number": number})
        added.append((request_id, clock.now))
        assert len(records) <= most
        newest = added[max(0, len(added) - most) :]
        for one, at in added:
            assert (records.find(one, None) is not None) == ((one, at) in newest and at + 5.0 > clock.now)


def test_another_key_finds_nothing() -> None:
    """Neither another key nor an open server's caller sees what a key's request used."""
    records = UsageRecords(5.0, 10, Clock())
    records.add("r", "alice", {"a": 1})
    assert records.find("r", "alice") == {"a": 1}
    assert records.find("r", "bob") is None
    assert records.find("r", None) is None


def test_an_expired_one_is_gone() -> None:
    """Also when nothing has come since to push it out."""
    clock = Clock()
    records = UsageRecords(5.0, 10, clock)
    records.add("r", None, {})
    clock.now += 5.0
    assert records.find("r", None) is None


@pytest.mark.parametrize(
    ("response_id", "request_id"),
    [("chatcmpl-0a1b", "0a1b"), ("cmpl-0a1b", "0a1b"), ("resp_0a1b", "0a1b"), ("msg_0a1b", "0a1b"), ("0a1b", "0a1b")],
)
def test_a_response_id_names_its_request(response_id: str, request_id: str) -> None:
    """Whatever a dialect puts before it, and as it stands in the headers."""
    assert request_id_of(response_id) == request_id
