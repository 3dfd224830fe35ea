"""What is read of the engine, admission and the logs at the time of a scrape.

Never a count of its own: each figure is kept by what it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.core import EngineCore
from engine.types import AbortReason, EngineStats
from server.admission import Admission
from server.audit import AuditLog
from server.log import dropped_lines
from server.quota import Reason


class EngineCollector(Collector):
    """The `tailrace_` families that are not the accounts'."""

    def __init__(self, core: EngineCore, queue_limit: int) -> None:
        self._core = core
        self._queue_limit = queue_limit
        self.admission: Admission | None = None
        self.audit: AuditLog | None = None

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._gauges(self._core.stats())
        yield _counter(
            "tailrace_audit_dropped", "Audit records dropped, since the disk was slow", self._audit_dropped()
        )
        yield _counter("tailrace_log_lines_dropped", "Log lines dropped, since nobody read them", dropped_lines())
        aborts = {reason.value: self._core.aborts_total[reason] for reason in AbortReason}
        yield _by_reason("tailrace_sequences_aborted", "Sequences ended before the engine ended them", aborts)
        rejections = self.rejections()
        yield _by_reason("tailrace_admission_rejections", "Requests turned away before the engine", rejections)

    def rejections(self) -> Mapping[str, int]:
        """By reason, every one of them from the beginning: Prometheus sees no increase in a series' first value."""
        counted = {} if self.admission is None else self.admission.rejections
        return {reason: counted.get(reason, 0) for reason in get_args(Reason)}

    def _audit_dropped(self) -> int:
        return 0 if self.audit is None else self.audit.dropped_total

    def _counters(self) -> Iterator[Metric]:
        core = self._core
        yield _counter("tailrace_tokens_generated", "Tokens that the engine sampled", core.generated_tokens_total)
        yield _counter("tailrace_engine_steps", "Engine steps with output", core.steps_total)
        yield _counter("tailrace_engine_restarts", "Times that a dead engine was started again", core.restarts_total)
        yield _counter("tailrace_sequences_scheduled", "Sequences whose prefill began", core.scheduled_total)
        yield _counter("tailrace_sequences_reaped", "Sequences without a consumer that were ended", core.reaped_total)

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        core = self._core
        yield _gauge("tailrace_engine_up", "1 when the engine takes requests", core.ready)
        yield _gauge("tailrace_orphaned_requests", "The engine's requests without a consumer", core.orphaned_requests)
        yield _gauge(
            "tailrace_sequences_unsettled", "Aborted sequences that the engine has not confirmed yet", core.unsettled
        )
        yield _gauge(
            "tailrace_held_back_characters",
            "Characters that wait for what a stop string or a character still lacks",
            core.held_back_characters(),
        )
        yield _gauge("tailrace_sequences_running", "Sequences that hold KV blocks", stats.running)
        yield _gauge("tailrace_sequences_waiting", "Sequences not yet scheduled", stats.waiting)
        yield _gauge("tailrace_queue_limit", "Waiting sequences over which requests are refused", self._queue_limit)
        yield _gauge("tailrace_kv_blocks", "KV blocks in all", stats.kv_blocks_total)
        yield _gauge("tailrace_kv_blocks_used", "KV blocks held by sequences", stats.kv_blocks_used)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(name, documentation, value=value)


def _by_reason(name: str, documentation: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, documentation, labels=("reason",))
    for reason, count in counts.items():
        family.add_metric((reason,), count)
    return family
