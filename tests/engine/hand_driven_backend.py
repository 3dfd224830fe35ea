"""A backend that does what a test tells it, step by step: late words, late confirmations, failing starts, hangs.

Never acts by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from engine.core import DEFAULT_SUPERVISION, EngineCore
from engine.detokenizer import Vocabulary
from engine.errors import EngineUnavailableError
from engine.supervisor import SupervisionConfig
from engine.types import EngineRequest, EngineStats, FinishReason, SequenceOutput, StepOutputs
from tests.engine.engines import LIMITS


class HandDrivenBackend:
    """See `engine.backends.base.Backend`."""

    name = "hand-driven"
    limits = LIMITS

    def __init__(self) -> None:
        self.held: set[str] = set()
        """What `request_ids` says."""
        self.aborted: list[str] = []
        """Every id that was aborted, in order."""
        self.starts: list[float] = []
        """When each start was tried, on the loop's clock."""
        self.closes = 0
        self.failing_starts = 0
        """How many of the next starts fail."""
        self.hangs_on_close = False
        self._words: asyncio.Queue[StepOutputs | Exception] = asyncio.Queue()

    async def say(self, *words: StepOutputs | Exception) -> None:
        """The next steps, or the engine's death; returns when the core has taken them."""
        for word in words:
            self._words.put_nowait(word)
        await self._words.join()

    async def generate(self, request_id: str, tokens: int = 1, finish: FinishReason | None = None) -> None:
        """One step in which this sequence got some tokens."""
        await self.say(StepOutputs([SequenceOutput(request_id, [905] * tokens, finish)]))

    async def free(self, *request_ids: str) -> None:
        """Confirms aborts."""
        self.held.difference_update(request_ids)
        await self.say(StepOutputs([], freed=list(request_ids)))

    async def start(self) -> None:
        self.starts.append(asyncio.get_running_loop().time())
        if self.failing_starts:
            self.failing_starts -= 1
            raise EngineUnavailableError("no start")

    def check(self, request: EngineRequest) -> None:
        """Everything is fine."""

    def submit(self, request: EngineRequest) -> None:
        self.held.add(request.request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted += request_ids

    async def next_step(self) -> StepOutputs:
        word = await self._words.get()
        self._words.task_done()
        if isinstance(word, Exception):
            raise word
        return word

    def request_ids(self) -> set[str]:
        return self.held

    def stats(self) -> EngineStats:
        return EngineStats(len(self.held), 0, 0, 0)

    async def close(self) -> None:
        self.closes += 1
        self.held.clear()
        if self.hangs_on_close:
            await asyncio.Event().wait()


@asynccontextmanager
async def hand_driven(
    vocabulary: Vocabulary, supervision: SupervisionConfig = DEFAULT_SUPERVISION
) -> AsyncIterator[tuple[EngineCore, HandDrivenBackend]]:
    """A started core over such a backend, closed at the end."""
    backend = HandDrivenBackend()
    core = EngineCore(backend, vocabulary, supervision)
    await core.start()
    try:
        yield core, backend
    finally:
        await core.close()
