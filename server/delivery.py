"""The client's connection: the only place that calls ASGI's `receive` and `send`.

Never an encoder and never an engine: bytes go out, a disconnect comes back. Waiting for the client is bounded.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.wire.errors import WireError

CONNECTION = "tailrace.connection"
"""The name in `scope["extensions"]` under which a request finds its `ClientConnection`."""
BODY_SECONDS = 60.0
"""How long a request's body may take to come."""

_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


class SlowClientError(Exception):
    """The client took nothing for longer than it may."""


class ClientConnection(Protocol):
    """What an answer may know of the connection below it: ASGI's `send` returns in silence when nobody is there."""

    @property
    def lost(self) -> bool: ...

    def abort(self) -> None:
        """Cuts it at once, with what was not sent yet."""


class _UnknownConnection:
    """Of a server that tells nothing: never lost, as far as one knows."""

    lost = False

    def abort(self) -> None:
        """Such a server closes what its application left unfinished."""


def connection_of(scope: Scope) -> ClientConnection:
    """The connection that a request came on, or one that is never lost."""
    connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
    return _UnknownConnection() if connection is None else connection


class ClientSocket:
    """One answer's way out. `start` once, `write` any number of times, `end` once.

    Each raises `SlowClientError` when the client took nothing in time, whose connection is cut then, and
    `ClientGoneError` when it is gone: in both cases nothing is counted as written.
    """

    def __init__(self, send: Send, slow_client_timeout: float, connection: ClientConnection | None = None) -> None:
        self._send = send
        self._timeout = slow_client_timeout
        self._connection = connection or _UnknownConnection()
        self.started = False
        self.ended = False
        self.bytes_written = 0

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._give({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Returns when the socket accepted the bytes."""
        await self._give({"type": "http.response.body", "body": data, "more_body": True})
        self.bytes_written += len(data)

    async def end(self, data: bytes = b"") -> None:
        self.ended = True
        await self._give({"type": "http.response.body", "body": data, "more_body": False})
        self.bytes_written += len(data)

    async def _give(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(message)
        except TimeoutError:
            self._connection.abort()
            raise SlowClientError(f"the client took nothing for {self._timeout:g} s") from None
        if self._connection.lost:
            raise ClientGoneError


async def read_body(
    receive: Receive, headers: Mapping[str, str], limit_bytes: int, limit_seconds: float = BODY_SECONDS
) -> bytes:
    """The whole request body. `ClientGoneError` on a cut.

    A `WireError` 413 as soon as it is known to be too large, 408 when it is not whole in time.
    """
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(limit_seconds):
            return await _joined(receive, limit_bytes)
    except TimeoutError:
        message = f"the request body did not come within {limit_seconds:g} s"
        raise WireError(408, message, code="request_timeout") from None


async def _joined(receive: Receive, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit_bytes: int) -> WireError:
    return WireError(413, f"the request body is larger than {limit_bytes} bytes", code="request_too_large")


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


class RequestIdentity:
    """Plain ASGI middleware: every request has an id, and every answer says it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        stamp = [(name.encode(), value.encode()) for name, value in identity_headers(request_id).items()]

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *stamp]
            await send(message)

        await self._app(scope, receive, stamped)


def identity_headers(request_id: str) -> dict[str, str]:
    """The request's id under the names that OpenAI's and Anthropic's SDKs read."""
    return {"x-request-id": request_id, "request-id": request_id}


def client_request_id(headers: Mapping[str, str]) -> str | None:
    """The id that the client gave its request, if it is a printable one: for the log only."""
    value = headers.get("x-request-id", "")
    return value if _CLIENT_ID.fullmatch(value) else None
