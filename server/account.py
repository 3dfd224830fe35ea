"""The account of one request: what was generated, what was written, how it ended. Log line and metrics come from it.

Never a clock of its own and never a total over requests: times are handed in, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.output.events import OutputStep
from server.lifecycle import EndState, StreamState


@dataclass(slots=True)
class Account:
    """Kept by the request's answer, closed exactly once."""

    request_id: str
    endpoint: str
    model: str
    streams: bool
    started_at: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    """Sampled by the engine for this request."""
    completion_tokens: int = 0
    """Generated, less what a stop cut off: what usage says."""
    written_tokens: int = 0
    """Their text was accepted by the socket while the client was connected."""
    written_bytes: int = 0
    first_token_at: float | None = None
    """When the engine sampled it, held back or not; the time of its text is the reader's to measure."""
    last_token_at: float | None = None
    ended_at: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    ignored_fields: tuple[str, ...] = ()
    client_request_id: str | None = None
    error: str | None = None
    state: StreamState = field(default_factory=StreamState)
    rejected: bool = False

    def wrote(self, steps: Sequence[OutputStep]) -> None:
        """The socket accepted these steps' events."""
        for step in steps:
            self.written_tokens += step.released_tokens
            if step.finished is not None:
                self.finish_reasons.append(step.finished.reason.value)

    @property
    def end_state(self) -> EndState:
        return EndState.REJECTED if self.rejected else self.state.end_state

    @property
    def time_to_first_token(self) -> float | None:
        return self._since_start(self.first_token_at)

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.started_at

    def as_record(self) -> dict[str, Any]:
        """The structured log line: quantities by name, seconds and tokens."""
        ended = self.ended_at if self.ended_at is not None else self.started_at
        record = {
            "event": "request",
            "request_id": self.request_id,
            "endpoint": self.endpoint,
            "model": self.model,
            "stream": self.streams,
            "end_state": self.end_state.value,
            "finish_reasons": self.finish_reasons,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "completion_tokens": self.completion_tokens,
            "written_tokens": self.written_tokens,
            "delivered_tokens": self.written_tokens,
            "delivered_is": "written",
            "written_bytes": self.written_bytes,
            "time_to_first_token_seconds": _rounded(self.time_to_first_token),
            "time_to_last_token_seconds": _rounded(self._since_start(self.last_token_at)),
            "duration_seconds": _rounded(ended - self.started_at),
        }
        optional = {
            "client_request_id": self.client_request_id,
            "ignored_fields": list(self.ignored_fields) or None,
            "error": self.error,
        }
        return record | {name: value for name, value in optional.items() if value is not None}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
