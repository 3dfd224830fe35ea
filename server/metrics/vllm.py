"""The `vllm:` names of vLLM 0.32, for every engine: Kubernetes' endpoint pickers and vLLM's dashboards work unchanged.

Unlike vLLM's own they leave no request out: one whose client left is an abort in `request_success`, and is in the
histograms with what it got. A request with n choices is one request in the histograms and n sequences in the gauges.
Never here, since it would be made up: `iteration_tokens_total` (an engine step does not tell its prefill).
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.backends.base import EngineControls
from engine.core import EngineCore
from engine.types import FinishReason
from server.account import Account
from server.lifecycle import EndState
from server.metrics import bounds
from server.metrics.gaps import GapHistogram

ENGINE = "0"
"""One engine to a server."""
_LABELS = ("model_name", "engine")
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""By level, as vLLM calls them."""


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


def _seconds_per_token(account: Account) -> float | None:
    """Mean over the tokens after the first; None for the only one, which had no other to wait for."""
    return account.gaps.seconds / account.gaps.tokens if account.gaps.tokens else None


def _longest_choice(account: Account) -> int | None:
    """None where there are several: the account knows only their sum."""
    return account.generated_tokens if account.choices == 1 else None


_OBSERVED: dict[str, tuple[str, Sequence[float], Callable[[Account], float | None]]] = {
    "time_to_first_token_seconds": (
        "From arrival until the first token",
        bounds.VLLM_FIRST_TOKEN_SECONDS,
        lambda account: account.time_to_first_token,
    ),
    "request_time_per_output_token_seconds": (
        "Mean time of a token after the first",
        bounds.VLLM_TOKEN_SECONDS,
        _seconds_per_token,
    ),
    "e2e_request_latency_seconds": (
        "From arrival until the answer's end",
        bounds.VLLM_REQUEST_SECONDS,
        lambda account: account.duration_seconds,
    ),
    "request_queue_time_seconds": (
        "From arrival until prefill began",
        bounds.VLLM_REQUEST_SECONDS,
        lambda account: account.queue_seconds,
    ),
    "request_prefill_time_seconds": (
        "From the begin of prefill until the first token",
        bounds.VLLM_REQUEST_SECONDS,
        lambda account: _between(account.scheduled_at, account.first_token_at),
    ),
    "request_decode_time_seconds": (
        "From the first token until the last",
        bounds.VLLM_REQUEST_SECONDS,
        lambda account: _between(account.first_token_at, account.last_token_at),
    ),
    "request_inference_time_seconds": (
        "From the begin of prefill until the last token",
        bounds.VLLM_REQUEST_SECONDS,
        lambda account: _between(account.scheduled_at, account.last_token_at),
    ),
    "request_prompt_tokens": ("Tokens of the prompt", bounds.VLLM_TOKENS, lambda account: account.prompt_tokens),
    "request_generation_tokens": (
        "Tokens generated, over all choices",
        bounds.VLLM_TOKENS,
        lambda account: account.generated_tokens,
    ),
    "request_max_num_generation_tokens": (
        "Tokens of the longest choice; of requests with one choice",
        bounds.VLLM_TOKENS,
        _longest_choice,
    ),
    "request_params_n": ("Choices asked for", bounds.VLLM_CHOICES, lambda account: account.choices),
    "request_params_max_tokens": (
        "Most tokens that a choice was allowed",
        bounds.VLLM_TOKENS,
        lambda account: account.max_tokens,
    ),
}
"""Name: what it is, the buckets' bounds, the observation; None is none. Of requests that the engine was handed."""


