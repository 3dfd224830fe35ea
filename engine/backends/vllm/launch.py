"""Starts vLLM's engine core in its own process and gives what is needed to talk to it.

Never on the event loop's thread, and never a request's business.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Thread
from typing import Any

from pydantic import ValidationError
from vllm.config import VllmConfig
from vllm.config.logging import LoggingConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.renderers.registry import renderer_from_config
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.executor import Executor

from engine.backends.vllm.adapters import Adapter, Adapters
from engine.backends.vllm.arguments import NULL_BLOCKS
from engine.backends.vllm.child_log import CHILD_LOGGING
from engine.backends.vllm.engine_process import telling
from engine.backends.vllm.environment import prepare_children
from engine.backends.vllm.processes import EngineProcesses, deaf_to_the_keyboard, kill_engine_processes
from engine.backends.vllm.requests import GRAMMARS, RequestLowering, lora_request
from engine.errors import ConfigError, ModelLoadError

logger = logging.getLogger(__name__)
SHUTDOWN_SECONDS = 10.0
"""How long the engine may take to end by itself."""
SOCKET_SECONDS = 2.0
"""How long the sockets' end is waited for."""


def engine_config(arguments: dict[str, Any]) -> VllmConfig:
    """The whole configuration of vLLM, without anything started. `ConfigError` for what it refuses."""
    try:
        here = LoggingConfig(configure_logging=False, pylogging_config_file=None)
        config = AsyncEngineArgs(**arguments, logging_config=here).create_engine_config()
    except ValidationError as error:
        faults = (fault["msg"].removeprefix("Value error, ") for fault in error.errors(include_url=False))
        raise ConfigError(f"vLLM refuses its configuration: {'; '.join(faults)}") from error
    except (ValueError, TypeError, NotImplementedError, AssertionError, RuntimeError, OSError) as error:
        raise ConfigError(f"vLLM refuses its configuration: {error}") from error
    _choose_grammars(config)
    scheduler = config.scheduler_config
    scheduler.scheduler_cls = telling(scheduler.get_scheduler_cls())
    config.logging_config = LoggingConfig(configure_logging=True, pylogging_config_file=str(CHILD_LOGGING))
    return config


def _choose_grammars(config: VllmConfig) -> None:
    """The language in which the server tries structures out: none that was not tried may reach the engine."""
    chosen = config.structured_outputs_config
    if chosen.backend not in ("auto", GRAMMARS):
        raise ConfigError(
            f"engine.vllm.structured_outputs_config: backend can't be {chosen.backend!r}: the server tries every "
            f"structure out for {GRAMMARS!r}, since one that was not could end the engine"
        )
    chosen.backend = GRAMMARS


@dataclass(frozen=True, slots=True)
class LaunchedEngine:
    """An engine that takes requests."""

    config: VllmConfig
    client: Any
    """vLLM's `AsyncMPClient`."""
    processor: InputProcessor
    processes: EngineProcesses

    @property
    def kv_blocks(self) -> int:
        """Over all engine processes, placeholders left out."""
        return int(self.config.cache_config.num_gpu_blocks or 0) - NULL_BLOCKS * self.engines

    @property
    def block_size(self) -> int:
        """Tokens in one KV block: what was asked for, or vLLM's choice."""
        return int(self.config.cache_config.block_size)

    @property
    def context_length(self) -> int:
        """Most tokens of one sequence: the model's, or what one engine's KV blocks hold if that is less."""
        room = self.kv_blocks // self.engines * self.block_size
        longest = int(self.config.model_config.max_model_len)
        return min(longest, room) if room > 0 else longest  # there are models without a KV cache

    @property
    def engines(self) -> int:
        """Engine processes, one for each data-parallel rank."""
        return len(self.client.core_engines)

    @property
    def is_dead(self) -> bool:
        """Its client has noticed."""
        return bool(self.client.resources.engine_dead)

    @property
    def most_adapters(self) -> int:
        """LoRA adapters in one step; 0 where there are none."""
        return 0 if self.config.lora_config is None else int(self.config.lora_config.max_loras)

    @property
    def can_sleep(self) -> bool:
        """It was told to be able to, or is on a machine where sleep only stops it: there is no GPU's memory to free."""
        return bool(self.config.model_config.enable_sleep_mode) or not current_platform.is_sleep_mode_available()

    async def load_adapter(self, adapter: Adapter) -> None:
        """Reads its weights into memory, from where every sequence that names it gets them."""
        await self.client.add_lora_async(lora_request(adapter))

    def lowering(self, eos_token_ids: frozenset[int], adapters: Adapters) -> RequestLowering:
        """What turns requests into this engine's; the ids end a sequence beside vLLM's own."""
        return RequestLowering(self.processor, eos_token_ids, adapters)

    def why_dead(self) -> str:
        """What is known of the engine's end."""
        manager = self.client.resources.engine_manager
        statuses = manager.finished_procs() if hasattr(manager, "finished_procs") else {}
        known = ", ".join(f"{name} exited with status {status}" for name, status in statuses.items())
        return f"the vLLM engine process died ({known})" if known else "the vLLM engine failed; its log says why"

    def shut_down(self) -> None:
        """Ends the processes, in bounded time; what does not end is killed."""
        try:
            self.client.shutdown(timeout=SHUTDOWN_SECONDS)
            self.processor.renderer.shutdown()
        finally:
            self.processes.clear(SHUTDOWN_SECONDS)
            self._end_sockets()

    def _end_sockets(self) -> None:
        """Frees ZeroMQ's threads, which vLLM leaves; waits for the event loop, which closes the sockets."""
        ending = Thread(target=self.client.resources.ctx.term, name="end of vllm sockets", daemon=True)
        ending.start()
        ending.join(SOCKET_SECONDS)


def launch(arguments: dict[str, Any]) -> LaunchedEngine:
    """Loads the model in a new process; takes a minute or several. `ModelLoadError`, `ConfigError`."""
    config = engine_config(arguments)
    prepare_children()
    try:
        processor = InputProcessor(config, renderer_from_config(config))
        with deaf_to_the_keyboard():
            client = EngineCoreClient.make_async_mp_client(config, Executor.get_class(config), log_stats=True)
    except (RuntimeError, ValueError, OSError, TimeoutError) as error:
        kill_engine_processes()
        raise ModelLoadError(f"vLLM can't load {config.model_config.model}: {error}") from error
    return LaunchedEngine(config, client, processor, EngineProcesses())
