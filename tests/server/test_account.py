"""Accounts, the log line and the metrics made of them: each quantity counted once, whatever way a request ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from engine.core import EngineCore
from engine.detokenizer import Vocabulary
from engine.errors import EngineOverloadedError, EngineUnavailableError
from engine.output.events import Finished, OutputStep
from engine.types import EngineStats, FinishReason
from server.account import Account
from server.admission import Admission
from server.lifecycle import Delivery, EndState, Generation
from server.log import JsonFormatter, log_account
from server.metrics import Metrics
from tests.engine.engines import running_core, scripted, simulated_backend
from tests.vocabularies import vocabulary


def account(**fields: Any) -> Account:
    """An account that was opened at second 100."""
    return Account("r1", "/v1/completions", "m", streams=True, started_at=100.0, **fields)


@pytest.fixture
def core() -> EngineCore:
    """An engine that was not started."""
    return EngineCore(simulated_backend(), vocabulary("smollm2"))


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Every sample by name and end state."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, sample.labels.get("end_state", "")): sample.value
        for family in families
        for sample in family.samples
        if "le" not in sample.labels
    }


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=20))
def test_written_tokens_are_those_released(parts: list[tuple[int, int]]) -> None:
    """Each step's released tokens are written once, over all choices; ends are told in the order they came."""
    told = account()
    for index, released in parts:
        told.wrote([OutputStep(index, released_tokens=released)])
    told.wrote([OutputStep(0, finished=Finished(FinishReason.LENGTH))])
    assert told.written_tokens == sum(released for _, released in parts)
    assert told.finish_reasons == ["length"]


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
    """Whatever its states, a refused request is `rejected`."""
    assert account(rejected=True).as_record()["end_state"] == "rejected"


def test_metrics_count_an_account_once(core: EngineCore) -> None:
    """Tokens, end state and first token of a closed account, and nothing of another end state."""
    metrics = Metrics(core)
    told = account(prompt_tokens=3, written_tokens=2, generated_tokens=9, first_token_at=100.2)
    told.rejected = True
    before = samples(metrics)
    metrics.ended(told)
    grown = {key: value - before.get(key, 0) for key, value in samples(metrics).items() if value != before.get(key, 0)}
    assert grown.pop(("tailrace_time_to_first_token_seconds_sum", "")) == pytest.approx(0.2)
    assert grown == {
        ("tailrace_streams_total", "rejected"): 1,
        ("tailrace_prompt_tokens_total", ""): 3,
        ("tailrace_tokens_written_total", ""): 2,
        ("tailrace_tokens_delivered_total", ""): 2,
        ("tailrace_time_to_first_token_seconds_count", ""): 1,
    }


def test_an_account_without_a_token_has_no_latency(core: EngineCore) -> None:
    """A request aborted before its first token puts no sample into the histogram."""
    metrics = Metrics(core)
    told = account(rejected=True)
    metrics.ended(told)
    assert samples(metrics)["tailrace_time_to_first_token_seconds_count", ""] == 0


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
    log_account(account(rejected=True, ignored_fields=('a"\n\u2028b',), error="line\nbreak"))
    (line,) = lines
    assert line.isascii()
    assert "\n" not in line
    parsed = json.loads(line)
    assert (parsed["event"], parsed["message"], parsed["level"]) == ("request", "rejected", "info")
    assert parsed["ignored_fields"] == ['a"\n\u2028b']


def test_admission_before_the_engine_is_up(core: EngineCore) -> None:
    """An engine that was not started takes nothing, and says when to come back."""
    admission = Admission(core, 10)
    assert not admission.ready
    with pytest.raises(EngineUnavailableError, match="not running"):
        admission.check()


@pytest.mark.parametrize("bound", [1, 3])
async def test_admission_over_the_bound(bound: int, demo_vocabulary: Vocabulary) -> None:
    """So many may wait and no more; a place that is free again can be had."""
    async with running_core(demo_vocabulary, max_num_seqs=1, step_interval_ms=60_000) as engine:
        admission = Admission(engine, bound)
        for number in range(bound):
            admission.check()
            engine.backend.submit(scripted(str(number), [1]))
        with pytest.raises(EngineOverloadedError) as raised:
            admission.check()
        assert raised.value.retry_after > 0
        engine.backend.abort(["0"])
        admission.check()


async def test_admission_while_draining(demo_vocabulary: Vocabulary) -> None:
    """A draining server is not ready, though its engine is."""
    async with running_core(demo_vocabulary) as engine:
        admission = Admission(engine, 10)
        admission.check()
        admission.draining = True
        assert not admission.ready
        with pytest.raises(EngineUnavailableError, match="draining"):
            admission.check()


@pytest.fixture(scope="module")
def demo_vocabulary() -> Vocabulary:
    """The demo model's."""
    return vocabulary("smollm2")


def test_admission_counts_the_sequences_that_it_lets_in() -> None:
    """Behind a queue every choice counts; where nothing waits, a request is let in however many choices it wants."""
    stats = EngineStats(running=1, waiting=0, kv_blocks_total=1, kv_blocks_free=0)
    core = SimpleNamespace(ready=True, stats=lambda: stats)
    gate = Admission(cast("EngineCore", core), 4)
    gate.check(128)
    stats = replace(stats, waiting=2)
    gate.check(2)
    with pytest.raises(EngineOverloadedError):
        gate.check(3)
