"""The `tailrace_` families made of accounts: the ledger of tokens, how streams ended, how long their clients waited.

Never a stream left out: those that were cut or refused are in every family that has something to say of them.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from server.account import Account
from server.lifecycle import EndState
from server.metrics.bounds import FIRST_TOKEN_SECONDS, LAST_TOKEN_SECONDS
from server.metrics.gaps import GapHistogram

_LEDGER = {
    "written": "Tokens whose text the socket accepted while its client was connected",
    "delivered": "Written, less what the client's kernel had not acknowledged when the connection was lost",
    "undelivered": "Tokens that were generated for a client and did not reach it",
    "zombie": "Tokens generated after their client was gone; undelivered as well",
    "cut": "Tokens generated beyond a stop or a bound",
}
"""With `tailrace_tokens_generated_total`, once nothing runs: generated = delivered + undelivered + cut."""


class AccountMetrics:
    """Takes each account once, when it is complete."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._streams = Counter(
            "tailrace_streams",
            "Requests for generation that ended, streamed or whole, by how and how far they had come",
            ("endpoint", "end_state", "phase"),
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "tailrace_prompt_tokens", "Tokens of the prompts that the engine was handed", registry=registry
        )
        self._tokens = {
            kind: Counter(f"tailrace_tokens_{kind}", documentation, registry=registry)
            for kind, documentation in _LEDGER.items()
        }
        self._key_tokens = Counter(
            "tailrace_key_tokens",
            "Tokens of answers, by the configured name of the API key that asked for them",
            ("key", "kind"),
            registry=registry,
        )
        self._model_tokens = Counter(
            "tailrace_model_tokens",
            "Tokens of answers, by the model that was asked for: the model's own name, or an adapter's",
            ("model", "kind"),
            registry=registry,
        )
        self._first_token = Histogram(
            "tailrace_time_to_first_token_seconds",
            "From a request's arrival until the engine sampled its first token",
            ("end_state",),
            buckets=FIRST_TOKEN_SECONDS,
            registry=registry,
        )
        self._last_token = Histogram(
            "tailrace_time_to_last_token_seconds",
            "From a request's arrival until the engine sampled its last token",
            ("end_state",),
            buckets=LAST_TOKEN_SECONDS,
            registry=registry,
        )
        self._gaps = GapHistogram(
            "tailrace_inter_token_latency_seconds",
            "Time between the tokens of a choice, one observation a token: those of one step share its time",
            ("end_state",),
        )
        registry.register(self._gaps)

    def ended(self, account: Account, end_state: EndState) -> None:
        self._streams.labels(account.endpoint, end_state.value, account.phase.value).inc()
        if not account.state.submitted:
            return
        self._prompt_tokens.inc(account.prompt_tokens)
        for kind, counter in self._tokens.items():
            counter.inc(getattr(account, f"{kind}_tokens"))
        if account.key_name is not None:
            for kind in ("prompt", "generated", "delivered"):
                self._key_tokens.labels(account.key_name, kind).inc(getattr(account, f"{kind}_tokens"))
        for kind in ("prompt", "generated", "delivered"):
            self._model_tokens.labels(account.model, kind).inc(getattr(account, f"{kind}_tokens"))
        self._observe(account, end_state.value)

    def _observe(self, account: Account, end_state: str) -> None:
        """Nothing where no token was sampled: an abort in prefill has no latency."""
        if account.time_to_first_token is not None:
            self._first_token.labels(end_state).observe(account.time_to_first_token)
        if account.time_to_last_token is not None:
            self._last_token.labels(end_state).observe(account.time_to_last_token)
        if account.gaps.tokens:
            self._gaps.add(account.gaps, end_state)
