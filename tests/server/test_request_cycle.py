"""The short way for a stream's frames makes, on the wire, exactly what uvicorn's own way makes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from server.request_cycle import chunk_written

PARTS = [b"a", b"data: {}\n\n", b"\r\n", b"x" * 4_095, b"x" * 70_000]


class Wire:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data


async def begun(wire: Wire, method: str = "POST", headers: list[tuple[bytes, bytes]] | None = None) -> Any:
    """A cycle whose answer's head is out, and off the wire."""
    cycle = RequestResponseCycle(
        scope={"type": "http", "method": method},  # type: ignore[typeddict-item]  # what it reads of it
        transport=wire,  # type: ignore[arg-type]
        flow=FlowControl(wire),  # type: ignore[arg-type]
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    await cycle.send({"type": "http.response.start", "status": 200, "headers": headers or []})
    wire.written.clear()
    return cycle


async def test_parts_are_the_same_bytes() -> None:
    """Of any size, on either way, and the end after either."""
    wires = Wire(), Wire()
    plain, short = [await begun(wire) for wire in wires]
    for part in PARTS:
        await plain.send({"type": "http.response.body", "body": part, "more_body": True})
        assert chunk_written(short, part)
    for cycle in (plain, short):
        await cycle.send({"type": "http.response.body", "body": b"end", "more_body": False})
    assert wires[0].written == wires[1].written


async def test_other_cases_are_left_to_messages() -> None:
    """No part, no answer, an answer that is over or has no reader, and bodies that are not in chunks."""
    wire = Wire()
    over, unread = await begun(wire), await begun(wire)
    await over.send({"type": "http.response.body", "body": b"", "more_body": False})
    unread.disconnected = True
    sized = await begun(wire, headers=[(b"content-length", b"1")])
    head = await begun(wire, method="HEAD")
    wire.written.clear()
    for cycle in (None, over, unread, sized, head):
        assert not chunk_written(cycle, b"a")
    assert not chunk_written(await begun(wire), b"")
    assert not wire.written


@pytest.mark.parametrize("chunked", [None, False])
async def test_a_head_that_is_not_out_yet(chunked: bool | None) -> None:
    """Nothing of a body goes before it."""
    wire = Wire()
    cycle = await begun(wire)
    cycle.chunked_encoding = chunked
    assert not chunk_written(cycle, b"a")
    assert not wire.written
