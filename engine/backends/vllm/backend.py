"""The backend on the event loop's side: hands sequences to vLLM's engine process and its steps to the core.

Never text, and never the model's work: that is in the engine's own processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.backends.mailbox import StepMailbox
from engine.backends.model_folder import read_limits
from engine.backends.request_checks import check_request
from engine.backends.unsupported import refuse_unsupported
from engine.backends.vllm.adapters import Adapters
from engine.backends.vllm.controls import VllmControls
from engine.backends.vllm.counts import EngineCounts
from engine.backends.vllm.environment import prepare_import
from engine.backends.vllm.ledger import SequenceLedger
from engine.backends.vllm.outbox import Outbox
from engine.backends.vllm.version import require_tested_vllm
from engine.config import EngineConfig
from engine.errors import EngineUnavailableError, ModelLoadError
from engine.types import EngineRequest, EngineStats, Grammar, StepOutputs

if TYPE_CHECKING:
    from engine.backends.vllm.launch import LaunchedEngine
    from engine.backends.vllm.requests import RequestLowering

logger = logging.getLogger(__name__)
NOT_UP = "the vLLM engine is not up"
CLOSE_SECONDS = 30.0
"""Longest that `close` waits for the engine's processes; each way of theirs to end is bounded by less."""


class VllmBackend:
    """vLLM's engine core behind the backend protocol (`engine.backends.base.Backend`).

    Token ids in and out; log probabilities are vLLM's raw ones: natural logarithms of the model's own distribution.
    """

    name = "vllm"

    def __init__(self, config: EngineConfig, model_folder: Path) -> None:
        """Checks the settings, which imports vLLM (seconds). `ModelLoadError` or `ConfigError` for what is no use."""
        require_tested_vllm()
        prepare_import()
        try:
            from engine.backends.vllm.arguments import engine_arguments
            from engine.backends.vllm.launch import engine_config
        except ImportError as error:
            raise ModelLoadError(f"the vllm engine can't be imported: {error}") from error
        self._arguments = engine_arguments(config, model_folder)
        checked = engine_config(self._arguments)  # for its refusals: each start makes its own, which the engine changes
        self.limits = read_limits(config, model_folder)
        self._engine: LaunchedEngine | None = None
        self._lowering: RequestLowering | None = None
        self._outbox: Outbox | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._launching: asyncio.Future[LaunchedEngine] | None = None
        self._ledger = SequenceLedger()
        self._adapters = Adapters(0 if checked.lora_config is None else int(checked.lora_config.max_cpu_loras))
        self.controls = VllmControls(self._adapters, config.lora_modules, self._ledger)
        self._counts = EngineCounts()
        self._mailbox = StepMailbox(NOT_UP)

    async def start(self) -> None:
        """Loads the model in vLLM's own processes. `ModelLoadError`, `ConfigError`."""
        from engine.backends.vllm.launch import launch

        launching = self._launching = asyncio.ensure_future(asyncio.to_thread(launch, self._arguments))
        try:
            engine = await asyncio.shield(launching)
        except BaseException:
            await self._cancel_launch()
            raise
        if self._launching is not launching:  # `close` took it while it was loading
            return
        self._launching, self._engine = None, engine
        try:
            await self.controls.begin(engine)
        except BaseException:
            await self.close()
            raise
        if self._engine is engine:  # and not closed meanwhile
            self._begin(engine)

    def check(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError` for what does not fit and what vLLM would refuse, by our fields' names."""
        refuse_unsupported(request, self.name)
        check_request(request, self.limits, None)
        if self._lowering is not None:
            self._lowering.lower(request, request.request_id)

    def accept(self, grammar: Grammar) -> None:
        """Has vLLM check a compiled grammar. `StructureError`. Blocks: for the thread that compiles."""
        if self._lowering is not None:
            self._lowering.accept(grammar)

    def submit(self, request: EngineRequest) -> None:
        """Queues a sequence for the engine process."""
        if self._mailbox.ended is not None or self._lowering is None or self._outbox is None:
            raise EngineUnavailableError(self._mailbox.ended or NOT_UP)
        key = self._ledger.add(request)
        try:
            lowered = self._lowering.lower(request, key)
        except BaseException:
            self._ledger.fail(key, "refused")
            raise
        self._outbox.add(lowered)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Tells the engine process, after whatever it was sent before."""
        keys = self._ledger.abort(request_ids)
        if keys and self._outbox is not None:
            self._outbox.abort(keys)

    async def next_step(self) -> StepOutputs:
        """The next engine step's outputs; after the engine's end `EngineUnavailableError`, again and again."""
        return await self._mailbox.next()

    def request_ids(self) -> set[str]:
        """What was handed to the engine and of which its word that it is gone did not come yet."""
        return self._ledger.request_ids()

    def stats(self) -> EngineStats:
        """The scheduler's counts as of its latest step; while there is no engine, zero, but for the totals."""
        return self._counts.stats(len(self._ledger), self._ledger.preemptions)

    async def close(self) -> None:
        """Ends the engine's processes; what was live ends with ERROR outputs. Processes that hang are killed."""
        engine, self._engine = self._engine, None
        self._end("the engine was stopped")
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cancel_launch()
        if engine is not None:
            await _shut_down(engine)

    def _begin(self, engine: LaunchedEngine) -> None:
        self.limits = replace(self.limits, context_length=engine.context_length)
        self._lowering = engine.lowering(self.limits.eos_token_ids, self._adapters)
        self._outbox = Outbox(engine.client, self._lost)
        self._counts.begin(engine.kv_blocks, engine.engines, engine.block_size)
        self._mailbox.open()
        self._tasks = [
            asyncio.create_task(self._until_dead(engine, self._outbox.run()), name="vllm outbox"),
            asyncio.create_task(self._until_dead(engine, self._receive(engine)), name="vllm inbox"),
        ]
        logger.info("vLLM: %d KV blocks of %d tokens", engine.kv_blocks, engine.block_size)

    async def _receive(self, engine: LaunchedEngine) -> None:
        while True:
            message = await engine.client.get_output_async()
            if message.scheduler_stats is not None:
                self._counts.take(message.engine_index, message.scheduler_stats)
            self._mailbox.put(self._ledger.take(message))

    async def _until_dead(self, engine: LaunchedEngine, work: Coroutine[Any, Any, None]) -> None:
        """Runs one direction's traffic; its failure is the engine's end."""
        try:
            await work
        except Exception as error:
            if engine.is_dead:
                self._end(engine.why_dead())
            else:
                logger.exception("the vLLM engine can't be talked to")
                self._end(f"the vLLM engine can't be talked to: {error}")

    async def _cancel_launch(self) -> None:
        """Ends an engine that is loading, or has loaded and was not taken, and waits until it is gone."""
        launching, self._launching = self._launching, None
        if launching is None:
            return
        from engine.backends.vllm.processes import kill_engine_processes

        while not launching.done():  # it may be about to start a process still
            await asyncio.to_thread(kill_engine_processes)
            await asyncio.wait({launching}, timeout=1)
        if launching.exception() is None:
            await _shut_down(launching.result())

    def _lost(self, key: str, error: Exception) -> None:
        self._mailbox.put(self._ledger.fail(key, f"the sequence could not be sent to the engine: {error}"))

    def _end(self, reason: str) -> None:
        """Ends what the engine left without an end, and lets `next_step` say why."""
        self._outbox = None
        self.controls.end()
        self._counts.end()
        ended = self._ledger.end_all(self._mailbox.end(reason))
        if ended.outputs:
            self._mailbox.put(ended)


async def _shut_down(engine: LaunchedEngine) -> None:
    """In bounded time, also if a process hangs in a way that nobody thought of."""
    ending = asyncio.ensure_future(asyncio.to_thread(engine.shut_down))
    await asyncio.wait({ending}, timeout=CLOSE_SECONDS)
