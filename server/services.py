"""What every answer uses of the server, in one record. Never any logic of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.core import EngineCore
from server.account import Account
from server.admission import Admission
from server.config import ServerConfig
from server.lifecycle import Phase
from server.metrics import Metrics
from server.timer import StreamTimer


@dataclass(frozen=True, slots=True)
class AnswerServices:
    """See each."""

    core: EngineCore
    admission: Admission
    config: ServerConfig
    metrics: Metrics
    timer: StreamTimer
    timeouts: Mapping[Phase, float]
    """The server's own bounds, in seconds."""
    closed: Callable[[Account], None]
    """Takes each account once: when its answer has ended and the engine holds nothing of it any more."""


def configured_timeouts(config: ServerConfig) -> dict[Phase, float]:
    """The deadlines that the settings name."""
    named = {
        Phase.QUEUE: config.queue_timeout_seconds,
        Phase.FIRST_TOKEN: config.first_token_timeout_seconds,
        Phase.BETWEEN_TOKENS: config.token_timeout_seconds,
        Phase.TOTAL: config.total_timeout_seconds,
    }
    return {phase: seconds for phase, seconds in named.items() if seconds is not None}
