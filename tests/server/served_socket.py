"""An application around a `ClientSocket` behind our connection in this process, and a client that counts its bytes.

Never a port that outlives its test. All runs in one loop, so what both sides know at one moment can be compared.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import itertools
import socket
import struct
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from server.connection import Connection, connection_class
from server.delivery import ClientGoneError, ClientSocket, SlowClientError, connection_of, run_while_connected

RESET = struct.pack("ii", 1, 0)
REQUEST = b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
HEADERS = {"content-type": "text/event-stream"}
COMMENT = b": still here\n\n"
"""A chunk without a token."""
SMALL = 4_096
"""A receive buffer that is soon full."""
SECONDS = 5.0
"""After which a test has failed."""


class ServedAnswer:
    """One answer after the other, each as `answer` gives it; what became of each is kept."""

    def __init__(self, answer: Callable[[ClientSocket], Awaitable[None]], slow_client_timeout: float = 60) -> None:
        self._answer = answer
        self._timeout = slow_client_timeout
        self.sockets: list[ClientSocket] = []
        self.connections: list[Connection] = []
        self.ends: list[str] = []
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As the server's answers do: the request's body, then the answer, as long as the client stays."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.ends.append("no request")
                return
            more = message["more_body"]
        client = ClientSocket(send, self._timeout, connection_of(scope))
        self.sockets.append(client)
        self.began.set()
        try:
            stayed = await run_while_connected(self._work(client), receive) and await client.arrived()
            self.ends.append("stayed" if stayed else "slow" if client.cut else "left")
        except ClientGoneError:
            self.ends.append("left")
        except SlowClientError:
            self.ends.append("slow")
        self.ended.set()

    async def _work(self, client: ClientSocket) -> None:
        await self._answer(client)

    @asynccontextmanager
    async def serving(self, app: Any = None) -> AsyncIterator[Client]:
        """Yields a client that is not connected yet; both ends are closed afterwards. `app`: serves that instead."""
        config, state = Config(app or self, http=Connection, ws="none", log_config=None), ServerState()
        config.load()

        def accepted() -> Connection:
            self.connections.append(connection_class(self._timeout)(config, state, {}))
            return self.connections[-1]

        server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", 0)
        async with server:
            client = Client(server.sockets[0].getsockname())
            try:
                yield client
            finally:
                client.close()
                await eventually(lambda: not (state.connections or state.tasks))


class Client:
    """A raw socket. `received` is every byte that was read."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.received = bytearray()

    async def connect(self, request: bytes = REQUEST, receive_buffer: int = 0) -> None:
        """Connects and sends the request, whole or not."""
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, self._address)
        await loop.sock_sendall(self.socket, request)

    async def read(self, most: int = 65_536) -> bytes:
        """What there is, or b"" at the end; a reset is one."""
        try:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.socket, most), SECONDS)
        except ConnectionResetError:
            return b""
        self.received += data
        return data

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def read_until(self, mark: bytes) -> None:
        while mark not in self.received:
            assert await self.read(), self.received

    async def read_all(self) -> bytes:
        while await self.read():
            pass
        return bytes(self.received)

    @property
    def arrived(self) -> int:
        """Bytes that the kernel has for us or that we read."""
        unread = fcntl.ioctl(self.socket.fileno(), termios.FIONREAD, b"\0" * 4)
        return len(self.received) + int.from_bytes(unread, sys.byteorder)

    def peek(self) -> bytes:
        """Every byte that arrived, read or not; none of them is taken."""
        unread = self.arrived - len(self.received)
        return bytes(self.received) + (self.socket.recv(unread, socket.MSG_PEEK) if unread else b"")

    def drain(self) -> None:
        """Reads what arrived."""
        if unread := self.arrived - len(self.received):
            self.received += self.socket.recv(unread)

    def send_no_more(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def vanish(self) -> None:
        """From now on nothing reaches it and it says nothing, as if its cable was cut: a socket filter takes no packet.

        It must send nothing itself then; `close` would.
        """
        take_nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K: 0 bytes
        program = struct.pack("HP", 1, ctypes.addressof(take_nothing))
        attach_filter = 26  # SO_ATTACH_FILTER of socket(7), which Python does not name
        self.socket.setsockopt(socket.SOL_SOCKET, attach_filter, program)


async def eventually(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Gives the loop its turns until it is so."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a kernel's figures are asked for: no event tells of them
            await asyncio.sleep(0.001)


def frame(index: int) -> bytes:
    """One event, whose number and size tell it from others."""
    return b"frame %d %b\n\n" % (index, b"x" * (index * 37 % 400))


def frames_in(received: bytes, size: int = 1) -> int:
    """Tokens, one a frame, of the chunks that are whole with their end, in a stream in which a frame is a chunk."""
    body = bytes(received).partition(b"\r\n\r\n")[2]
    return (body.count(b"\n\n\r\n") - body.count(COMMENT + b"\r\n")) * size


async def forever(client: ClientSocket) -> None:
    """Frames of one token each, as fast as they are taken."""
    await client.start(200, HEADERS)
    for index in itertools.count():
        await client.write(frame(index), tokens=1)
        await asyncio.sleep(0)


def paced(frames: int) -> Callable[[ClientSocket], Awaitable[None]]:
    """So many frames, and then nothing more for ever."""

    async def answer(client: ClientSocket) -> None:
        await client.start(200, HEADERS)
        for index in range(frames):
            await client.write(frame(index), tokens=1)
            await client.write(COMMENT)
        await asyncio.Event().wait()

    return answer


def settled(client: Client, served: ServedAnswer) -> Callable[[], bool]:
    """Whether all that the client's kernel took is acknowledged and no more comes, seen at two moments apart."""
    seen: list[tuple[int, int | None]] = []

    def is_settled() -> bool:
        (connection,) = served.connections
        seen.append((client.arrived, connection.acknowledged_bytes))
        return len(seen) > 60 and len(set(seen[-60:])) == 1 and seen[-1][0] == seen[-1][1]

    return is_settled
