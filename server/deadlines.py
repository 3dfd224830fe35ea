"""Which deadline of a request comes next, phase by phase. Pure arithmetic on times that it is handed.

Never acts on a deadline: the answer does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from server.lifecycle import Phase
from server.wire.errors import WireError


class Progress(Protocol):
    """How far the engine is with a request: times on the monotonic clock, None while it has not come so far."""

    @property
    def scheduled_at(self) -> float | None: ...
    @property
    def first_token_at(self) -> float | None: ...
    @property
    def last_token_at(self) -> float | None: ...
    @property
    def generating(self) -> bool:
        """The engine is not through with it."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """One request's timeouts, counted from its arrival (total) and from its submission (queue, first token)."""

    timeouts: Mapping[Phase, float]
    """Most seconds; of a phase that is not here, any."""
    arrived_at: float
    submitted_at: float

    def next(self, progress: Progress) -> tuple[float, Phase] | None:
        """The earliest deadline that counts now, and its phase."""
        timeouts = self.timeouts
        counting = [(since + timeouts[phase], phase) for phase, since in self._counting(progress) if phase in timeouts]
        return min(counting, default=None)

    def error(self, phase: Phase) -> WireError | None:
        """What the client is told of this phase's deadline, which passed; None for a phase that has none here."""
        seconds = self.timeouts.get(phase)
        if seconds is None:
            return None
        message = f"the answer was not ready in time: the deadline {phase.value!r} of {seconds:g} s passed"
        return WireError(504, message, code="deadline_exceeded")

    def _counting(self, progress: Progress) -> list[tuple[Phase, float]]:
        if not progress.generating:
            return []  # what is left is the client's to take, and has a bound of its own
        counting = [(Phase.TOTAL, self.arrived_at)]
        if progress.last_token_at is not None:
            return [*counting, (Phase.BETWEEN_TOKENS, progress.last_token_at)]
        counting.append((Phase.FIRST_TOKEN, self.submitted_at))
        if progress.scheduled_at is None:
            counting.append((Phase.QUEUE, self.submitted_at))
        return counting


def shorter(one: Mapping[Phase, float], other: Mapping[Phase, float]) -> dict[Phase, float]:
    """Of each phase the shorter timeout."""
    return {phase: min(one.get(phase, seconds), seconds) for phase, seconds in {**one, **other}.items()}
