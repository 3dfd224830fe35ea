"""Admission: which bound refuses, with which status and wait; every place that was taken is given back exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineOverloadedError, EngineUnavailableError
from engine.types import EngineStats
from server.admission import RETRY_AFTER_SECONDS, Admission, Ticket
from server.auth import ApiKey
from server.config import ServerConfig


@dataclass
class FakeEngine:
    """An engine's queue that the test moves by hand."""

    ready: bool = True
    failure: str | None = None
    paused: str | None = None
    retry_after: float = 7.0
    scheduled_total: int = 0
    waiting: int = 0

    def stats(self) -> EngineStats:
        return EngineStats(running=0, waiting=self.waiting, kv_blocks_total=1, kv_blocks_free=1)


@dataclass
class Hall:
    """An admission with its engine and its clock."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    now: float = 1_000.0
    bounds: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admission = Admission(self.engine, ServerConfig(**self.bounds), clock=lambda: self.now)

    def admit(self, key: ApiKey | None = None, sequences: int = 1, prompt_tokens: int = 10) -> Ticket:
        return self.admission.admit(key, sequences=sequences, prompt_tokens=prompt_tokens)

    def refused(self, key: ApiKey | None = None, sequences: int = 1, prompt_tokens: int = 10) -> EngineOverloadedError:
        with pytest.raises(EngineOverloadedError) as raised:
            self.admit(key, sequences, prompt_tokens)
        return raised.value


def test_a_draining_server() -> None:
    """503 for everyone, whatever else is reached, counted once each; ready says so too."""
    hall = Hall(bounds={"max_num_streams": 1})
    hall.admit()
    hall.admission.draining = True
    for ask in (hall.admission.check, hall.admit):
        with pytest.raises(EngineUnavailableError, match="draining") as raised:
            ask()
        assert raised.value.retry_after
    assert hall.admission.rejections == {"draining": 2}
    assert not hall.admission.ready


def test_an_engine_that_is_down() -> None:
    """503 with the engine's own reason, and the time of its next start."""
    hall = Hall(FakeEngine(ready=False, failure="it fell over"))
    with pytest.raises(EngineUnavailableError, match="it fell over") as raised:
        hall.admission.check()
    assert raised.value.retry_after == 7
    assert hall.admission.rejections == {"engine_down": 1}


@pytest.mark.parametrize(("waiting", "sequences", "fits"), [(3, 1, True), (4, 1, False), (2, 3, False), (0, 100, True)])
def test_the_queue_is_bounded_by_sequences(waiting: int, sequences: int, fits: bool) -> None:
    """Up to the bound, with all the choices of a request; where nothing waits one is let in, however large."""
    hall = Hall(FakeEngine(waiting=waiting), bounds={"max_queued_requests": 4})
    if fits:
        hall.admit(sequences=sequences)
    else:
        assert "queues 4" in hall.refused(sequences=sequences).message
    assert hall.admission.rejections == ({} if fits else {"queue_full": 1})


def test_the_queue_is_bounded_by_prompt_tokens() -> None:
    """Only of prompts that the engine has not begun: begun or ended they make room, and once only."""
    hall = Hall(bounds={"max_queued_prompt_tokens": 100})
    first = hall.admit(prompt_tokens=500)
    assert "500 prompt tokens are waiting" in hall.refused(prompt_tokens=1).message
    first.scheduled()
    second = hall.admit(prompt_tokens=60)
    hall.admit(prompt_tokens=40)
    hall.refused(prompt_tokens=1)
    second.close()
    second.scheduled()
    first.close()
    assert hall.admission.queued_prompt_tokens == 40
    assert hall.admission.rejections == {"queue_tokens": 2}


def test_streams_are_bounded() -> None:
    """A place is free again when its request has ended, however often that is said."""
    hall = Hall(bounds={"max_num_streams": 2})
    first, _ = hall.admit(), hall.admit()
    assert "2 requests are being answered" in hall.refused().message
    first.close()
    first.close()
    hall.admit()
    hall.refused()
    assert hall.admission.rejections == {"max_streams": 2}


def test_a_key_has_its_own_concurrency() -> None:
    """One key's bound is no other's, and not that of requests without a key; the message names key and bound."""
    hall = Hall()
    ann, bob = ApiKey("ann", max_concurrent=1), ApiKey("bob", max_concurrent=1)
    ticket = hall.admit(ann)
    assert "'ann' has 1 requests running" in hall.refused(ann).message
    hall.admit(bob)
    hall.admit()
    ticket.close()
    hall.admit(ann)
    assert hall.admission.rejections == {"key_concurrency": 1}


def test_a_key_has_its_requests_a_minute() -> None:
    """A minute's worth at once, then one each share of a minute; what is refused is not charged."""
    hall = Hall()
    ann = ApiKey("ann", requests_per_minute=3)
    for _ in range(3):
        hall.admit(ann).close()
    assert hall.refused(ann).retry_after == pytest.approx(20)
    hall.refused(ann)
    hall.now += 20
    hall.admit(ann)
    hall.refused(ann)
    assert hall.admission.rejections == {"key_requests_rate": 3}


