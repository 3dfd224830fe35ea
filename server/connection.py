"""uvicorn's HTTP connection: heads within bounds, departures known to every request on it, faults in the API's words.

Never a request's business: a request sees it as a `ClientConnection` in its scope, which tells what the client took.
"""

from __future__ import annotations

import asyncio
import errno
import re
import uuid
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.client_connection import ClientConnection
from server.delivery import CONNECTION, asking_on, identity_headers
from server.half_close import HalfClose, ResetWatch
from server.head_marks import BLANK_LINE, beginning_at_end
from server.measured_transport import MeasuredTransport
from server.request_cycle import chunk_written, closing_if_unread, without_chunks
from server.stalled_writing import StalledWriting
from server.wire.errors import ErrorFacts
from server.wire.openai_errors import error_body

HEAD_SECONDS = 30.0
"""How long a connection may take over a request's head, the first included, and over a body that nobody waits for."""
HEAD_BYTES = 64 * 1024
SLOW_CLIENT_SECONDS = 60.0
"""How long a client may take nothing of what waits for it, unless the server is told otherwise."""
LINGER_SECONDS = 2.0
"""After a refusal: how long we take in what still comes, so that the kernel does not reset before it was read."""
QUEUED_REQUESTS = 16
"""Pipelined requests up to which we go on reading behind a running one: only who reads sees the client leave."""

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class Connection(HttpToolsProtocol, ClientConnection):
    """One client's connection. What it received goes to the parser in pieces that end where a head or body may end.

    So heads can be bounded and mended: llhttp stops at an `Upgrade`, and the body of a request that offers one (h2c,
    from Java's and curl's HTTP/2 clients) would be lost. A server may ignore the offer (RFC 9110, 7.8): it is renamed.

    A client's end of file may mean that it left, or that it only sends no more, as netcat does (see `HalfClose`).
    Requests that were whole before it are answered, also pipelined ones, unless the answer waits for its client to
    leave and can send nothing meanwhile (`on_half_close` not set). Then the connection closes.
    """

    head_seconds = HEAD_SECONDS
    slow_client_seconds = SLOW_CLIENT_SECONDS
    watches_stalls = True

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
        self.stalled = False
        self.shut = False
        self.closed_well = False
        self._stall = StalledWriting(lambda: self.taken_bytes, self._stalled)
        self._wire: MeasuredTransport
        self._acknowledged_at_loss: int | None = None
        self._half_close = HalfClose(self._leave)
        self._reset_watch: ResetWatch | None = None
        self._running: RequestResponseCycle | None = None
        self._refused = False
        self._held = b""
        """The end of what was received, where it may be the beginning of a mark."""
        self._in_head = True
        self._head_bytes = 0
        self._body_bytes_left = 0
        """Of a body of declared length; 0 in one of chunks."""
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def congested(self) -> bool:
        return self.flow.write_paused

    @property
    def given_bytes(self) -> int:
        return self._wire.given_bytes

    @property
    def taken_bytes(self) -> int | None:
        return self._wire.taken_bytes

    @property
    def acknowledged_bytes(self) -> int | None:
        return self._acknowledged_at_loss if self.lost else self._wire.acknowledged_bytes

    @property
    def on_half_close(self) -> Callable[[], None] | None:
        return self._half_close.callback

    @on_half_close.setter
    def on_half_close(self, callback: Callable[[], None] | None) -> None:
        self._half_close.callback = callback

    def write_part(self, data: bytes) -> bool:
        return not self.flow.write_paused and chunk_written(self._running, data)

    def shut_down(self) -> None:
        """Cuts a connection that the server's end can't wait for."""
        self.shut = not self.lost
        self.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.begin(self.slow_client_seconds)

    def resume_writing(self) -> None:
        self._stall.end()
        super().resume_writing()

    def _stalled(self) -> None:
        self.stalled = not self.lost
        self.abort()

    def abort(self) -> None:
        """Cuts the connection now: what was not sent is dropped, here and in the kernel."""
        if not self.lost:
            self._lose()
            self._wire.reset()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        self._wire = MeasuredTransport(transport, self._lose)
        self._wire.bound_silence(self.slow_client_seconds)
        super().connection_made(self._wire)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stalled = self.stalled or (isinstance(exc, OSError) and exc.errno == errno.ETIMEDOUT)
        self.closed_well = exc is None and self._wire.closed_here and not self.lost
        self._stall.end()
        self._lose()
        self._head_came()
        if self._reset_watch is not None:
            self._reset_watch.close()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's gives None, which closes
        """True: the connection stays open for what is to be written."""
        running = self._running
        if running is None or running.response_complete:
            return False
        if not running.more_body:
            self._reset_watch = self._wire.watch_for_reset(self._was_reset)
        if self._reset_watch is None:
            self._lose()
            return False
        if self.pipeline and self.pipeline[0][0].more_body:  # the newest: what it lacks will not come
            self.pipeline.popleft()
        self._half_close.come()
        return not self.lost

    def _leave(self) -> None:
        self._lose()
        self.transport.close()

    def _was_reset(self, error: int) -> None:
        self.stalled = error == errno.ETIMEDOUT
        self.abort()

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
        blank = data.find(BLANK_LINE, start)
        end = len(data) - beginning_at_end(data, start) if blank < 0 else blank + len(BLANK_LINE)
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
        if self._half_close.came and self._running is not None and self._running.response_complete:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"the request is not valid HTTP: {msg}", "invalid_http")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._half_close.begin_answer()
        app = partial(asking_on, app, self._half_close.ask)  # type: ignore[arg-type]  # starlette's types for the same
        if cycle.scope["http_version"] == "1.0":
            app = partial(without_chunks, app, cycle)
        elif cycle.waiting_for_100_continue:
            app = partial(closing_if_unread, app, cycle)
        super()._start_asgi_task(cycle, app)

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
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        headers |= identity_headers(uuid.uuid4().hex)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("ascii") + body)
        if self.transport.can_write_eof():  # TLS knows no half of a connection
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _lose(self) -> None:
        """Tells every request of this connection; uvicorn tells the newest, which need not be the one that runs."""
        if not self.lost:
            self._acknowledged_at_loss = self._wire.acknowledged_bytes
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


def connection_class(slow_client_seconds: float) -> type[Connection]:
    """The class for a server whose clients may take nothing for so long."""
    return type("Connection", (Connection,), {"slow_client_seconds": slow_client_seconds})
