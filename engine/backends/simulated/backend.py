"""The simulated engine behind the backend protocol: paces the scheduler's steps in real time and has faults on demand.

Never a model and never text: what it says is token ids, echoed, scripted or encoded from the corpus once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from engine.backends.simulated.corpus import paragraph
from engine.backends.simulated.scheduler import Script, ScriptedSequence, SimulatedScheduler
from engine.config import EngineConfig
from engine.errors import ContextLengthError, EngineUnavailableError
from engine.types import EngineRequest, EngineStats, ModelLimits, StepOutputs

DEFAULT_KV_BLOCKS = 16_384
DEFAULT_BATCHED_TOKENS = 8_192


class SimulatedBackend:
    """See `engine.backends.base.Backend`. Sampling parameters other than bounds and stops have no effect here."""

    name = "simulated"

    def __init__(self, config: EngineConfig, limits: ModelLimits, encode: Callable[[str], list[int]]) -> None:
        blocks = config.num_kv_blocks or DEFAULT_KV_BLOCKS
        self.limits = replace(limits, context_length=min(limits.context_length, blocks * config.block_size))
        self._config = config
        self._encode = encode
        self._scheduler = SimulatedScheduler(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS,
            num_kv_blocks=blocks,
            block_size=config.block_size,
            fail_after_tokens=config.faults.fail_after_tokens,
        )
        self._work = asyncio.Event()
        self._steps = 0
        self._next_step_at = 0.0
        self._closed = False

    async def start(self) -> None:
        """Nothing to load."""

    def check(self, request: EngineRequest) -> None:
        """Refuses what could never fit the KV blocks."""
        tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        if self._scheduler.blocks_for(tokens) > self._scheduler.num_kv_blocks:
            room = self._scheduler.num_kv_blocks * self._config.block_size
            message = f"prompt and max_tokens are {tokens} tokens together; the engine's KV blocks hold {room}"
            raise ContextLengthError(message, param="max_tokens")

    def submit(self, request: EngineRequest) -> None:
        if self._closed:
            raise EngineUnavailableError("the simulated engine is stopped")
        self._scheduler.add(ScriptedSequence(request, self._script(request)))
        self._work.set()

    def abort(self, request_ids: Iterable[str]) -> None:
        self._scheduler.remove(set(request_ids))

    async def next_step(self) -> StepOutputs:
        while True:
            outputs = await self._step()
            if outputs.outputs:
                return outputs

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            len(scheduler.running), len(scheduler.waiting), scheduler.num_kv_blocks, scheduler.blocks_free
        )

    async def close(self) -> None:
        self._closed = True
        self._scheduler.remove({seq.request.request_id for seq in (*self._scheduler.running, *self._scheduler.waiting)})

    async def _step(self) -> StepOutputs:
        """One engine step, at its time: steps with work begin one interval apart, the first at once."""
        if self._closed:
            raise EngineUnavailableError("the simulated engine is stopped")
        await self._wait_for_work()
        loop = asyncio.get_running_loop()
        interval = self._config.step_interval_ms / 1000
        begin = max(self._next_step_at, loop.time())
        self._next_step_at = begin + interval
        await asyncio.sleep(max(0.0, begin + interval - loop.time()))
        await self._fault()
        self._steps += 1
        return StepOutputs(self._scheduler.step())

    async def _wait_for_work(self) -> None:
        while not self._scheduler.has_work:
            self._work.clear()
            await self._work.wait()

    async def _fault(self) -> None:
        faults = self._config.faults
        if faults.crash_after_steps is not None and self._steps >= faults.crash_after_steps:
            await self.close()  # a dead engine holds nothing
            raise EngineUnavailableError(f"simulated crash after {self._steps} steps")
        if faults.stall_after_steps is not None and self._steps >= faults.stall_after_steps:
            await asyncio.Event().wait()

    def _script(self, request: EngineRequest) -> Script:
        per_step = self._config.tokens_per_step
        simulation = request.simulation
        if simulation is not None:
            return Script(simulation.token_ids, steps=simulation.steps, tokens_per_step=1, ends=simulation.then)
        endless = request.sampling.ignore_eos
        if self._config.behaviour == "echo":
            return Script(request.prompt_token_ids, endless, tokens_per_step=per_step)
        token_ids = self._encode(paragraph(request.prompt_token_ids, request.sampling.seed))
        return Script(token_ids, endless, tokens_per_step=per_step)
