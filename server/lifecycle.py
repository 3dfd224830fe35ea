"""The states of a stream as literal tables: generation, delivery, and what both together mean at the end. Pure."""

from __future__ import annotations

from enum import StrEnum


class Generation(StrEnum):
    """What the engine does for the request."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


class Delivery(StrEnum):
    """What the client gets."""

    IDLE = "idle"
    OPEN = "open"
    CLOSED = "closed"
    LOST = "lost"


class EndState(StrEnum):
    """How a stream ended, for its account: exactly one of these."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    UPSTREAM_ERROR = "upstream_error"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"


GENERATION_NEXT: dict[Generation, frozenset[Generation]] = {
    Generation.NEW: frozenset({Generation.QUEUED, Generation.ABORTED, Generation.FAILED}),
    Generation.QUEUED: frozenset({Generation.RUNNING, Generation.FINISHED, Generation.ABORTED, Generation.FAILED}),
    Generation.RUNNING: frozenset({Generation.FINISHED, Generation.ABORTED, Generation.FAILED}),
    Generation.FINISHED: frozenset(),
    Generation.ABORTED: frozenset(),
    Generation.FAILED: frozenset(),
}
DELIVERY_NEXT: dict[Delivery, frozenset[Delivery]] = {
    Delivery.IDLE: frozenset({Delivery.OPEN, Delivery.CLOSED, Delivery.LOST}),
    Delivery.OPEN: frozenset({Delivery.CLOSED, Delivery.LOST}),
    Delivery.CLOSED: frozenset(),
    Delivery.LOST: frozenset(),
}
END_STATE: dict[tuple[Generation, Delivery], EndState] = {
    (Generation.FINISHED, Delivery.CLOSED): EndState.COMPLETED,
    (Generation.FINISHED, Delivery.LOST): EndState.CLIENT_CANCELLED,
    (Generation.ABORTED, Delivery.CLOSED): EndState.UPSTREAM_ERROR,
    (Generation.ABORTED, Delivery.LOST): EndState.CLIENT_CANCELLED,
    (Generation.FAILED, Delivery.CLOSED): EndState.UPSTREAM_ERROR,
    (Generation.FAILED, Delivery.LOST): EndState.UPSTREAM_ERROR,
}
"""Total over the terminal states of both. A deadline or a refusal is said apart, by whoever ended the stream for it."""


class StreamState:
    """One stream's two states. A move that no table has is a programming error, and raises."""

    __slots__ = ("delivery", "generation", "timed_out")

    def __init__(self) -> None:
        self.generation = Generation.NEW
        self.delivery = Delivery.IDLE
        self.timed_out = False
        """A deadline ended it, the slow reader's included."""

    def generate(self, state: Generation) -> None:
        if state is self.generation:
            return
        if state not in GENERATION_NEXT[self.generation]:
            raise ValueError(f"generation can't go from {self.generation} to {state}")
        self.generation = state

    def deliver(self, state: Delivery) -> None:
        if state is self.delivery:
            return
        if state not in DELIVERY_NEXT[self.delivery]:
            raise ValueError(f"delivery can't go from {self.delivery} to {state}")
        self.delivery = state

    def fail(self) -> None:
        """Generation failed, if it had not ended yet; the client is told so."""
        if GENERATION_NEXT[self.generation]:
            self.generate(Generation.FAILED)
        if DELIVERY_NEXT[self.delivery]:
            self.deliver(Delivery.CLOSED)

    def close(self, *, delivered: bool) -> None:
        """What is still open ends now: generation as aborted, delivery as closed (the client was told) or lost."""
        if GENERATION_NEXT[self.generation]:
            self.generate(Generation.ABORTED)
        if DELIVERY_NEXT[self.delivery]:
            self.deliver(Delivery.CLOSED if delivered else Delivery.LOST)

    @property
    def end_state(self) -> EndState:
        """How it ended. `KeyError` before both sides have."""
        return EndState.TIMED_OUT if self.timed_out else END_STATE[self.generation, self.delivery]
