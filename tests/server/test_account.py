"""Accounts, the log line and the metrics made of them: each quantity counted once, whatever way a request ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.output.events import Finished, OutputStep
from engine.types import FinishReason
from server.account import Account
from server.lifecycle import Delivery, EndState, Generation, Phase
from server.log import JsonFormatter, log_request


def account(**fields: Any) -> Account:
    """An account that was opened at second 100."""
    return Account("r1", "/v1/completions", "m", streams=True, started_at=100.0, **fields)


def refused(**fields: Any) -> Account:
    """One that was turned away."""
    told = account(**fields)
    told.state.refuse()
    return told


@given(st.lists(st.sampled_from(list(FinishReason)), max_size=5))
def test_ends_are_told_in_order(reasons: list[FinishReason]) -> None:
    """Each choice's end once, as it was written; what ends nothing adds nothing."""
    told = account()
    for index, reason in enumerate(reasons):
        told.wrote([OutputStep(index, released_tokens=1), OutputStep(index, finished=Finished(reason))])
    assert told.finish_reasons == [reason.value for reason in reasons]


@given(st.tuples(*[st.integers(0, 50)] * 4))
def test_the_tokens_add_up(parts: tuple[int, int, int, int]) -> None:
    """Whatever of an answer was delivered, lost, cut off or generated for nobody: the sum is what was generated."""
    delivered, lost, cut, zombies = parts
    told = account(
        generated_tokens=sum(parts),
        completion_tokens=delivered + lost,
        zombie_tokens=zombies,
        delivered_tokens=delivered,
    )
    assert (told.cut_tokens, told.undelivered_tokens) == (cut, lost + zombies)


PHASES = [
    ({}, Generation.NEW, "request"),
    ({}, Generation.QUEUED, "queue"),
    ({"scheduled_at": 101.0}, Generation.RUNNING, "first_token"),
    ({"scheduled_at": 101.0, "first_token_at": 102.0}, Generation.RUNNING, "between_tokens"),
    ({"scheduled_at": 101.0, "first_token_at": 102.0}, Generation.FINISHED, "delivery"),
]


@pytest.mark.parametrize(("times", "generation", "phase"), PHASES)
def test_the_phase(times: dict[str, float], generation: Generation, phase: str) -> None:
    """How far it came stays told when it has ended there; a complete answer is done, a deadline names itself."""
    told = account(**times)
    if generation is not Generation.NEW:
        told.state.generate(Generation.QUEUED)
        told.state.generate(generation)
    assert told.phase.value == phase
    told.state.close(delivered=False)
    assert told.phase.value == phase
    told.state.time_out(Phase.SLOW_CLIENT)
    assert told.phase is Phase.SLOW_CLIENT


def test_a_complete_answer_is_done() -> None:
    """Once it is written too."""
    told = account(first_token_at=102.0)
    for generation in (Generation.QUEUED, Generation.FINISHED):
        told.state.generate(generation)
    told.state.deliver(Delivery.CLOSED)
    assert told.phase is Phase.DONE


ENDINGS = [
    (Generation.FINISHED, Delivery.CLOSED, EndState.COMPLETED),
    (Generation.ABORTED, Delivery.LOST, EndState.CLIENT_CANCELLED),
    (Generation.FAILED, Delivery.CLOSED, EndState.UPSTREAM_ERROR),
]


@pytest.mark.parametrize(("generation", "delivery", "end"), ENDINGS)
def test_the_record(generation: Generation, delivery: Delivery, end: EndState) -> None:
    """The log line says how it ended and every quantity by name; what was not there is left out."""
    told = account(prompt_tokens=3, written_tokens=2, ended_at=100.5)
    told.state.generation, told.state.delivery = generation, delivery
    record = told.as_record()
    assert record["end_state"] == end.value
    assert (record["prompt_tokens"], record["written_tokens"], record["duration_seconds"]) == (3, 2, 0.5)
    assert record["time_to_first_token_seconds"] is None
    assert not {"error", "client_request_id", "ignored_fields"} & set(record)
    json.dumps(record)


def test_a_refusal_is_no_failure() -> None:
    """A refused request is `rejected`, in the phase of requests."""
    told = account()
    told.state.refuse()
    record = told.as_record()
    assert (record["end_state"], record["phase"]) == ("rejected", "request")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the requests' logger writes."""
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(JsonFormatter().format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("tailrace.requests")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_the_log_line_is_json(lines: list[str]) -> None:
    """One line, whatever a client put into the fields it names."""
    log_request(refused(ignored_fields=('a"\n\u2028b',), error="line\nbreak").as_record())
    (line,) = lines
    assert line.isascii()
    assert "\n" not in line
    parsed = json.loads(line)
    assert (parsed["event"], parsed["message"], parsed["level"]) == ("request", "rejected", "info")
    assert parsed["ignored_fields"] == ['a"\n\u2028b']
