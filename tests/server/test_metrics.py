"""The metrics: every promised name and no other, read of a real engine and server, in both formats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from engine.core import EngineCore
from engine.types import AbortReason, TextParams
from server.admission import Admission
from server.config import ServerConfig
from server.metrics import Metrics
from tests.engine.engines import running_core, scripted, simulated_backend
from tests.running_server import RunningServer
from tests.server.open_request import OpenRequest
from tests.server.scrapes import MODEL, TOKEN_KINDS, Samples, account, grown, metrics_of, named
from tests.vocabularies import vocabulary

TAILRACE = {
    "counter": (
        *(
            "tokens_generated",
            "tokens_written",
            "tokens_delivered",
            "tokens_undelivered",
            "tokens_zombie",
            "tokens_cut",
        ),
        *(
            "prompt_tokens",
            "key_tokens",
            "model_tokens",
            "streams",
            "keepalives",
            "slow_client_cuts",
            "admission_rejections",
        ),
        *("engine_restarts", "engine_steps", "sequences_aborted", "sequences_reaped", "sequences_scheduled"),
        *("audit_dropped", "log_lines_dropped"),
    ),
    "gauge": (
        *("streams_open", "orphaned_requests", "held_back_characters", "sequences_unsettled", "sequences_running"),
        *("sequences_waiting", "queue_limit", "kv_blocks", "kv_blocks_used", "engine_up"),
    ),
    "histogram": (
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "time_to_last_token_seconds"),
        "abort_seconds",
    ),
}

VLLM = {
    "counter": (
        *("prompt_tokens", "prompt_tokens_cached", "generation_tokens", "num_preemptions", "prefix_cache_queries"),
        *("prefix_cache_hits", "request_success", "admission_rejections"),
    ),
    "gauge": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    "histogram": (
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens"),
        *("request_generation_tokens", "request_params_n", "request_params_max_tokens"),
        "request_max_num_generation_tokens",
    ),
}

PROMISED = [
    (f"{prefix}{name}", kind)
    for prefix, kinds in (("tailrace_", TAILRACE), ("vllm:", VLLM))
    for kind, names in kinds.items()
    for name in names
]


@pytest.fixture
def core() -> EngineCore:
    """An engine that was not started."""
    return EngineCore(simulated_backend(), vocabulary("smollm2"))


@pytest.fixture
def metrics(core: EngineCore) -> Metrics:
    return metrics_of(core)


@pytest.mark.parametrize(("name", "kind"), PROMISED)
def test_promised_names(metrics: Metrics, name: str, kind: str) -> None:
    """Each family is there from the start, with its type and a word of help."""
    families = {family.name: family for family in parse_text(metrics.exposition()[0].decode())}
    assert families[name].type == kind
    assert families[name].documentation


def test_no_name_beside_the_promised_ones(metrics: Metrics) -> None:
    """Whatever is exported is in this test's tables, so that none is forgotten there."""
    names = {family.name for family in parse_text(metrics.exposition()[0].decode())}
    assert {name for name in names if not name.startswith("process_")} == {name for name, _ in PROMISED}


def test_the_process_is_measured(metrics: Metrics) -> None:
    """Memory and open files, for those who watch for leaks."""
    samples = Samples(metrics)
    assert samples["process_resident_memory_bytes"] > 1_000_000
    assert samples["process_open_fds"] > 0


def test_what_happens_meanwhile_is_counted(core: EngineCore, metrics: Metrics) -> None:
    """Keep-alives, slow clients and confirmed aborts are told one by one."""
    before = Samples(metrics)
    metrics.keepalive()
    metrics.slow_client_cut()
    assert core.on_freed is not None
    core.on_freed(AbortReason.DISCONNECT, 0.02)
    growth = Samples(metrics).growth(before)
    assert growth["tailrace_keepalives_total"] == growth["tailrace_slow_client_cuts_total"] == 1
    assert growth[named("tailrace_abort_seconds_sum", {"reason": "disconnect"})] == pytest.approx(0.02)


def test_rejections_have_both_names(core: EngineCore, metrics: Metrics) -> None:
    """Every reason has its series from the beginning; admission's own counts are shown, under both names."""
    admission = Admission(core, ServerConfig())
    metrics.watch_admission(admission)
    before = Samples(metrics)
    assert before[named("tailrace_admission_rejections_total", {"reason": "draining"})] == 0
    admission.rejections["queue_full"] += 2
    growth = Samples(metrics).growth(before)
    assert growth[named("tailrace_admission_rejections_total", {"reason": "queue_full"})] == 2
    assert growth[named("vllm:admission_rejections_total", {"model_name": "m", "reason": "queue_full"})] == 2


def test_the_gateways_picker_finds_the_cache(metrics: Metrics) -> None:
    """Kubernetes' endpoint picker reads the KV cache's make as labels; an engine at rest uses none of it."""
    samples = Samples(metrics)
    info = MODEL | {"block_size": "32", "num_gpu_blocks": "16384"}
    assert samples[named("vllm:cache_config_info", info)] == 1
    assert samples[named("vllm:kv_cache_usage_perc", MODEL)] == 0
    assert samples["tailrace_queue_limit"] == 7


