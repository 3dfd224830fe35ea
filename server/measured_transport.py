"""A connection's transport that knows what its client's kernel took, and bounds what waits below us for a slow one.

Never a request's business and never an HTTP rule: bytes are counted as they pass. What a platform can't tell is None.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterable
from typing import Any

from server.half_close import ResetWatch

UNSENT_BYTES = 16 * 1024
"""Bytes that may wait unsent in the kernel before writing pauses; they cost the process nothing."""
KEEPALIVE_IDLE_SECONDS = 30
KEEPALIVE_INTERVAL_SECONDS = 15
KEEPALIVE_PROBES = 3
"""A connection that says nothing is asked after 30 s, then every 15 s; with no answer to three it is lost (75 s)."""
SILENCE_MARGIN_SECONDS = 5.0
"""How much later than the server itself the kernel gives up on a client that acknowledges nothing."""

_BYTES_ACKNOWLEDGED = struct.Struct("=120xQ")
"""`tcpi_bytes_acked` in Linux's `struct tcp_info`, since 4.1: bytes of ours that the peer ever acknowledged."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class MeasuredTransport(asyncio.Transport):
    """Passes everything on to the event loop's transport."""

    def __init__(self, transport: asyncio.Transport, failed: Callable[[], None]) -> None:
        """`failed` is called when something is written that goes nowhere: the loop says so only in its next turn."""
        super().__init__()
        self._transport = transport
        self._failed = failed
        self._socket = _tcp_socket(transport)
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        self._buffered = 0
        """Bytes in the transport after the last write: at most so many were dropped when it was lost."""
        self.closed_here = False
        """The connection ends because we want it to, once all is sent."""
        self.given_bytes = 0
        """Bytes written so far, HTTP's own included."""
        # What the kernel does not take is better merged than queued. TLS always has something under way: with a limit
        # of 0 nothing would ever be written.
        transport.set_write_buffer_limits(UNSENT_BYTES if self._encrypted else 0)
        if self._socket is not None:
            _set(self._socket, _accepted_options())

    @property
    def taken_bytes(self) -> int | None:
        """A figure that grows whenever the peer's kernel takes something: of the wire, so with TLS's own bytes."""
        if self._socket is None or sys.platform != "linux":
            return None
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKNOWLEDGED.size)
        except (OSError, ValueError):  # ValueError: closed before us, as TLS's socket is
            return None
        return _BYTES_ACKNOWLEDGED.unpack(info)[0] if len(info) == _BYTES_ACKNOWLEDGED.size else None

    @property
    def acknowledged_bytes(self) -> int | None:
        """How many of `given_bytes` the peer's kernel has. Also right after a reset, until the socket is closed.

        The kernel's own sum must agree with ours: not under TLS, nor where an emulated kernel leaves the figure at 0.
        """
        taken = self.taken_bytes
        if taken is None or self._socket is None or self._encrypted:
            return None
        in_kernel = taken + _queued_bytes(self._socket)
        end_of_stream = 1  # it is acknowledged like a byte
        if not self.given_bytes - self._buffered <= in_kernel <= self.given_bytes + end_of_stream:
            return None
        return min(taken, self.given_bytes)

    def bound_silence(self, slow_client_timeout: float) -> None:
        """Lets the kernel give up on a peer that acknowledges nothing, or opens no window, somewhat later.

        Without it a client whose cable was cut is retried for a quarter of an hour. It counts from the first byte that
        was not taken, so it also finds who reads nothing of a stream too slow for writing ever to pause.
        """
        if self._socket is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = min(round((slow_client_timeout + SILENCE_MARGIN_SECONDS) * 1_000), 2**31 - 1)
            _set(self._socket, [(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)])

    def reset(self) -> None:
        """Closes at once: what was not sent is dropped, here and in the kernel."""
        if self._socket is not None:
            _set(self._socket, [(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)])
        self._transport.abort()

    def watch_for_reset(self, callback: Callable[[int], None]) -> ResetWatch | None:
        """None where it can't be watched: then half a connection is none."""
        if self._socket is None or self._encrypted or not hasattr(select, "epoll"):
            return None
        return ResetWatch(self._socket, callback)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._transport.is_closing():
            self.given_bytes += len(data)
            self._transport.write(data)
            if not self._transport.is_closing():
                self._buffered = self._transport.get_write_buffer_size()
                return
            self._buffered += len(data)
        self._failed()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self._transport.write_eof()

    def close(self) -> None:
        self.closed_here = True
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


def _tcp_socket(transport: asyncio.Transport) -> socket.socket | None:
    found: socket.socket | None = transport.get_extra_info("socket")
    return found if found is not None and found.family in (socket.AF_INET, socket.AF_INET6) else None


def _queued_bytes(connection: socket.socket) -> int:
    """Of the kernel's send queue: not yet acknowledged, sent or not (SIOCOUTQ, which is TIOCOUTQ)."""
    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return int.from_bytes(answer, sys.byteorder)


def _accepted_options() -> list[tuple[int, int, int | bytes]]:
    """Of every accepted connection: the kernel's names, where this platform has them."""
    wanted = {
        "TCP_NOTSENT_LOWAT": UNSENT_BYTES,
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
        "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_SECONDS,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
    }
    known = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in wanted.items() if hasattr(socket, name)
    ]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def _set(connection: socket.socket, options: Iterable[tuple[int, int, int | bytes]]) -> None:
    """A connection that is gone already may refuse; its loss is noticed elsewhere."""
    for level, name, value in options:
        try:
            connection.setsockopt(level, name, value)
        except (OSError, ValueError):
            return
