"""What an operator may ask of vLLM's engine: adapters in and out, sleep and wake. Outlives the engines it speaks to.

Never imports vLLM, never a request's business, and never waits for an engine that has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from engine.backends.vllm.adapters import Adapter, Adapters
from engine.backends.vllm.ledger import SequenceLedger
from engine.errors import EngineControlError, EngineUnavailableError, ModelLoadError

if TYPE_CHECKING:
    from engine.backends.vllm.launch import LaunchedEngine

logger = logging.getLogger(__name__)
ANSWER_SECONDS = 300.0
"""Longest that a call may take: weights are read from disk, or moved out of a GPU and back."""
LONGEST_MESSAGE = 500
"""Characters of vLLM's own words that go into an error; the log of its process has the rest."""
WEIGHTS_KEPT = 1
"""The deepest sleep after which no weights have to be read again."""


class VllmControls:
    """See `engine.backends.base.EngineControls`."""

    def __init__(self, adapters: Adapters, configured: Mapping[str, str], ledger: SequenceLedger) -> None:
        """`configured`: folders of the adapters that are there from the beginning, by name."""
        self.sleep_level = 0
        self.most_adapters = 0
        self._adapters = adapters
        self._configured = configured
        self._ledger = ledger
        self._engine: LaunchedEngine | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._turn = asyncio.Lock()
        """One adapter comes or goes at a time."""

    async def begin(self, engine: LaunchedEngine) -> None:
        """A fresh engine gets the adapters. `ModelLoadError` where one of the config's can't be loaded the first time.

        On later starts an adapter that can't be loaded any more is given up, so that the others are served again.
        """
        self._engine, self.most_adapters = engine, engine.most_adapters
        for name, folder in {**self._configured, **self._adapters.folders()}.items():
            try:
                await self.load_adapter(name, folder)
            except EngineControlError as error:
                if name in self._configured:
                    raise ModelLoadError(f"engine.lora_modules.{name}: {error}") from error
                logger.error("the adapter %s is given up: %s", name, error)  # noqa: TRY400 - the engine logged the trace
                self._adapters.drop(name)
        self._configured = {}

    def end(self) -> None:
        """There is no engine any more: whoever waits for its word hears that."""
        self._engine, self.sleep_level = None, 0
        for call in self._calls:
            call.cancel()

    def adapters(self) -> Mapping[str, str]:
        return self._adapters.folders()

    def adapters_in_use(self) -> tuple[set[str], set[str]]:
        return self._ledger.adapters()

    async def load_adapter(self, name: str, folder: str) -> None:
        """In place of another of that name, if there is one. `EngineControlError` with vLLM's word on what is wrong."""
        async with self._turn:
            adapter = self._adapters.numbered(name, folder)
            await self._call(lambda engine: engine.load_adapter(adapter))
            await self._let_go(self._adapters.put(adapter))

    async def unload_adapter(self, name: str) -> None:
        async with self._turn:
            await self._let_go(self._adapters.drop(name))

    async def sleep(self, level: int) -> None:
        if self._engine is not None and not self._engine.can_sleep:
            raise EngineControlError("this engine can't sleep: set engine.vllm.enable_sleep_mode to true")
        await self._call(lambda engine: engine.client.sleep_async(level))
        self.sleep_level = level

    async def wake_up(self) -> None:
        """Weights that are gone are read again before the cache has its memory back."""
        if self.sleep_level > WEIGHTS_KEPT:
            await self._call(lambda engine: engine.client.wake_up_async(["weights"]))
            await self._call(lambda engine: engine.client.collective_rpc_async("reload_weights"))
            await self._call(lambda engine: engine.client.wake_up_async(["kv_cache"]))
        else:
            await self._call(lambda engine: engine.client.wake_up_async(None))
        self.sleep_level = 0

    async def _let_go(self, adapter: Adapter | None) -> None:
        """Frees its weights; while sequences use it, they stay until vLLM needs the room."""
        if adapter is not None and not any(adapter.name in names for names in self._ledger.adapters()):
            await self._call(lambda engine: engine.client.remove_lora_async(adapter.number))

    async def _call(self, question: Callable[[LaunchedEngine], Coroutine[Any, Any, Any]]) -> None:
        """Asks the engine and waits for its word, or for its end."""
        if self._engine is None:
            raise EngineUnavailableError("the vLLM engine is not up")
        asked = asyncio.ensure_future(question(self._engine))
        self._calls.add(asked)
        try:
            await asyncio.wait({asked}, timeout=ANSWER_SECONDS)
            if not asked.done() or asked.cancelled():
                raise EngineUnavailableError("the vLLM engine ended, or gave no answer")
            if (error := asked.exception()) is not None:
                raise EngineControlError(f"vLLM: {error}"[:LONGEST_MESSAGE]) from error
        finally:
            self._calls.discard(asked)
            asked.cancel()