class VllmMetrics:
    """Takes each account once, when it is complete."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._labels = (model_name, ENGINE)

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"vllm:{name}", documentation, (*_LABELS, *labels), registry=registry)

        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts that were begun").labels(*self._labels)
        self._cached = counter("prompt_tokens_cached", "Of these, reused from KV blocks").labels(*self._labels)
        self._success = counter("request_success", "Sequences by how they ended, aborts as well", "finished_reason")
        for reason in FinishReason:
            self._success.labels(*self._labels, reason.value)
        self._histograms = [
            (
                Histogram(f"vllm:{name}", documentation, _LABELS, buckets=upper, registry=registry).labels(
                    *self._labels
                ),
                observation,
            )
            for name, (documentation, upper, observation) in _OBSERVED.items()
        ]
        self._gaps = GapHistogram("vllm:inter_token_latency_seconds", "Time between the tokens of a choice", _LABELS)
        registry.register(self._gaps)

    def ended(self, account: Account, end_state: EndState) -> None:
        if not account.state.submitted:
            return
        if account.scheduled_at is not None:
            self._prompt_tokens.inc(account.prompt_tokens)
            self._cached.inc(account.cached_tokens)
        for reason, count in _finish_reasons(account, end_state).items():
            self._success.labels(*self._labels, reason).inc(count)
        for histogram, observation in self._histograms:
            if (value := observation(account)) is not None:
                histogram.observe(value)
        if account.gaps.tokens:
            self._gaps.add(account.gaps, *self._labels)


def _finish_reasons(account: Account, end_state: EndState) -> Tally[str]:
    """Each choice's; of a choice whose client was not there to be told, what ended the stream."""
    reasons = Tally(account.finish_reasons)
    unsaid = FinishReason.ERROR if end_state is EndState.UPSTREAM_ERROR else FinishReason.ABORT
    reasons[unsaid.value] += max(0, account.choices - len(account.finish_reasons))
    return reasons


def _adapters(controls: EngineControls) -> Metric:
    """As vLLM's: the names are labels, and the value is the time, by which readers find the newest."""
    running, waiting = (",".join(sorted(names)) for names in controls.adapters_in_use())
    labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
    family = GaugeMetricFamily("vllm:lora_requests_info", "LoRA adapters of sequences in the engine", labels=labels)
    family.add_metric((str(controls.most_adapters), waiting, running), time.time())
    return family


class VllmCollector(Collector):
    """What is read of the engine at the time of a scrape."""

    def __init__(self, core: EngineCore, model_name: str, rejections: Callable[[], Mapping[str, int]]) -> None:
        self._core = core
        self._rejections = rejections
        self._labels = {"model_name": model_name, "engine": ENGINE}
        self.controls: EngineControls | None = None
        """Of an engine that has some."""

    def collect(self) -> Iterator[Metric]:
        stats = self._core.stats()
        used = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
        yield self._gauge("num_requests_running", "Sequences that hold KV blocks", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences not yet scheduled", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", used)
        blocks = {"block_size": str(stats.block_size), "num_gpu_blocks": str(stats.kv_blocks_total)}
        yield self._gauge("cache_config_info", "Tokens in a KV block, and blocks in all", 1, blocks)
        yield self._counter("generation_tokens", "Tokens sampled", self._core.generated_tokens_total)
        yield self._counter("num_preemptions", "Sequences that lost their KV blocks", stats.preemptions_total)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up", stats.prefix_cache_queries_total)
        yield self._counter("prefix_cache_hits", "Of these, found", stats.prefix_cache_hits_total)
        rejected = CounterMetricFamily(
            "vllm:admission_rejections", "Requests turned away", labels=("model_name", "reason")
        )
        for reason, count in self._rejections().items():
            rejected.add_metric((self._labels["model_name"], reason), count)
        yield rejected
        if self.controls is not None:
            yield self._sleep_state(self.controls)
            if self.controls.most_adapters:
                yield _adapters(self.controls)

    def _sleep_state(self, controls: EngineControls) -> Metric:
        labels = (*self._labels, "sleep_state")
        family = GaugeMetricFamily("vllm:engine_sleep_state", "1 for the state that the engine is in", labels=labels)
        for level, state in enumerate(_SLEEP_STATES):
            family.add_metric((*self._labels.values(), state), controls.sleep_level == level)
        return family

    def _gauge(self, name: str, documentation: str, value: float, extra: Mapping[str, str] | None = None) -> Metric:
        labels = self._labels | dict(extra or {})
        family = GaugeMetricFamily(f"vllm:{name}", documentation, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", documentation, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family
