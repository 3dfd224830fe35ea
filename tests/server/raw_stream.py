"""A client on a bare socket that counts every byte and every token it got, and leaves in the way that it was told.

Never an HTTP library: what a kernel buffers, and how a connection ends, is what its tests are about.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

X = 104
"""SmolLM2's token for the one letter x: so many letters, so many tokens."""
XS: dict[str, Any] = {"prompt": [X], "ignore_eos": True, "stream": True}
_TEXT = re.compile(rb'"text":"(x*)"')
_REQUEST_ID = re.compile(rb"\r\nx-request-id: ([0-9a-f]+)\r\n")
_RESET = struct.pack("ii", 1, 0)
READ_BYTES = 65_536


@dataclass
class RawStream:
    """One POST and what came of it. The answer is a completion whose tokens are all x."""

    url: str
    body: Mapping[str, Any]
    receive_buffer: int = 0
    """Bytes asked for as the kernel's receive buffer; 0: its default."""
    path: str = "/v1/completions"
    received: bytearray = field(default_factory=bytearray)
    """From the head's first byte on."""
    arrivals: list[float] = field(default_factory=list)
    """When bytes came, on the monotonic clock."""
    ended: bool = False
    """The server closed, or the last chunk came."""

    async def open(self) -> None:
        """Connects and sends the request."""
        address = httpx.URL(self.url)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, (address.host, address.port))
        content = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(content)}\r\n\r\n"
        await loop.sock_sendall(self.socket, head.encode() + content)

    async def read(self, size: int = READ_BYTES) -> bool:
        """Takes what comes next; False at the end of the connection or of the answer."""
        if self.ended:
            return False
        try:
            data = await asyncio.get_running_loop().sock_recv(self.socket, size)
        except ConnectionResetError:
            data = b""
        self.take(data)
        return not self.ended

    def take(self, data: bytes) -> None:
        self.received += data
        if data:
            self.arrivals.append(time.monotonic())
        self.ended = not data or self.received.endswith(b"\r\n0\r\n\r\n") or self._refused_whole()

    async def read_events(self, count: int) -> None:
        """Until so many events with text came, or the answer ended."""
        while self.events < count and await self.read():
            pass

    async def read_to_end(self) -> None:
        while await self.read():
            pass

    def take_buffered(self) -> None:
        """What the kernel holds already."""
        while not self.ended:
            try:
                self.take(self.socket.recv(READ_BYTES))
            except BlockingIOError:
                return
            except ConnectionResetError:
                self.ended = True

    def close(self) -> None:
        """FIN, or RST where something was not read: the kernel's choice."""
        self.socket.close()

    def reset(self) -> None:
        """RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.close()

    @property
    def events(self) -> int:
        return len(_TEXT.findall(self.received))

    @property
    def tokens(self) -> int:
        """Tokens of the text that came whole."""
        return sum(map(len, _TEXT.findall(self.received)))

    @property
    def status(self) -> int | None:
        return int(self.received[9:12]) if len(self.received) >= 12 else None

    @property
    def request_id(self) -> str | None:
        match = _REQUEST_ID.search(self.received)
        return None if match is None else match[1].decode()

    @property
    def completed(self) -> bool:
        """The success terminal came."""
        return b"data: [DONE]\n\n" in self.received

    @property
    def failed(self) -> bool:
        """An error came, as an event or as the whole answer."""
        return b'{"error":' in self.received

    def _refused_whole(self) -> bool:
        """An answer of declared length, all of it."""
        head, blank, rest = bytes(self.received).partition(b"\r\n\r\n") if self.status != 200 else (b"", b"", b"")
        match = re.search(rb"\r\ncontent-length: (\d+)", head) if blank else None
        return match is not None and len(rest) >= int(match[1])
