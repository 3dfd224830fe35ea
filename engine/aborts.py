"""Sequences that were aborted, until the engine says that it holds nothing of them any more.

Never aborts anything itself, and never reads a clock: the core says when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from engine.stream import SequenceStream
from engine.types import AbortReason

WANTED = frozenset({AbortReason.STOP_STRING, AbortReason.CANCELLED})
"""Ends of a stream that has a client still: tokens after them are late, but no zombies."""


@dataclass(slots=True)
class UnconfirmedAbort:
    """One sequence between its abort and the engine's word that it is gone."""

    stream: SequenceStream
    reason: AbortReason
    requested_at: float
    """When it was aborted, in seconds on the monotonic clock."""
    sent_at: float
    """When the engine was last told."""

    @property
    def is_zombie(self) -> bool:
        """Tokens that the engine still samples for it are for nobody."""
        return self.reason not in WANTED


class AbortLedger:
    """The unconfirmed aborts by request id. Each stream's sequence is released exactly once."""

    def __init__(self) -> None:
        self._entries: dict[str, UnconfirmedAbort] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, request_id: str) -> UnconfirmedAbort | None:
        return self._entries.get(request_id)

    def add(self, request_id: str, stream: SequenceStream, reason: AbortReason, now: float) -> None:
        """A live sequence was aborted."""
        self._entries[request_id] = UnconfirmedAbort(stream, reason, now, now)

    def settle(self, request_id: str) -> UnconfirmedAbort | None:
        """The engine holds nothing of it any more; None where nobody waits to hear that."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            entry.stream.released()
        return entry

    def settle_all(self, request_ids: Iterable[str] | None = None) -> None:
        """The same for these, or for all: the engine that held them is no more."""
        for request_id in list(self._entries if request_ids is None else request_ids):
            self.settle(request_id)

    def overdue(self, sent_before: float) -> list[str]:
        """The ids of which the engine was last told before that time."""
        return [request_id for request_id, entry in self._entries.items() if entry.sent_at < sent_before]

    def sent_again(self, request_ids: Collection[str], now: float) -> None:
        """The engine was told once more."""
        for request_id in request_ids:
            self._entries[request_id].sent_at = now