def test_a_key_has_its_tokens_a_minute() -> None:
    """The prompt is charged at once, what was generated at the end; a debt is waited for."""
    hall = Hall()
    ann = ApiKey("ann", tokens_per_minute=600)
    ticket = hall.admit(ann, prompt_tokens=500)
    assert hall.refused(ann, prompt_tokens=200).retry_after == pytest.approx(10)
    hall.admit(ann, prompt_tokens=100)
    ticket.close(generated_tokens=300)
    ticket.close(generated_tokens=300)
    with pytest.raises(EngineOverloadedError, match="600 tokens a minute") as raised:
        hall.admission.check(ann)
    assert raised.value.retry_after == pytest.approx(30.1)
    assert hall.admission.rejections == {"key_tokens_rate": 2}


def test_a_prompt_larger_than_a_minute() -> None:
    """It is let in when the bucket is full, and paid for by the time after it: no request is refused for ever."""
    hall = Hall()
    ann = ApiKey("ann", tokens_per_minute=100)
    hall.admit(ann, prompt_tokens=250)
    hall.now += 149
    hall.refused(ann, prompt_tokens=100)
    hall.now += 1
    hall.admit(ann, prompt_tokens=250)


def test_a_check_takes_nothing() -> None:
    """The look before tokenizing leaves every bound as it was."""
    hall = Hall(bounds={"max_num_streams": 1, "max_queued_prompt_tokens": 1})
    ann = ApiKey("ann", 1, 1, 1)
    for _ in range(5):
        hall.admission.check(ann)
    hall.admit(ann)
    assert hall.admission.rejections == {}


def test_a_wait_is_measured_from_the_queue() -> None:
    """Ten leave each second and a hundred wait: about ten seconds, told by the admission that refuses."""
    hall = Hall(FakeEngine(waiting=100), bounds={"max_queued_requests": 100})
    assert hall.refused().retry_after == RETRY_AFTER_SECONDS[0]
    for _ in range(10):
        hall.now += 1
        hall.engine.scheduled_total += 10
        hall.refused()
    assert hall.refused().retry_after == pytest.approx(10)


def test_a_wait_for_a_slot_is_measured_from_durations() -> None:
    """Two run, and they take 20 seconds each: one ends in about ten."""
    hall = Hall(bounds={"max_num_streams": 2})
    earlier = hall.admit()
    hall.now += 20
    earlier.close()
    hall.admit()
    hall.admit()
    assert hall.refused().retry_after == pytest.approx(10)


@pytest.mark.parametrize("seconds", [0.001, 1_000_000.0])
def test_a_wait_is_one_that_clients_keep_to(seconds: float) -> None:
    """At least a second, at most what an SDK waits."""
    hall = Hall(bounds={"max_num_streams": 1})
    earlier = hall.admit()
    hall.now += seconds
    earlier.close()
    hall.admit()
    assert hall.refused().retry_after in RETRY_AFTER_SECONDS


def test_bodies_share_a_budget() -> None:
    """Over it 429, but for one alone; given back on every way out."""
    hall = Hall(bounds={"max_body_bytes_in_flight": 100})
    bodies = hall.admission.bodies
    with bodies.share() as one, bodies.share() as other:
        for part in (60, 440):
            one(part)
        with pytest.raises(EngineOverloadedError, match="500 bytes of request bodies are being read"):
            other(1)
    with bodies.share() as one, bodies.share() as other:
        one(60)
        other(40)
        assert bodies.in_flight_bytes == 100
    with bodies.share() as one:
        one(5)
        assert bodies.in_flight_bytes == 5
    assert bodies.in_flight_bytes == 0
    assert hall.admission.rejections == {"body_bytes": 1}


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["admit ann", "admit bob", "admit", "scheduled", "close", "pass"]), st.integers(0, 40)),
    max_size=80,
)


@settings(max_examples=60)
@given(STEPS)
def test_nothing_leaks(steps: list[Step]) -> None:
    """Through any order of events no bound is passed, and at the end of all requests everything is as at the start."""
    hall = Hall(bounds={"max_num_streams": 4, "max_queued_prompt_tokens": 60})
    keys = {"ann": ApiKey("ann", max_concurrent=2), "bob": ApiKey("bob", tokens_per_minute=90)}
    tickets: list[Ticket] = []
    refusals = 0
    for step, number in steps:
        kind, _, name = step.partition(" ")
        if kind == "admit":
            try:
                tickets.append(hall.admit(keys.get(name), prompt_tokens=number))
            except EngineOverloadedError:
                refusals += 1
        elif kind == "pass":
            hall.now += number
        elif tickets and kind == "scheduled":
            tickets[number % len(tickets)].scheduled()
        elif tickets and kind == "close":
            tickets[number % len(tickets)].close(number)
        assert 0 <= hall.admission.streams.taken <= 4
        assert 0 <= hall.admission.queued_prompt_tokens <= 60
    for ticket in tickets:
        ticket.close()
    assert hall.admission.streams.taken == 0
    assert hall.admission.queued_prompt_tokens == 0
    assert all(usage._slots.taken == 0 for usage in hall.admission._usage.values())
    assert hall.admission.rejections.total() == refusals
