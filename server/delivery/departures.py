"""A client that leaves while its answer is made, and how whoever makes it hears of it.

Never a byte of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


class SlowClientError(Exception):
    """The client took nothing for longer than it may."""


async def asking_on(app: ASGIApp, asked: Callable[[], None], scope: Scope, receive: Receive, send: Send) -> None:
    """Says when the application has its request whole and still asks: from then on it waits for its client to leave."""
    whole = False

    async def heard() -> Message:
        nonlocal whole
        if whole:
            asked()
        message = await receive()
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        return message

    await app(scope, heard, send)


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Runs `work` to its end, or cancels it when the client leaves; True when it ended by itself.

    Leaving this, by whatever way, leaves no task behind.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        await task
        return True
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
