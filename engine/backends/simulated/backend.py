"""The simulated engine behind the backend protocol: paces the scheduler's steps in real time and has faults on demand.

Never a model and never text: what it says is token ids, echoed, scripted or encoded from the corpus once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from engine.backends.simulated.corpus import paragraph
from engine.backends.simulated.scheduler import Script, ScriptedSequence, SimulatedScheduler
from engine.backends.unsupported import refuse_unsupported
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
        self._news = asyncio.Event()
        """Set when there may be something to do before the step is due."""
        self._freed: list[str] = []
        self._steps = 0
        self._due: float | None = None
        """When the step that is under way ends, on the loop's clock."""
        self._last_due = 0.0
        self._closed = False
        self._crash_after = config.faults.crash_after_steps
        self._stall_after = config.faults.stall_after_steps

    async def start(self) -> None:
        """Nothing to load. After `close` the engine is up again, and the faults that it had are over."""
        self._closed = False

    def check(self, request: EngineRequest) -> None:
        """Refuses what only a model can follow, priorities, and what could never fit the KV blocks.

        A cache salt is kept to as it is: no sequence's blocks are another's.
        """
        refuse_unsupported(request, self.name)
        tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        if self._scheduler.blocks_for(tokens) > self._scheduler.num_kv_blocks:
            room = self._scheduler.num_kv_blocks * self._config.block_size
            message = f"prompt and max_tokens are {tokens} tokens together; the engine's KV blocks hold {room}"
            raise ContextLengthError(message, param="max_tokens")

    def submit(self, request: EngineRequest) -> None:
        if self._closed:
            raise EngineUnavailableError("the simulated engine is stopped")
        self._scheduler.add(ScriptedSequence(request, self._script(request)))
        self._news.set()

    def abort(self, request_ids: Iterable[str]) -> None:
        self._freed += self._scheduler.remove(set(request_ids))
        self._news.set()

    async def next_step(self) -> StepOutputs:
        while True:
            if self._closed:
                raise EngineUnavailableError("the simulated engine is stopped")
            if self._freed:
                freed, self._freed = self._freed, []
                return StepOutputs([], freed=freed)
            if await self._is_due():
                await self._fault()
                self._steps += 1
                return self._scheduler.step()

    def request_ids(self) -> set[str]:
        return self._scheduler.request_ids()

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_blocks_total=scheduler.num_kv_blocks,
            kv_blocks_free=scheduler.blocks_free,
            block_size=scheduler.block_size,
            preemptions_total=scheduler.preemptions_total,
        )

    async def close(self) -> None:
        self._closed = True
        self._scheduler.remove(self._scheduler.request_ids())
        self._freed.clear()
        self._news.set()

    async def _is_due(self) -> bool:
        """Waits for the step's time. False when there was news before."""
        self._news.clear()
        if not self._scheduler.has_work:
            self._due, self._last_due = None, 0.0
            await self._news.wait()
            return False
        if self._due is None:
            self._due = self._next_due(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout_at(self._due):
                await self._news.wait()
        except TimeoutError:
            self._last_due, self._due = self._due, None
            return self._scheduler.has_work and not self._closed
        return False

    def _next_due(self, now: float) -> float:
        """Steps end one interval apart, whatever the loop does between them: a real engine works meanwhile.

        It waits only for a front end that is a whole step late.
        """
        interval = self._config.step_interval_ms / 1000
        return interval + (self._last_due if now - self._last_due < interval else now)

    async def _fault(self) -> None:
        """The engine's death or hang, each once."""
        if self._crash_after is not None and self._steps >= self._crash_after:
            self._crash_after = None
            await self.close()  # a dead engine holds nothing
            raise EngineUnavailableError(f"simulated crash after {self._steps} steps")
        if self._stall_after is not None and self._steps >= self._stall_after:
            self._stall_after = None
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
