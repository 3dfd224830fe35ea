"""The accounts that can be asked for by a response's id: those of open requests, and for a while those that ended.

Never of one key to another, and never more than so many: the oldest go first.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_PREFIX = re.compile(r"[a-z]+[-_]")
"""`chatcmpl-`, `cmpl-`, `resp_`, `msg_`: what a dialect puts before the request's id."""


@dataclass(frozen=True, slots=True)
class _Ended:
    expires_at: float
    key_name: str | None
    record: dict[str, Any]


class UsageRecords:
    """What `/v1/usage/{id}` knows of the requests that ended."""

    def __init__(self, retention_seconds: float, max_records: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._retention_seconds = retention_seconds
        self._max_records = max_records
        self._clock = clock
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        """In the order in which they expire."""

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, request_id: str, key_name: str | None, record: dict[str, Any]) -> None:
        """Keeps a record; the oldest make room."""
        now = self._clock()
        self._ended[request_id] = _Ended(now + self._retention_seconds, key_name, record)
        while self._ended and (len(self._ended) > self._max_records or self._oldest_expired(now)):
            self._ended.popitem(last=False)

    def find(self, request_id: str, key_name: str | None) -> dict[str, Any] | None:
        """The record, if it is there and this key's."""
        ended = self._ended.get(request_id)
        if ended is None or ended.expires_at <= self._clock() or ended.key_name != key_name:
            return None
        return ended.record

    def _oldest_expired(self, now: float) -> bool:
        return next(iter(self._ended.values())).expires_at <= now


def request_id_of(response_id: str) -> str:
    """The request's id inside a response's id, or the id itself."""
    return _PREFIX.sub("", response_id, count=1)
