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


class Phase(StrEnum):
    """How far a request has come; the deadlines have the same names, and two of their own."""

    REQUEST = "request"
    """Read, validated, admitted."""
    QUEUE = "queue"
    """With the engine, which has not begun."""
    FIRST_TOKEN = "first_token"  # noqa: S105 - a phase, no password
    """In prefill."""
    BETWEEN_TOKENS = "between_tokens"
    """Decoding."""
    DELIVERY = "delivery"
    """All is generated, not all is written."""
    DONE = "done"
    TOTAL = "total"
    """A deadline over the whole answer passed."""
    SLOW_CLIENT = "slow_client"
    """The client took nothing for too long, or let too much wait."""


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
END_STATE: dict[tuple[Generation, Delivery], EndState | None] = {
    (Generation.NEW, Delivery.IDLE): None,
    (Generation.NEW, Delivery.OPEN): None,
    (Generation.NEW, Delivery.CLOSED): None,
    (Generation.NEW, Delivery.LOST): None,
    (Generation.QUEUED, Delivery.IDLE): None,
    (Generation.QUEUED, Delivery.OPEN): None,
    (Generation.QUEUED, Delivery.CLOSED): None,
    (Generation.QUEUED, Delivery.LOST): None,
    (Generation.RUNNING, Delivery.IDLE): None,
    (Generation.RUNNING, Delivery.OPEN): None,
    (Generation.RUNNING, Delivery.CLOSED): None,
    (Generation.RUNNING, Delivery.LOST): None,
    (Generation.FINISHED, Delivery.IDLE): None,
    (Generation.FINISHED, Delivery.OPEN): None,
    (Generation.FINISHED, Delivery.CLOSED): EndState.COMPLETED,
    (Generation.FINISHED, Delivery.LOST): EndState.CLIENT_CANCELLED,
    (Generation.ABORTED, Delivery.IDLE): None,
    (Generation.ABORTED, Delivery.OPEN): None,
    (Generation.ABORTED, Delivery.CLOSED): EndState.UPSTREAM_ERROR,
    (Generation.ABORTED, Delivery.LOST): EndState.CLIENT_CANCELLED,
    (Generation.FAILED, Delivery.IDLE): None,
    (Generation.FAILED, Delivery.OPEN): None,
    (Generation.FAILED, Delivery.CLOSED): EndState.UPSTREAM_ERROR,
    (Generation.FAILED, Delivery.LOST): EndState.UPSTREAM_ERROR,
}
"""Total: None while either side is still open. What neither side can know (`Verdict`) goes before it."""


class Verdict(StrEnum):
    """An end that the two states don't tell, said by whoever brought it about."""

    REFUSED = "refused"
    """The request was turned away before the engine had it."""
    DEADLINE = "deadline"
    SOFT_CANCEL = "soft_cancel"
    """The client asked for the end and stayed to read it."""
    SHUT_DOWN = "shut_down"
    """The server ended before the client had taken everything."""


VERDICT_END_STATE: dict[Verdict, EndState] = {
    Verdict.REFUSED: EndState.REJECTED,
    Verdict.DEADLINE: EndState.TIMED_OUT,
    Verdict.SOFT_CANCEL: EndState.CLIENT_CANCELLED,
    Verdict.SHUT_DOWN: EndState.UPSTREAM_ERROR,
}


class StreamState:
    """One stream's two states. A move that no table has is a programming error, and raises."""

    __slots__ = ("deadline", "delivery", "generation", "submitted", "verdict")

    def __init__(self) -> None:
        self.generation = Generation.NEW
        self.delivery = Delivery.IDLE
        self.submitted = False
        """The engine had it."""
        self.verdict: Verdict | None = None
        self.deadline: Phase | None = None
        """Which deadline passed, with the verdict DEADLINE."""

    def generate(self, state: Generation) -> None:
        if state is self.generation:
            return
        if state not in GENERATION_NEXT[self.generation]:
            raise ValueError(f"generation can't go from {self.generation} to {state}")
        self.generation = state
        self.submitted = self.submitted or state is Generation.QUEUED

    def deliver(self, state: Delivery) -> None:
        if state is self.delivery:
            return
        if state not in DELIVERY_NEXT[self.delivery]:
            raise ValueError(f"delivery can't go from {self.delivery} to {state}")
        self.delivery = state

    def refuse(self) -> None:
        """The engine never had it; the client is told."""
        self.verdict = Verdict.REFUSED
        self.close(delivered=True)

    def time_out(self, deadline: Phase) -> None:
        """A deadline passed; only the first one counts."""
        if self.verdict is None:
            self.verdict, self.deadline = Verdict.DEADLINE, deadline

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
    def generated(self) -> bool:
        """The engine finished by itself."""
        return self.generation is Generation.FINISHED

    @property
    def end_state(self) -> EndState | None:
        """How it ended; None before both sides have."""
        ended = END_STATE[self.generation, self.delivery]
        return ended if ended is None or self.verdict is None else VERDICT_END_STATE[self.verdict]
