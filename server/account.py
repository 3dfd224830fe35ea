"""One request's account: what was generated, written and delivered, and how it ended. Log, metrics, usage come from it.

Never a clock of its own and never a total over requests: times are handed in, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.gaps import TokenGaps
from engine.output.events import OutputStep
from engine.stream import SequenceStream
from server.lifecycle import EndState, Phase, StreamState


@dataclass(slots=True)
class Account:
    """Kept by the request's answer; complete once the engine holds nothing of the request any more.

    The tokens add up, for every way to end: generated = delivered + undelivered + cut.
    """

    request_id: str
    endpoint: str
    model: str
    streams: bool
    started_at: float
    key_name: str | None = None
    """The API key's name, never the key."""
    choices: int = 1
    max_tokens: int | None = None
    """Most tokens that one choice was allowed."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    """Sampled by the engine for this request, also after its end."""
    completion_tokens: int = 0
    """Generated, less what a stop cut off: what usage says."""
    reasoning_tokens: int = 0
    """Of these, the ones whose text is reasoning."""
    zombie_tokens: int = 0
    """Generated after the client was gone."""
    written_tokens: int = 0
    """Their text was accepted by the socket while the client was connected."""
    delivered_tokens: int = 0
    """Written, less what the client's kernel had not acknowledged when the connection was lost."""
    delivered_is: str = "written"
    """`acknowledged` where the kernel told how much was, else `written`."""
    written_bytes: int = 0

    scheduled_at: float | None = None
    """When the engine began to work on it."""
    first_token_at: float | None = None
    """When the engine sampled it, held back or not; the time of its text is the reader's to measure."""
    last_token_at: float | None = None
    ended_at: float | None = None
    gaps: TokenGaps = field(default_factory=TokenGaps)
    """Times between tokens, of all choices."""

    finish_reasons: list[str] = field(default_factory=list)
    ignored_fields: tuple[str, ...] = ()
    client_request_id: str | None = None
    error: str | None = None
    state: StreamState = field(default_factory=StreamState)

    def wrote(self, steps: Sequence[OutputStep]) -> None:
        """The socket accepted these steps' events; their tokens are the socket's to count."""
        self.finish_reasons += [step.finished.reason.value for step in steps if step.finished is not None]

    def measure(self, stream: SequenceStream) -> None:
        """Takes over what the engine has done for it so far."""
        self.scheduled_at = stream.scheduled_at
        self.first_token_at, self.last_token_at = stream.first_token_at, stream.last_token_at
        self.generated_tokens = stream.generated_tokens
        self.completion_tokens = stream.completion_tokens
        self.reasoning_tokens = stream.reasoning_tokens
        self.zombie_tokens = stream.zombie_tokens
        self.cached_tokens = stream.cached_tokens
        self.gaps = stream.gaps

    @property
    def cut_tokens(self) -> int:
        """Generated and then cut off: after a stop, or beyond `max_tokens`, within the step or the next."""
        return self.generated_tokens - self.completion_tokens - self.zombie_tokens

    @property
    def undelivered_tokens(self) -> int:
        """Part of the answer, or generated for nobody, and never with the client."""
        return self.generated_tokens - self.cut_tokens - self.delivered_tokens

    @property
    def end_state(self) -> EndState | None:
        """None while the request is being answered."""
        return self.state.end_state

    @property
    def phase(self) -> Phase:
        """How far the request came; where a deadline ended it, which one."""
        if self.state.deadline is not None:
            return self.state.deadline
        if self.end_state is EndState.COMPLETED:
            return Phase.DONE
        if self.state.submitted:
            return self._engine_phase
        return Phase.REQUEST

    @property
    def _engine_phase(self) -> Phase:
        if self.state.generated:
            return Phase.DELIVERY
        if self.first_token_at is not None:
            return Phase.BETWEEN_TOKENS
        return Phase.QUEUE if self.scheduled_at is None else Phase.FIRST_TOKEN

    @property
    def queue_seconds(self) -> float | None:
        """From the request's arrival until the engine began."""
        return self._since_start(self.scheduled_at)

    @property
    def time_to_first_token(self) -> float | None:
        return self._since_start(self.first_token_at)

    @property
    def time_to_last_token(self) -> float | None:
        return self._since_start(self.last_token_at)

    @property
    def duration_seconds(self) -> float | None:
        """From the request's arrival until its answer ended."""
        return self._since_start(self.ended_at)

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.started_at

    def as_record(self) -> dict[str, Any]:
        """The structured log line, and the body of `/v1/usage/{id}`: quantities by name, seconds and tokens."""
        record = {
            "event": "request",
            "request_id": self.request_id,
            "endpoint": self.endpoint,
            "model": self.model,
            "stream": self.streams,
            "end_state": None if self.end_state is None else self.end_state.value,
            "phase": self.phase.value,
            "finish_reasons": self.finish_reasons,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "written_tokens": self.written_tokens,
            "delivered_tokens": self.delivered_tokens,
            "delivered_is": self.delivered_is,
            "undelivered_tokens": self.undelivered_tokens,
            "cut_tokens": self.cut_tokens,
            "zombie_tokens": self.zombie_tokens,
            "written_bytes": self.written_bytes,
            **self._times(),
        }
        optional = {
            "api_key": self.key_name,
            "client_request_id": self.client_request_id,
            "ignored_fields": list(self.ignored_fields) or None,
            "error": self.error,
        }
        return record | {name: value for name, value in optional.items() if value is not None}

    def _times(self) -> dict[str, float | None]:
        return {
            "queue_seconds": _rounded(self.queue_seconds),
            "time_to_first_token_seconds": _rounded(self.time_to_first_token),
            "inter_token_p50_seconds": _rounded(self.gaps.quantile(0.5)),
            "inter_token_p99_seconds": _rounded(self.gaps.quantile(0.99)),
            "inter_token_longest_seconds": _rounded(self.gaps.longest or None),
            "time_to_last_token_seconds": _rounded(self.time_to_last_token),
            "duration_seconds": _rounded(self.duration_seconds),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
