"""One server's metrics behind one door: what is told as it happens, and what is read at the time of a scrape.

Never a figure that someone else keeps: accounts, the core and admission have theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from engine.backends.base import EngineControls
from engine.core import EngineCore
from engine.types import AbortReason
from server.account import Account
from server.admission import Admission
from server.audit import AuditLog
from server.metrics.accounts import AccountMetrics
from server.metrics.bounds import STEP_SECONDS
from server.metrics.engine import EngineCollector
from server.metrics.vllm import VllmCollector, VllmMetrics

OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_VERSION = "1.0.0"


class Metrics:
    """In a registry of their own. All methods are called on the event loop's thread."""

    def __init__(self, core: EngineCore, *, model_name: str, queue_limit: int) -> None:
        """`queue_limit` in waiting sequences. Takes the core's `on_freed`."""
        self.registry = registry = CollectorRegistry()
        self._open = Gauge("tailrace_streams_open", "Requests for generation not ended yet", registry=registry)
        self._keepalives = Counter("tailrace_keepalives", "Keep-alives sent into silent streams", registry=registry)
        self._slow_cuts = Counter(
            "tailrace_slow_client_cuts", "Streams ended since their client did not read", registry=registry
        )
        self._abort_seconds = Histogram(
            "tailrace_abort_seconds",
            "From the abort of a sequence until the engine confirmed its KV blocks free",
            ("reason",),
            buckets=STEP_SECONDS,
            registry=registry,
        )
        self._accounts = AccountMetrics(registry)
        self._vllm = VllmMetrics(registry, model_name)
        self._engine = EngineCollector(core, queue_limit)
        registry.register(self._engine)
        self._read = VllmCollector(core, model_name, self._engine.rejections)
        registry.register(self._read)
        ProcessCollector(registry=registry)
        core.on_freed = self._freed

    def watch_admission(self, admission: Admission) -> None:
        """Its rejections are read at each scrape."""
        self._engine.admission = admission

    def watch_controls(self, controls: EngineControls) -> None:
        """Adapters in use and the engine's sleep are read at each scrape."""
        self._read.controls = controls

    def watch_audit(self, audit: AuditLog) -> None:
        """Its drops are read at each scrape."""
        self._engine.audit = audit

    def watch_blocked(self, blocked: Callable[[], int]) -> None:
        """So many streams wait for their readers; read at each scrape."""
        gauge = Gauge("tailrace_streams_blocked", "Streams whose client takes nothing now", registry=self.registry)
        gauge.set_function(blocked)

    def opened(self) -> None:
        """A request for generation came; `ended` follows."""
        self._open.inc()

    def ended(self, account: Account) -> None:
        """Counts an account, once, when it is complete. `ValueError` for one without an end state."""
        if account.end_state is None:
            raise ValueError(f"the account of {account.request_id} is still open")
        self._open.dec()
        self._accounts.ended(account, account.end_state)
        self._vllm.ended(account, account.end_state)

    def keepalive(self) -> None:
        self._keepalives.inc()

    def slow_client_cut(self) -> None:
        self._slow_cuts.inc()

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """The body and its content type: OpenMetrics where the Accept header asks for it, else Prometheus' text."""
        if OPENMETRICS not in (accept or ""):
            return generate_latest(self.registry), "text/plain; version=0.0.4; charset=utf-8"
        # Not the library's own choice of encoder: any other escaping turns the colon of `vllm:` into an underscore.
        escaping = openmetrics.ALLOWUTF8
        body: bytes = openmetrics.generate_latest(self.registry, escaping, OPENMETRICS_VERSION)  # type: ignore[no-untyped-call]
        return body, f"{OPENMETRICS}; version={OPENMETRICS_VERSION}; charset=utf-8"

    def _freed(self, reason: AbortReason, seconds: float) -> None:
        self._abort_seconds.labels(reason.value).observe(seconds)