async def becomes(condition: Callable[[], bool]) -> None:
    """Lets the engine step until it is so."""
    while not condition():  # noqa: ASYNC110 - what a scrape reads tells nobody when it changes
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_a_scrape_sees_the_engine_at_work() -> None:
    """Text held back for a stop string, running sequences and blocks in use, until the stream is left."""
    async with running_core(vocabulary("smollm2"), step_interval_ms=1) as core:
        metrics = metrics_of(core)
        request = scripted("r", [19556] * 2_000, max_tokens=2_000)
        async with asyncio.timeout(10):
            async with core.open([request], TextParams(stop=("Hello" * 2_000,))):
                await becomes(lambda: core.held_back_characters() > 0)
                samples = Samples(metrics)
            await becomes(lambda: core.unsettled == 0)
        assert samples["tailrace_held_back_characters"] % len("Hello") == 0
        assert samples["tailrace_held_back_characters"] == 5 * samples["tailrace_tokens_generated_total"]
        assert samples["tailrace_sequences_running"] == samples[named("vllm:num_requests_running", MODEL)] == 1
        assert samples[named("vllm:kv_cache_usage_perc", MODEL)] == pytest.approx(1 / 16_384)
        after = Samples(metrics)
        idle = (
            "held_back_characters",
            "sequences_running",
            "sequences_unsettled",
            "kv_blocks_used",
            "orphaned_requests",
        )
        assert [after[f"tailrace_{name}"] for name in idle] == [0] * len(idle)
        assert after[named("tailrace_abort_seconds_count", {"reason": "disconnect"})] == 1


@pytest.mark.parametrize("accept", [None, "*/*", "text/plain", "text/html, */*;q=0.1"])
def test_text_unless_asked_otherwise(metrics: Metrics, accept: str | None) -> None:
    """A person and an old Prometheus get the text format."""
    body, content_type = metrics.exposition(accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert list(parse_text(body.decode()))


def test_openmetrics_where_asked(metrics: Metrics) -> None:
    """What Prometheus asks for today holds the same samples, with an end marker, and keeps vLLM's names."""
    grown(metrics, account(generated_tokens=1, first_token_at=100.1, last_token_at=100.1))
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    body, content_type = metrics.exposition(accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    lines = body.decode().splitlines()
    assert {line.split("{")[0] for line in lines if "admission_rejections_total" in line} == {
        "tailrace_admission_rejections_total",
        "vllm:admission_rejections_total",
    }
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert set(Samples(metrics)) <= {named(s.name, s.labels) for family in families for s in family.samples}


def test_the_ledger_of_a_running_server(echo_server: RunningServer) -> None:
    """Whole, stopped, refused and dropped requests: at rest everything generated is in one column of the ledger."""
    echo_server.wait_idle()
    before = echo_server.metrics()
    echo_server.post("/v1/completions", {"prompt": [905], "ignore_eos": True, "max_tokens": 40, "n": 2})
    echo_server.events("/v1/completions", {"prompt": [19556, 905] * 9, "stop": ["world"]})
    echo_server.post("/v1/completions", {"prompt": [905], "n": 0})
    dropped = {"prompt": [905], "ignore_eos": True, "max_tokens": 4_000, "stream": True}
    with OpenRequest(echo_server.url, "/v1/completions", dropped) as request:
        assert len(request.next_events(3)) == 3
    echo_server.wait_idle()
    growth = {name: value - before.get(name, 0) for name, value in echo_server.metrics().items()}
    tokens = {kind: growth[f"tailrace_tokens_{kind}_total"] for kind in TOKEN_KINDS}
    assert tokens["generated"] == tokens["delivered"] + tokens["undelivered"] + tokens["cut"]
    assert tokens["generated"] >= 80 + 2 + 2
    assert tokens["delivered"] <= tokens["written"]
    ends = {name: value for name, value in growth.items() if name.startswith("tailrace_streams_total") and value}
    assert sorted(ends.values()) == [1, 1, 2]
    (aborts,) = [name for name in growth if "vllm:request_success_total" in name and '"abort"' in name]
    assert growth[aborts] == 1


def test_clients_name_nothing(echo_server: RunningServer) -> None:
    """No path, model, id or user of a client's becomes a label, or it could make as many series as it likes."""
    word = "chosen-by-a-client"
    client = echo_server._client
    headers = {"x-request-id": word, "user-agent": word, "authorization": f"Bearer {word}"}
    body: dict[str, Any] = {"prompt": [905], "max_tokens": 1, "user": word}
    for path in ("/v1/completions", "/v1/chat/completions", f"/v1/{word}"):
        for asked in (body, body | {"model": word}):
            client.post(path, json=asked, headers=headers)
    echo_server.wait_idle()
    for accept in ("text/plain", "application/openmetrics-text"):
        assert word not in client.get("/metrics", headers={"accept": accept}).text
