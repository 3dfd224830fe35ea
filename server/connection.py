"""uvicorn's HTTP connection: heads within bounds, departures known to every request on it, faults in the API's words.

Never a request's business: a request sees it as a `ClientConnection` in its scope, and asks only whether it is lost.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import uuid
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.delivery import CONNECTION, identity_headers
from server.wire.errors import ErrorFacts
from server.wire.openai_errors import error_body

HEAD_SECONDS = 30.0
"""How long a connection may take over a request's head, the first included, and over a body that nobody waits for."""
HEAD_BYTES = 64 * 1024
LINGER_SECONDS = 2.0
"""After a refusal: how long we take in what still comes, so that the kernel does not reset before it was read."""
QUEUED_REQUESTS = 16
"""Pipelined requests up to which we go on reading behind a running one: only who reads sees the client leave."""

_BLANK_LINE = b"\r\n\r\n"
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_BEGINNINGS = frozenset(mark[:size] for mark in (_BLANK_LINE, b"\r\nupgrade:") for size in range(1, len(mark)))
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Connection(HttpToolsProtocol):
    """One client's connection. What it received goes to the parser in pieces that end where a head or body may end.

    So heads can be bounded and mended: llhttp stops at an `Upgrade`, and the body of a request that offers one (h2c,
    from Java's and curl's HTTP/2 clients) would be lost. A server may ignore the offer (RFC 9110, 7.8): it is renamed.
    """

    head_seconds = HEAD_SECONDS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.lost = False
        """Nobody reads what is written from now on."""
        self._running: RequestResponseCycle | None = None
        self._refused = False
        self._held = b""
        """The end of what was received, where it may be the beginning of a mark."""
        self._in_head = True
        self._head_bytes = 0
        self._body_bytes_left = 0
        """Of a body of declared length; 0 in one of chunks."""
        self._deadline: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        """Cuts the connection now: what was not sent is dropped, here and in the kernel."""
        if self.lost:
            return
        self._lose()
        if (raw := self.transport.get_extra_info("socket")) is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        self._held = b""
        start = 0
        while start < len(data) and not self._refused and not self.transport.is_closing():
            start = self._feed(data, start)

    def _feed(self, data: bytes, start: int) -> int:
        """Gives the parser the next piece; returns where the one after it begins."""
        if self._body_bytes_left:
            end = min(len(data), start + self._body_bytes_left)
            self._body_bytes_left -= end - start
            super().data_received(data[start:end])
            return end
        blank = data.find(_BLANK_LINE, start)
        end = len(data) - _beginning_at_end(data, start) if blank < 0 else blank + len(_BLANK_LINE)
        piece = data[start:end]
        if self._in_head:
            piece = self._mended(piece, whole=blank >= 0)
        if piece and not self._refused:
            super().data_received(piece)
        self._held = data[end:] if blank < 0 else b""
        return len(data) if blank < 0 else end

    def _mended(self, piece: bytes, *, whole: bool) -> bytes:
        """A piece of a head without its offer of an upgrade."""
        if not whole:
            self._expect_head()
        self._head_bytes += len(piece)
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"the request's head is larger than {HEAD_BYTES} bytes", "request_head_too_large")
        return _UPGRADE.sub(b"\r\nx-upgrade:", piece)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]  # ASGI: "Dict[Unicode string, Any]"

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_came()
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        if 0 < len(self.pipeline) <= QUEUED_REQUESTS:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def on_response_complete(self) -> None:
        if self._running is not None and self._running.more_body:
            self._expect_head()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"the request is not valid HTTP: {msg}", "invalid_http")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        unframed = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, partial(_without_chunks, app, cycle) if unframed else app)

    @property
    def _answering(self) -> bool:
        """Whether a request is being answered that was whole, or whose answer has begun."""
        cycle = self._running
        return cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body)

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answers bytes that make no request with an error object, and closes. Inside another's answer it only cuts."""
        self._refused = True
        if self._answering:
            self.abort()
            return
        self._lose()
        body = error_body(ErrorFacts(status, message, code))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **identity_headers(uuid.uuid4().hex),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("ascii") + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _lose(self) -> None:
        """Tells every request of this connection; uvicorn tells the newest, which need not be the one that runs."""
        self.lost = True
        for cycle in (self._running, *(queued for queued, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        """An answer that is being given is not cut for the half of a next request."""
        self._deadline = None
        if self._running is not None and not self._running.response_complete:
            self._expect_head()
        else:
            self.transport.close()


def _beginning_at_end(data: bytes, start: int) -> int:
    """How many of the last bytes, none before `start`, may be the beginning of a mark."""
    sizes = range(min(_LONGEST_BEGINNING, len(data) - start), 0, -1)
    return next((size for size in sizes if data[-size:].lower() in _BEGINNINGS), 0)


async def _without_chunks(
    app: ASGI3Application,
    cycle: RequestResponseCycle,
    scope: Scope,
    receive: ASGIReceiveCallable,
    _send: ASGISendCallable,
) -> None:
    """HTTP/1.0 knows no chunks: a body of unknown length goes out as it is, and ends with the connection."""
    declared = False

    async def unframed(message: ASGISendEvent) -> None:
        nonlocal declared
        if message["type"] == "http.response.start":
            declared = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = None if declared else False
        elif message["type"] == "http.response.body" and not declared:
            cycle.expected_content_length = len(message.get("body", b""))  # each part is all that uvicorn expects
        await cycle.send(message)

    await app(scope, receive, unframed)
