"""What one account's end adds to the metrics: the ledger, its end, its latencies, and nothing that did not happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from engine.core import EngineCore
from engine.gaps import BOUNDARIES
from server.account import Account
from server.lifecycle import EndState
from server.metrics import Metrics
from server.metrics.gaps import GapHistogram
from tests.engine.engines import simulated_backend
from tests.server.scrapes import ENDS, MODEL, TOKEN_KINDS, Samples, account, gaps, grown, metrics_of, named
from tests.vocabularies import vocabulary


@pytest.fixture
def core() -> EngineCore:
    """An engine that was not started."""
    return EngineCore(simulated_backend(), vocabulary("smollm2"))


@pytest.fixture
def metrics(core: EngineCore) -> Metrics:
    return metrics_of(core)


@given(
    generated=st.integers(0, 50),
    parts=st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)),
    end=st.sampled_from([*ENDS, EndState.TIMED_OUT]),
)
@settings(deadline=None, max_examples=30)
def test_the_ledger_is_the_accounts(generated: int, parts: tuple[int, int, int], end: EndState) -> None:
    """Each counter grows by the account's own figure, and generated = delivered + undelivered + cut."""
    completion, written, delivered = sorted((min(part, generated) for part in parts), reverse=True)
    told = account(
        end,
        generated_tokens=generated,
        completion_tokens=completion,
        zombie_tokens=(generated - completion) // 2,
        written_tokens=written,
        delivered_tokens=delivered,
        prompt_tokens=3,
    )
    metrics = metrics_of(EngineCore(simulated_backend(), vocabulary("smollm2")))
    growth = grown(metrics, told)
    ledger = {kind: growth.get(f"tailrace_tokens_{kind}_total", 0) for kind in TOKEN_KINDS[1:]}
    assert ledger == {kind: getattr(told, f"{kind}_tokens") for kind in ledger}
    assert ledger["delivered"] + ledger["undelivered"] + ledger["cut"] == generated
    assert growth["tailrace_prompt_tokens_total"] == 3
    labels = {"endpoint": told.endpoint, "end_state": end.value, "phase": told.phase.value}
    assert growth[named("tailrace_streams_total", labels)] == 1
    assert growth["tailrace_streams_open"] == -1


@pytest.mark.parametrize("end", [*ENDS, EndState.TIMED_OUT])
def test_every_end_is_in_the_histograms(metrics: Metrics, end: EndState) -> None:
    """A stream that was cut has its latencies under its own end state, and is in vLLM's histograms as well."""
    told = account(
        end,
        prompt_tokens=3,
        generated_tokens=5,
        max_tokens=9,
        scheduled_at=100.1,
        first_token_at=100.2,
        last_token_at=101.0,
        ended_at=101.5,
        gaps=gaps((0.2, 1), (0.4, 3)),
    )
    growth = grown(metrics, told)
    ours = {
        "time_to_first_token_seconds": (1, 0.2),
        "time_to_last_token_seconds": (1, 1.0),
        "inter_token_latency_seconds": (4, 0.6),
    }
    for name, (count, total) in ours.items():
        labels = {"end_state": end.value}
        assert growth[named(f"tailrace_{name}_count", labels)] == count
        assert growth[named(f"tailrace_{name}_sum", labels)] == pytest.approx(total)
    theirs = {
        "time_to_first_token_seconds": 0.2,
        "inter_token_latency_seconds": 0.6,
        "request_time_per_output_token_seconds": 0.15,
        "e2e_request_latency_seconds": 1.5,
        "request_queue_time_seconds": 0.1,
        "request_prefill_time_seconds": 0.1,
        "request_decode_time_seconds": 0.8,
        "request_inference_time_seconds": 0.9,
        "request_prompt_tokens": 3,
        "request_generation_tokens": 5,
        "request_max_num_generation_tokens": 5,
        "request_params_n": 1,
        "request_params_max_tokens": 9,
    }
    sums = {name: value for name, value in growth.items() if name.startswith("vllm:") and "_sum{" in name}
    assert sums == pytest.approx({named(f"vllm:{name}_sum", MODEL): total for name, total in theirs.items()})


def latencies(growth: Mapping[str, float]) -> list[str]:
    return [name for name in growth if "token_seconds" in name or "token_latency" in name or "prefill" in name]


