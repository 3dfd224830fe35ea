"""Admission decides at once: in, or back later. Never waits, never looks into a request."""

from __future__ import annotations

from engine.core import EngineCore
from engine.errors import EngineOverloadedError, EngineUnavailableError

RETRY_AFTER_SECONDS = 1.0


class Admission:
    """The queue's bound, and the state that a draining server is in."""

    def __init__(self, core: EngineCore, max_queued_requests: int) -> None:
        self._core = core
        self._max_queued_requests = max_queued_requests
        self.draining = False

    @property
    def ready(self) -> bool:
        return self._core.ready and not self.draining

    def check(self, sequences: int = 1) -> None:
        """Raises `EngineUnavailableError` or `EngineOverloadedError` when so many more sequences can't be taken now.

        Where nothing waits, one request is always let in, however many choices it wants.
        """
        if self.draining:
            raise EngineUnavailableError("the server is draining and takes no new requests")
        if not self._core.ready:
            raise EngineUnavailableError(self._core.failure or "the engine is not running")
        waiting = self._core.stats().waiting
        if waiting and waiting + sequences > self._max_queued_requests:
            message = (
                f"{waiting} sequences are waiting; this server queues {self._max_queued_requests}; try again later"
            )
            raise EngineOverloadedError(message, retry_after=RETRY_AFTER_SECONDS)
