"""The structures that requests ask for become grammars here, before the headers and beside the event loop.

Never in the threads that all requests share: a burst of slow structures delays other structures and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from engine.errors import EngineOverloadedError
from engine.grammar.shared import SharedCompiler
from engine.types import EngineRequest, Grammar, Structure
from server.threads import off_the_loop

WAIT_SECONDS = 20.0
"""For one structure, with all that came before it; compiling it may take two."""
RETRY_SECONDS = 5.0


class Grammars:
    """Compiles one structure at a time, in the order in which they came; one whose client left is not begun."""

    def __init__(self, compiler: SharedCompiler) -> None:
        self._compiler = compiler
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def compiled(self, requests: Sequence[EngineRequest]) -> Sequence[EngineRequest]:
        """The requests, which are of one client's and share their grammar, with what a backend can follow.

        `InvalidRequestError` naming the client's field for what can't be compiled; `EngineOverloadedError`.
        """
        asked = requests[0].grammar
        if asked is None:
            return requests
        grammar = self._compiler.remembered(asked.structure) or await self._compile(asked.structure)
        return [replace(request, grammar=grammar) for request in requests]

    async def close(self) -> None:
        """Nothing is compiled any more, and what compiled it has ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._compiler.close)

    async def _compile(self, structure: Structure) -> Grammar:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await off_the_loop(True, partial(self._compiler.compile, structure), self._pool)
        except TimeoutError:
            message = "too many structures are waiting to be compiled"
            raise EngineOverloadedError(message, retry_after=RETRY_SECONDS) from None
