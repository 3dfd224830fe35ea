"""A request that its test holds in its hands: sent and not yet answered, read event by event, closed at any point.

Never more of the answer read than was asked for, but for what the socket's buffer takes.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

TIMEOUT_SECONDS = 10


class OpenRequest:
    """Sends a POST when it is made; a context manager that closes the connection, wherever the answer is."""

    def __init__(
        self,
        url: str,
        path: str,
        body: Mapping[str, Any],
        *,
        receive_buffer: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        address = httpx.URL(url)
        self.connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_SECONDS)
        self.connection.sock = _connected(address, receive_buffer)
        self._response: http.client.HTTPResponse | None = None
        self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **(headers or {})})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The client is gone."""
        if self._response is not None:
            self._response.close()
        self.connection.close()

    def send_no_more(self) -> None:
        """Closes the sending half, as netcat does."""
        self.connection.sock.shutdown(socket.SHUT_WR)

    @property
    def response(self) -> http.client.HTTPResponse:
        """Waits for the headers, once: Python 3.11's `cached_property` would have other threads wait meanwhile."""
        if self._response is None:
            self._response = self.connection.getresponse()
        return self._response

    @property
    def request_id(self) -> str:
        return self.response.headers["x-request-id"]

    def blocks(self) -> Iterator[bytes]:
        """What stands between blank lines, comments too, until the answer ends."""
        lines: list[bytes] = []
        while line := self.response.readline():
            if line != b"\n":
                lines.append(line)
            elif lines:
                yield b"".join(lines).removesuffix(b"\n")
                lines.clear()
        assert not lines, "the stream was cut inside a block"

    def next_events(self, count: int) -> list[bytes]:
        """So many more blocks that are no comments, or what is left of them."""
        events: list[bytes] = []
        blocks = self.blocks()
        while len(events) < count and (block := next(blocks, None)) is not None:
            if not block.startswith(b":"):
                events.append(block)
        return events

    def all_events(self) -> list[bytes]:
        """Every block to the end of the answer that is no comment."""
        return [block for block in self.blocks() if not block.startswith(b":")]


def _connected(address: httpx.URL, receive_buffer: int) -> socket.socket:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_SECONDS)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((address.host, address.port))
    return connection
