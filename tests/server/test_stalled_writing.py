"""The watch over a client that lets a connection wait: its time begins anew with everything that it takes."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from server.stalled_writing import LOOKS_PER_TIMEOUT, StalledWriting

TIMEOUT = 0.04


@pytest.mark.parametrize("looks", [0, 1, 20, 60])
async def test_as_long_as_a_client_moves(looks: int) -> None:
    """It is waited for as long as something is taken within each timeout; then one more, and it is told once."""
    taken = itertools.chain(range(looks), itertools.repeat(looks))
    stalled = asyncio.Event()
    watch = StalledWriting(lambda: next(taken), stalled.set)
    since = asyncio.get_running_loop().time()
    watch.begin(TIMEOUT)
    watch.begin(TIMEOUT)
    await asyncio.wait_for(stalled.wait(), 10)
    waited = asyncio.get_running_loop().time() - since
    assert waited >= TIMEOUT + max(0, looks - 1) * TIMEOUT / LOOKS_PER_TIMEOUT


async def test_who_is_not_waited_for_has_no_time_to_keep() -> None:
    """After the end nothing is told, and a new beginning starts the time anew."""
    stalled = asyncio.Event()
    watch = StalledWriting(lambda: 0, stalled.set)
    watch.end()
    watch.begin(TIMEOUT)
    watch.end()
    watch.end()
    other = asyncio.Event()
    asyncio.get_running_loop().call_later(3 * TIMEOUT, other.set)
    await other.wait()
    assert not stalled.is_set()
    watch.begin(TIMEOUT)
    await asyncio.wait_for(stalled.wait(), 10)


async def test_a_connection_that_does_not_tell() -> None:
    """Without a figure of what is taken, the whole wait is bounded."""
    stalled = asyncio.Event()
    StalledWriting(lambda: None, stalled.set).begin(TIMEOUT)
    await asyncio.wait_for(stalled.wait(), 10)
