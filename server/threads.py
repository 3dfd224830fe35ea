"""Work that takes long goes to a thread, so that no stream waits for it; short work stays, since a thread costs more.

Never anything that touches the engine's or a connection's state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

Result = TypeVar("Result")


async def off_the_loop(large: bool, call: Callable[[], Result], pool: Executor | None = None) -> Result:
    """The result of a call that is pure and, where `large`, long. `pool`: its threads, if not those for all."""
    return await asyncio.get_running_loop().run_in_executor(pool, call) if large else call()
