"""The backend on the event loop's side: hands sequences to the engine's thread and its steps to the core.

Never computes anything itself, and never waits for the engine's thread on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVarTuple

from engine.backends.transformers.checks import check_request, require_tested_transformers
from engine.backends.transformers.folder import read_limits
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineUnavailableError, ModelLoadError
from engine.types import EngineRequest, EngineStats, FinishReason, SequenceOutput, StepOutputs

if TYPE_CHECKING:
    from engine.backends.transformers.continuous import Delivery, Manager
    from engine.backends.transformers.sequence import Sequence

Ts = TypeVarTuple("Ts")

SMALLEST_BLOCK = 4
"""Tokens: continuous batching takes no smaller blocks."""
CLOSE_TIMEOUT = 30.0
"""Seconds that `close` waits for the step that is running."""


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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: dict[str, tuple[str, Sequence]] = {}
        self._steps: deque[StepOutputs] = deque()
        self._news = asyncio.Event()
        self._ended: str | None = None

    async def start(self) -> None:
        """Loads the model and starts the engine's thread. `ModelLoadError`."""
        self._loop = asyncio.get_running_loop()
        manager = await asyncio.to_thread(self._load)
        if self._ended is not None:  # closed while loading
            await asyncio.to_thread(manager.shut_down, CLOSE_TIMEOUT)
            return
        self._manager = manager
        room = manager.count().kv_blocks_total * self._config.block_size
        self.limits = replace(self.limits, context_length=min(self.limits.context_length, room))
        manager.start()

    def check(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError` for what this model and its KV cache can't do."""
        tokens = self.stats().kv_blocks_total * self._config.block_size if self._manager else None
        check_request(request, self.limits, tokens)

    def submit(self, request: EngineRequest) -> None:
        """Queues a sequence for the engine's thread."""
        manager = self._manager
        if manager is None or self._ended is not None or not manager.accepting:
            raise EngineUnavailableError(self._ended or "the engine is not up")
        self._live[request.request_id] = manager.submit(request, self.limits.eos_token_ids)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Cancels sequences; the engine's thread sees it before its next step, at once when it is idle."""
        for request_id in request_ids:
            key, _ = self._live.pop(request_id, (None, None))
            if key is not None and self._manager is not None:
                self._manager.cancel_request(key)

    async def next_step(self) -> StepOutputs:
        """The next engine step's outputs; after the engine's end `EngineUnavailableError`, again and again."""
        while not self._steps:
            if self._ended is not None:
                raise EngineUnavailableError(self._ended)
            self._news.clear()
            await self._news.wait()
        return self._steps.popleft()

    def stats(self) -> EngineStats:
        """The scheduler's own counts and the block pool's; all zero while there is no engine."""
        if self._manager is None:
            return EngineStats(running=0, waiting=0, kv_blocks_total=0, kv_blocks_free=0)
        return self._manager.count()

    async def close(self) -> None:
        """Stops the engine after the step that is running; what was live ends with ERROR outputs."""
        manager, self._manager = self._manager, None
        if manager is not None:
            await asyncio.to_thread(manager.shut_down, CLOSE_TIMEOUT)
        self._end("the engine was stopped")

    def _load(self) -> Manager:
        """Imports torch and loads the model; takes seconds, so never on the loop's thread."""
        try:
            from engine.backends.transformers.loading import load_manager
        except ImportError as error:
            raise ModelLoadError(f"the transformers engine needs `pip install 'tailrace[cpu]'`: {error}") from error
        return load_manager(self._config, self._folder, self.limits.context_length, self._deliver, self._on_exit)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """On the engine's thread: passes one step's outputs to the loop."""
        self._call_on_loop(self._take, deliveries)

    def _on_exit(self, reason: str) -> None:
        """On the engine's thread, as the last thing that it does."""
        self._call_on_loop(self._end, reason)

    def _call_on_loop(self, callback: Callable[[*Ts], None], *args: *Ts) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(callback, *args)

    def _take(self, deliveries: list[Delivery]) -> None:
        """Queues one step's outputs for `next_step`, and forgets the sequences that they end."""
        outputs = []
        for sequence, output in deliveries:
            _, live = self._live.get(output.request_id, (None, sequence))
            if live is not sequence:
                continue  # a late word of an aborted sequence whose id is in use again
            if output.finish_reason is not None:
                self._live.pop(output.request_id, None)
            outputs.append(output)
        if outputs:
            self._steps.append(StepOutputs(outputs))
            self._news.set()

    def _end(self, reason: str) -> None:
        """Ends what the engine's thread left without an end, and lets `next_step` say why."""
        if self._ended is None:
            self._ended = reason
        ended = [SequenceOutput(one, [], FinishReason.ERROR, error=self._ended) for one in self._live]
        self._live.clear()
        if ended:
            self._steps.append(StepOutputs(ended))
        self._news.set()
