"""A client that lets a connection wait: looked at while it does, and found out when it took nothing for too long.

Never a byte of its own, and no timer while the client takes what it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOKS_PER_TIMEOUT = 8
"""How often a client that lets us wait is looked at: it is cut at most an eighth later than it may."""


class StalledWriting:
    """Between `begin` and `end` something waits to be taken. Taking anything starts the client's time anew."""

    def __init__(self, taken: Callable[[], int | None], stalled: Callable[[], None]) -> None:
        """`taken`: a figure that grows whenever the client takes something. `stalled` is called once, at the end."""
        self._taken = taken
        self._stalled = stalled
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = 0.0
        self._last: int | None = None
        self._since = 0.0

    def begin(self, timeout: float) -> None:
        """Idempotent; the client has so many seconds from now."""
        if self._timer is None:
            self._timeout = timeout
            self._last, self._since = self._taken(), asyncio.get_running_loop().time()
            self._look_later()

    def end(self) -> None:
        """Nothing waits any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout / LOOKS_PER_TIMEOUT, self._look)

    def _look(self) -> None:
        now, taken = asyncio.get_running_loop().time(), self._taken()
        if taken != self._last:
            self._last, self._since = taken, now
        if now - self._since >= self._timeout:
            self._timer = None
            self._stalled()
        else:
            self._look_later()
