"""One answer's way out to its client, and what of it arrived.

Never an encoder and never an engine: bytes go out, a disconnect comes back. Waiting for the client is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

from starlette.types import Message, Scope, Send

from server.client_connection import ClientConnection
from server.delivery.departures import ClientGoneError, SlowClientError
from server.frame_ledger import FrameLedger
from server.stalled_writing import StalledWriting

CONNECTION = "tailrace.connection"
"""The name in `scope["extensions"]` under which a request finds its `ClientConnection`."""
PIECE_BYTES = 128 * 1024
"""A larger body is given to the socket in pieces of this size: 10 MB leave no slower so than in one."""
FIRST_LOOK_SECONDS = 0.001
LAST_LOOK_SECONDS = 0.25
"""How soon, and then how seldom, it is asked whether the end of an answer has arrived."""


def connection_of(scope: Scope) -> ClientConnection:
    """The connection that a request came on, or one that is never lost."""
    connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
    return ClientConnection() if connection is None else connection


class ClientSocket:
    """One answer's way out. `start` once, `write` any number of times, `end` once.

    Each raises `SlowClientError` when the client took nothing in time, whose connection is cut then, and
    `ClientGoneError` when it is gone: in both cases no token of that call is counted as written. Taking something means
    that the client's kernel acknowledged bytes, as it does when its window opens: about a packet's size, or a sixteenth
    of its receive buffer. Who takes that much within each timeout gets every byte, however long it takes.
    """

    def __init__(self, send: Send, slow_client_timeout: float, connection: ClientConnection | None = None) -> None:
        self._send = send
        self._timeout = slow_client_timeout
        self._connection = connection or ClientConnection()
        self._ledger = None if self._connection.acknowledged_bytes is None else FrameLedger()
        self._cut = False
        self._end: int | None = None
        """Where on the connection the answer ends."""
        self._arrived = False
        self._short_way = False
        """The connection takes parts of this answer's body without ASGI's messages."""
        self.started = False
        self.ended = False
        self.blocked = False
        """A call is waiting for the client to take something."""
        self.bytes_written = 0
        """Of the body, without HTTP's framing."""
        self.written_tokens = 0
        """Of frames that the socket accepted while the client was connected."""

    @property
    def shut(self) -> bool:
        """Whether the connection was cut since the server ends."""
        return self._connection.shut

    @property
    def cut(self) -> bool:
        """Whether the connection was cut since the client was too slow: by us, or by the kernel as it was told."""
        return self._cut or self._connection.stalled

    @property
    def delivered_tokens(self) -> int:
        """Written tokens, less those of frames that the client's kernel did not have whole when it was lost."""
        if self._arrived or self._ledger is None or not self._connection.lost:
            return self.written_tokens
        acknowledged = self._connection.acknowledged_bytes
        return self.written_tokens if acknowledged is None else self._ledger.delivered(acknowledged)

    @property
    def delivered_is(self) -> Literal["acknowledged", "written"]:
        """Whether the kernel's word stands behind `delivered_tokens`, or it is what was written for want of one."""
        connection = self._connection
        told = self._ledger is not None and connection.acknowledged_bytes is not None and not connection.closed_well
        return "acknowledged" if told else "written"

    @property
    def on_half_close(self) -> Callable[[], None] | None:
        """See `ClientConnection.on_half_close`."""
        return self._connection.on_half_close

    @on_half_close.setter
    def on_half_close(self, callback: Callable[[], None] | None) -> None:
        self._connection.on_half_close = callback

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._give({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, tokens: int = 0) -> None:
        """Returns when the socket accepted the bytes, in which `tokens` more of the answer stand."""
        if len(data) > PIECE_BYTES or not self.write_now(data, tokens):
            await self._give_body(data, more=True)
            self._wrote(tokens)

    async def end(self, data: bytes = b"", tokens: int = 0) -> None:
        """As `write`."""
        self.ended = True
        await self._give_body(data, more=False)
        self._end = self._connection.given_bytes
        self._wrote(tokens)

    async def arrived(self) -> bool:
        """After `end`: whether the client's kernel has all of the answer. Waits as long as it takes some of it in time.

        What can't be told counts as arrived once the socket has it: under TLS, and when the answer ends the connection.
        """
        connection, pause = self._connection, FIRST_LOOK_SECONDS
        stall = StalledWriting(lambda: connection.taken_bytes, self.abort)
        try:
            while not (self._has_arrived() or connection.lost):
                stall.begin(self._timeout)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_LOOK_SECONDS)
        finally:
            stall.end()
        self._arrived = self._has_arrived() or connection.closed_well
        return self._arrived

    def _has_arrived(self) -> bool:
        acknowledged = self._connection.acknowledged_bytes
        if acknowledged is None or self._end is None:
            waits = self._connection.watches_stalls and self._connection.congested
            return not self._connection.lost and not waits
        return acknowledged >= self._end

    def abort(self) -> None:
        """Cuts the connection of a client that is too slow: any call from now on raises, and one that waits does.

        With a server that tells nothing of its connections, one that waits ends with its timeout.
        """
        self._cut = True
        self._connection.abort()

    def _wrote(self, tokens: int) -> None:
        if not tokens:
            return
        self.written_tokens += tokens
        if self._ledger is None:
            return
        self._ledger.note(self._connection.given_bytes, self.written_tokens)
        if self._ledger.crowded:
            acknowledged = self._connection.acknowledged_bytes
            if acknowledged is None:
                self._ledger = None  # what can't be told can't be forgotten, and must not grow
            else:
                self._ledger.delivered(acknowledged)

    @property
    def writes_now(self) -> bool:
        """Whether `write_now` will write: it has before, and the client has taken all that the kernel was given."""
        connection = self._connection
        return self._short_way and not (self._cut or connection.lost or connection.congested)

    def write_now(self, data: bytes, tokens: int = 0) -> bool:
        """As `write`, and never waits; False, with nothing written, where that takes ASGI's messages or patience."""
        self._check()
        if not self._connection.write_part(data):
            return False
        self._check()
        self._short_way = True
        self.bytes_written += len(data)
        self._wrote(tokens)
        return True

    async def _give_body(self, data: bytes, *, more: bool) -> None:
        """In pieces, so that little of a large answer waits below us for a client that does not read it."""
        for start in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            last = start + PIECE_BYTES >= len(data)
            await self._give({"type": "http.response.body", "body": piece, "more_body": more or not last})
            self.bytes_written += len(piece)

    async def _give(self, message: Message) -> None:
        self._check()
        if self._connection.congested:
            self.blocked = True
            try:
                await self._give_in_time(message)
            finally:
                self.blocked = False
        else:
            await self._send(message)
        self._check()

    async def _give_in_time(self, message: Message) -> None:
        if self._connection.watches_stalls:
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(message)
        except TimeoutError:
            self.abort()

    def _check(self) -> None:
        connection = self._connection
        if self._cut or connection.stalled:
            raise SlowClientError(f"the client took nothing for {self._timeout:g} s")
        if connection.lost:
            raise ClientGoneError
