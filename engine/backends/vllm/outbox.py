"""What is on its way to the engine process, in order: an abort never overtakes the sequence that it ends.

Never waits on the caller's side, and never loses a message without telling.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Outbox:
    """Takes messages synchronously; one task sends them."""

    def __init__(self, client: Any, lost: Callable[[str, Exception], None]) -> None:
        """`client` is vLLM's; `lost` hears the key of a sequence that could not be sent, and why."""
        self._client = client
        self._lost = lost
        self._messages: deque[Any] = deque()
        """Engine requests, and lists of keys to abort."""
        self._news = asyncio.Event()

    def add(self, request: Any) -> None:
        self._messages.append(request)
        self._news.set()

    def abort(self, keys: list[str]) -> None:
        self._messages.append(keys)
        self._news.set()

    async def run(self) -> None:
        """Sends until it is cancelled, or the client says that its engine is dead."""
        while True:
            while self._messages:
                await self._send(self._messages.popleft())
            self._news.clear()
            await self._news.wait()

    async def _send(self, message: Any) -> None:
        if isinstance(message, list):
            while self._messages and isinstance(self._messages[0], list):
                message = message + self._messages.popleft()
            await self._client.abort_requests_async(message)
            return
        try:
            await self._client.add_request_async(message)
        except Exception as error:
            if self._client.resources.engine_dead:
                raise
            logger.exception("a sequence could not be sent to the engine")
            self._lost(message.request_id, error)
