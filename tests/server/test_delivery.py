"""Delivery on hand-made `receive` and `send`: bodies and waits within their bounds, and no task left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.client_connection import ClientConnection
from server.delivery import (
    CONNECTION,
    BodyLimits,
    ClientGoneError,
    ClientSocket,
    RequestIdentity,
    client_request_id,
    connection_of,
    read_body,
    run_while_connected,
)
from server.wire.errors import WireError

Message = dict[str, Any]
GONE: Message = {"type": "http.disconnect"}


def receiving(*messages: Message) -> Callable[[], Awaitable[Message]]:
    """A connection that says these things, and then nothing any more."""
    rest = list(messages)

    async def receive() -> Message:
        if not rest:
            await asyncio.Event().wait()
        return rest.pop(0)

    return receive


def body(data: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


@contextmanager
def no_task_left() -> Iterator[None]:
    """Whatever was begun within has ended with it."""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() == before


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=6))
def test_a_body_is_its_parts(parts: list[bytes]) -> None:
    """However a body is cut, it is read whole."""
    messages = [body(part, more=True) for part in parts[:-1]] + [body(parts[-1])]
    assert asyncio.run(read_body(receiving(*messages), {}, BodyLimits(100))) == b"".join(parts)


async def test_a_body_at_its_limit() -> None:
    """The limit is the last size that is taken."""
    assert await read_body(receiving(body(b"12345")), {"content-length": "5"}, BodyLimits(5)) == b"12345"
    with pytest.raises(WireError) as raised:
        await read_body(receiving(body(b"123456")), {}, BodyLimits(5))
    assert raised.value.status == 413


async def test_a_declared_length_is_refused_unread() -> None:
    """Nothing is read of a body that says it is too large."""
    with pytest.raises(WireError) as raised:
        await asyncio.wait_for(read_body(receiving(), {"content-length": "6"}, BodyLimits(5)), 1)
    assert raised.value.status == 413


async def test_a_body_is_refused_when_it_is_known_to_be_too_large() -> None:
    """Not only at its end: the rest is not waited for."""
    with pytest.raises(WireError):
        await asyncio.wait_for(read_body(receiving(body(b"123", True), body(b"456", True)), {}, BodyLimits(5)), 1)


async def test_a_cut_body() -> None:
    """A client that leaves before its request was whole has left."""
    with pytest.raises(ClientGoneError):
        await read_body(receiving(body(b"{", True), GONE), {}, BodyLimits(5))


async def test_a_body_that_does_not_come() -> None:
    """A body has its time as a whole, however much of it came: then it is a 408."""
    with pytest.raises(WireError) as raised:
        await read_body(receiving(body(b"{", True)), {}, BodyLimits(5, seconds=0.01))
    assert (raised.value.status, raised.value.code) == (408, "request_timeout")


async def test_work_that_ends() -> None:
    """Work that the client waited for has ended by itself."""
    done: list[int] = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(1)

    with no_task_left():
        assert await run_while_connected(work(), receiving(body(b"late")))
    assert done == [1]


async def test_work_whose_client_leaves() -> None:
    """It is cancelled, and its own cleaning up is over when the call returns."""
    cleaned: list[int] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(1)

    with no_task_left():
        assert not await run_while_connected(work(), receiving(body(b""), GONE))
    assert cleaned == [1]


async def test_a_client_that_leaves_while_its_socket_is_full() -> None:
    """A write that waits for the client ends with it, long before the slow client's time."""
    leave = asyncio.Event()

    async def send(_: Message) -> None:
        leave.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        await leave.wait()
        return GONE

    socket = ClientSocket(send, 60)  # type: ignore[arg-type]  # a plain dict is a message
    with no_task_left():
        assert not await asyncio.wait_for(run_while_connected(socket.write(b"x"), receive), 1)
    assert socket.bytes_written == 0


async def test_an_error_of_the_work() -> None:
    """It comes out as it is."""

    async def work() -> None:
        raise LookupError("mine")

    with no_task_left(), pytest.raises(LookupError, match="mine"):
        await run_while_connected(work(), receiving())


async def test_work_that_is_cancelled_from_outside() -> None:
    """Cancelling the call cancels the work and the watcher."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with no_task_left():
        call = asyncio.create_task(run_while_connected(work(), receiving()))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert ended.is_set()


def test_the_connection_of_a_request() -> None:
    """It is the server's, where the server tells; else one that is never lost and may be cut."""
    connection = ClientConnection()
    assert connection_of({"extensions": {CONNECTION: connection}}) is connection
    scopes: list[Message] = [{}, {"extensions": {}}]
    for scope in scopes:
        unknown = connection_of(scope)
        unknown.abort()
        assert not unknown.lost


async def test_every_answer_is_stamped() -> None:
    """Whatever the application sends has the request's id, under both names; other scopes pass untouched."""
    sent: list[Message] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http"}
    await RequestIdentity(app)(scope, receiving(), send)
    request_id = scope["state"]["request_id"].encode()
    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", request_id), (b"request-id", request_id)]
    lifespan: dict[str, Any] = {"type": "lifespan"}
    await RequestIdentity(app)(lifespan, receiving(), send)
    assert lifespan == {"type": "lifespan"}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("mine-1", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ("é", False),
        ("a\n", False),
    ],
)
def test_a_clients_own_id(value: str, kept: bool) -> None:
    """It is logged when it is short and printable, else forgotten."""
    assert client_request_id({"x-request-id": value}) == (value if kept else None)
