"""Prometheus metrics, from accounts and from the engine's own counts; the only place that imports the client library.

Never a label whose values a client chooses, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.core import EngineCore
from server.account import Account

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]  # a time of creation beside each counter doubles the scrape and nobody reads it
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)


class Metrics:
    """One server's metrics, in a registry of their own."""

    def __init__(self, core: EngineCore) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(core))
        self._streams = Counter(
            "tailrace_streams",
            "Requests for generation that ended, streamed or whole, by how they ended",
            ("endpoint", "end_state"),
            registry=self.registry,
        )
        self.streams_open = Gauge(
            "tailrace_streams_open", "Requests for generation being answered now", registry=self.registry
        )
        self._prompt_tokens = self._counter("tailrace_prompt_tokens", "Tokens of admitted prompts")
        self._written = self._counter(
            "tailrace_tokens_written", "Tokens whose text the socket accepted while its client was connected"
        )
        self._delivered = self._counter("tailrace_tokens_delivered", "Tokens delivered; counted as written for now")
        self._first_token = Histogram(
            "tailrace_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def ended(self, account: Account) -> None:
        """Counts a closed account."""
        self._streams.labels(account.endpoint, account.end_state.value).inc()
        self._prompt_tokens.inc(account.prompt_tokens)
        self._written.inc(account.written_tokens)
        self._delivered.inc(account.written_tokens)
        if account.time_to_first_token is not None:
            self._first_token.observe(account.time_to_first_token)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(name, documentation, registry=self.registry)


class _EngineCollector(Collector):
    """Reads the engine at the time of the scrape."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        core = self._core
        yield _counter("tailrace_tokens_generated", "Tokens that the engine sampled", core.generated_tokens_total)
        yield _counter(
            "tailrace_tokens_zombie", "Of these, sampled after their request was aborted", core.zombie_tokens_total
        )
        yield _counter("tailrace_engine_steps", "Engine steps with output", core.steps_total)
        aborts = CounterMetricFamily(
            "tailrace_sequences_aborted", "Sequences ended before the engine ended them", labels=("reason",)
        )
        for reason, count in core.aborts_total.items():
            aborts.add_metric((reason.value,), count)
        yield aborts
        yield _gauge("tailrace_engine_up", "1 when the engine takes requests", core.ready)
        stats = core.stats()
        yield _gauge("tailrace_sequences_running", "Sequences that hold KV blocks", stats.running)
        yield _gauge("tailrace_sequences_waiting", "Sequences not yet scheduled", stats.waiting)
        yield _gauge("tailrace_kv_blocks", "KV blocks in all", stats.kv_blocks_total)
        yield _gauge("tailrace_kv_blocks_used", "KV blocks held by sequences", stats.kv_blocks_used)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, value=value)


def _counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, documentation, value=value)
