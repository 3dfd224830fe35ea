"""A client that sends no more: whether it left or still reads, and who is to find out.

Never a byte of its own: an answer probes such a client by writing to it, and its kernel's answer is waited for here.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable


class HalfClose:
    """The end of what one connection's client sends, and what the answer that runs makes of it.

    It may come long before the answer has begun, together with the request. So it waits until the answer has said that
    it wants to hear of it (`callback`), or asks what else comes and has not: then its client has left.
    """

    def __init__(self, left: Callable[[], None]) -> None:
        self.came = False
        self._left = left
        self._callback: Callable[[], None] | None = None
        self._asked = False
        self._told = False

    def begin_answer(self) -> None:
        """Nothing is known yet of what the next answer wants."""
        self._callback = None
        self._asked = self._told = False

    @property
    def callback(self) -> Callable[[], None] | None:
        return self._callback

    @callback.setter
    def callback(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback
        if callback is not None:
            self._consider()

    def ask(self) -> None:
        """The answer has its request whole and waits for its client to leave."""
        self._asked = True
        self._consider()

    def come(self) -> None:
        self.came = True
        self._consider()

    def _consider(self) -> None:
        if not self.came or self._told:
            return
        if self._callback is not None:
            self._told = True
            asyncio.get_running_loop().call_soon(self._callback)
        elif self._asked:
            self._told = True
            self._left()


class ResetWatch:
    """Calls back once, with the `errno`, when the kernel has an error for a connection that has been read to its end.

    An event loop stops watching a socket after its end of file, which would make it readable for ever. A poll set of
    its own that asks for no event still reports errors (`epoll_ctl(2)`: EPOLLERR, EPOLLHUP), and can itself be watched.
    """

    def __init__(self, connection: socket.socket, callback: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._callback = callback
        self._errors = select.epoll()
        self._errors.register(connection.fileno(), 0)
        self._loop.add_reader(self._errors.fileno(), self._fire)

    def _fire(self) -> None:
        self.close()
        self._callback(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def close(self) -> None:
        """Idempotent."""
        if not self._errors.closed:
            self._loop.remove_reader(self._errors.fileno())
            self._errors.close()