def test_an_abort_in_prefill_has_no_latency(metrics: Metrics) -> None:
    """Without a token there is no time to one, only an end (USE-03)."""
    told = account(EndState.CLIENT_CANCELLED, prompt_tokens=3, scheduled_at=100.1, ended_at=100.2)
    growth = grown(metrics, told)
    assert latencies(growth) == []
    labels = {"endpoint": told.endpoint, "end_state": "client_cancelled", "phase": "first_token"}
    assert growth[named("tailrace_streams_total", labels)] == 1
    assert growth[named("vllm:request_success_total", MODEL | {"finished_reason": "abort"})] == 1


def test_a_step_of_three_tokens_is_three_gaps(metrics: Metrics) -> None:
    """Steps of one, three and one token are four times between tokens; what was held back moves none (USE-03)."""
    told = account(first_token_at=100.5, last_token_at=100.56, gaps=gaps((0.03, 3), (0.03, 1)))
    growth = grown(metrics, told)
    assert growth[named("tailrace_inter_token_latency_seconds_count", {"end_state": "completed"})] == 4
    assert growth[named("vllm:inter_token_latency_seconds_count", MODEL)] == 4


def test_a_refused_request_is_an_end_and_nothing_else(metrics: Metrics) -> None:
    """The engine never had it: it is no prompt, no token and no latency."""
    told = Account("r1", "/v1/completions", "m", streams=True, started_at=100.0, prompt_tokens=3, ended_at=100.1)
    told.state.refuse()
    labels = {"endpoint": told.endpoint, "end_state": "rejected", "phase": "request"}
    assert grown(metrics, told) == {"tailrace_streams_open": -1, named("tailrace_streams_total", labels): 1}


@pytest.mark.parametrize(
    ("end", "said", "counted"),
    [
        (EndState.COMPLETED, ["stop", "length", "stop"], {"stop": 2, "length": 1}),
        (EndState.CLIENT_CANCELLED, ["stop"], {"stop": 1, "abort": 2}),
        (EndState.TIMED_OUT, [], {"abort": 3}),
        (EndState.UPSTREAM_ERROR, ["error"], {"error": 3}),
    ],
)
def test_every_choice_has_an_end(metrics: Metrics, end: EndState, said: list[str], counted: dict[str, int]) -> None:
    """Unlike vLLM's own, its counter of ends has client aborts too; each of n choices is counted once."""
    growth = grown(metrics, account(end, choices=3, finish_reasons=said, max_tokens=9, generated_tokens=6))
    reasons = {
        reason: growth.get(named("vllm:request_success_total", MODEL | {"finished_reason": reason}), 0)
        for reason in counted
    }
    assert reasons == counted
    assert growth[named("vllm:request_params_n_sum", MODEL)] == 3
    assert named("vllm:request_max_num_generation_tokens_sum", MODEL) not in growth


def test_tokens_by_key(metrics: Metrics) -> None:
    """Under the name that the operator gave, of each kind; without a key there is no such series."""
    growth = grown(
        metrics,
        account(key_name="batch", prompt_tokens=3, generated_tokens=5, completion_tokens=5, delivered_tokens=4),
        account(prompt_tokens=1),
    )
    keys = {name: value for name, value in growth.items() if "key_tokens" in name}
    wanted = {"prompt": 3, "generated": 5, "delivered": 4}
    assert keys == {named("tailrace_key_tokens_total", {"key": "batch", "kind": kind}): wanted[kind] for kind in wanted}


def test_an_open_account_is_not_counted(metrics: Metrics) -> None:
    """An end that is not known yet is a defect of the caller, not a series of its own."""
    metrics.opened()
    with pytest.raises(ValueError, match="still open"):
        metrics.ended(Account("r1", "/", "m", streams=True, started_at=0))
    assert Samples(metrics)["tailrace_streams_open"] == 1


@given(st.lists(st.lists(st.tuples(st.floats(1e-6, 60), st.integers(1, 9)), max_size=5), max_size=5))
def test_gaps_in_one_go_are_gaps_one_by_one(streams: Sequence[Sequence[tuple[float, int]]]) -> None:
    """The merged histogram is that of the library with an observation a token."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    merged = GapHistogram("gaps", "help", ("x",))
    ours.register(merged)
    observed = Histogram("gaps", "help", ("x",), buckets=BOUNDARIES, registry=theirs)
    for steps in streams:
        if steps:
            merged.add(gaps(*steps), "1")
        for seconds, tokens in steps:
            for _ in range(tokens):
                observed.labels("1").observe(seconds / tokens)
    ((mine,), (reference,)) = (parse_text(generate_latest(registry).decode()) for registry in (ours, theirs))
    assert {(s.name, *s.labels.items()): s.value for s in mine.samples} == pytest.approx(
        {(s.name, *s.labels.items()): s.value for s in reference.samples}
    )
