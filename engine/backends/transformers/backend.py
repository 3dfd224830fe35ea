"""The backend on the event loop's side: hands sequences to the engine's thread and its steps to the core.

Never computes anything itself, and never waits for the engine's thread on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends.mailbox import StepMailbox
from engine.backends.model_folder import read_limits
from engine.backends.request_checks import check_request
from engine.backends.transformers.checks import require_tested_transformers
from engine.backends.transformers.run import EngineRun, SchedulerTotals, StepNews
from engine.backends.unsupported import refuse_unsupported
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineUnavailableError, ModelLoadError
from engine.types import EngineRequest, EngineStats, FinishReason, SequenceOutput, StepOutputs

if TYPE_CHECKING:
    from engine.backends.transformers.continuous import Manager
    from engine.backends.transformers.sequence import Sequence

SMALLEST_BLOCK = 4
"""Tokens: continuous batching takes no smaller blocks."""
CLOSE_TIMEOUT = 30.0
"""Seconds that `close` waits for the step that is running; a thread that hangs for longer is left behind."""


class TransformersBackend:
    """Hugging Face transformers' continuous batching, on a CPU or one GPU.

    torch and transformers are imported by `start`, not before. Logprobs are natural logarithms of the model's
    own distribution, before temperature, bias and penalties.
    """

    name = "transformers"

    def __init__(self, config: EngineConfig, model_folder: Path) -> None:
        """Reads the folder's small files. `ModelLoadError` or `ConfigError` where they or the settings are no use."""
        require_tested_transformers()
        if config.block_size < SMALLEST_BLOCK:
            raise ConfigError(f"engine.block_size must be at least {SMALLEST_BLOCK} with this engine")
        self.limits = read_limits(config, model_folder)
        self._config = config
        self._folder = model_folder
        self._manager: Manager | None = None
        self._run: EngineRun | None = None
        self._totals = SchedulerTotals()
        self._live: dict[str, tuple[str, Sequence]] = {}
        self._cancelled: dict[str, str] = {}
        """The request id of each key that was cancelled and not freed yet."""
        self._mailbox = StepMailbox()

    async def start(self) -> None:
        """Loads the model and starts the engine's thread. `ModelLoadError`."""
        run = self._run = EngineRun(self._take, self._end)
        self._mailbox.open()
        manager = await asyncio.to_thread(self._load, run)
        if self._run is not run:  # closed while loading
            await asyncio.to_thread(manager.shut_down, CLOSE_TIMEOUT)
            return
        self._manager = manager
        room = manager.count().kv_blocks_total * self._config.block_size
        self.limits = replace(self.limits, context_length=min(self.limits.context_length, room))
        manager.start()

    def check(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError` for what this model and its KV cache can't do."""
        refuse_unsupported(request, self.name)
        tokens = self.stats().kv_blocks_total * self._config.block_size if self._manager else None
        check_request(request, self.limits, tokens)

    def submit(self, request: EngineRequest) -> None:
        """Queues a sequence for the engine's thread."""
        manager = self._manager
        if manager is None or self._mailbox.ended is not None or not manager.accepting:
            raise EngineUnavailableError(self._mailbox.ended or "the engine is not up")
        self._live[request.request_id] = manager.submit(request, self.limits.eos_token_ids)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Cancels sequences; the engine's thread sees it before its next step, at once when it is idle."""
        for request_id in request_ids:
            key, _ = self._live.pop(request_id, (None, None))
            if key is not None:
                self._cancelled[key] = request_id
                keys = [key]
            else:  # perhaps told again: no word of its end came
                keys = [key for key, cancelled in self._cancelled.items() if cancelled == request_id]
            for key in keys:
                self._cancel(key)

    async def next_step(self) -> StepOutputs:
        """The next engine step's outputs; after the engine's end `EngineUnavailableError`, again and again."""
        return await self._mailbox.next()

    def stats(self) -> EngineStats:
        """The scheduler's own counts and the block pool's; while there is no engine, zero, but for the totals."""
        stats = EngineStats(0, 0, 0, 0) if self._manager is None else self._manager.count()
        return replace(
            stats,
            block_size=self._config.block_size if self._manager is not None else 0,
            preemptions_total=self._totals.preemptions,
            prefix_cache_queries_total=self._totals.prefix_cache_queries,
            prefix_cache_hits_total=self._totals.prefix_cache_hits,
        )

    def request_ids(self) -> set[str]:
        """What the scheduler and its queue hold."""
        return set() if self._manager is None else self._manager.request_ids()

    async def close(self) -> None:
        """Stops the engine after the step that is running; what was live ends with ERROR outputs.

        A step that takes longer than `CLOSE_TIMEOUT` is not waited for: its thread is left behind, with the model in
        its memory until it returns.
        """
        manager, self._manager = self._manager, None
        if manager is not None:
            await asyncio.to_thread(manager.shut_down, CLOSE_TIMEOUT)
        if self._run is not None:
            self._run.over = True
            self._run = None
        self._end("the engine was stopped")

    def _cancel(self, key: str) -> None:
        if self._manager is not None:
            self._manager.cancel_request(key)

    def _load(self, run: EngineRun) -> Manager:
        """Imports torch and loads the model; takes seconds, so never on the loop's thread."""
        try:
            from engine.backends.transformers.loading import load_manager
        except ImportError as error:
            raise ModelLoadError(f"the transformers engine needs `pip install 'tailrace[cpu]'`: {error}") from error
        return load_manager(self._config, self._folder, self.limits.context_length, run, self._totals)

    def _take(self, news: StepNews) -> None:
        """Queues what the engine's thread says for `next_step`, and forgets the sequences that are over."""
        outputs = []
        for sequence, output in news.outputs:
            _, live = self._live.get(output.request_id, (None, sequence))
            if live is not sequence:
                continue  # a late word of an aborted sequence whose id is in use again
            if output.finish_reason is not None:
                self._live.pop(output.request_id, None)
            outputs.append(output)
        freed = [self._cancelled.pop(key) for key in news.freed if key in self._cancelled]
        self._mailbox.put(StepOutputs(outputs, list(news.scheduled), freed))

    def _end(self, reason: str) -> None:
        """Ends what the engine's thread left without an end, and lets `next_step` say why."""
        why = self._mailbox.end(reason)
        ended = [SequenceOutput(one, [], FinishReason.ERROR, error=why) for one in self._live]
        self._live.clear()
        self._cancelled.clear()
        if ended:
            self._mailbox.put(StepOutputs(ended))
