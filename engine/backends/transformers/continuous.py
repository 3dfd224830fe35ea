"""All that touches the private parts of transformers' continuous batching; written against transformers 5.19.

Pinned: `checks.require_tested_transformers` refuses other releases, because what is overridden here is no public API:

- `RequestState`: `to_generation_output` makes only what is new (the stock one repeats the whole token list at
  every token), `create_equivalent_initial_request` keeps our own type when a sequence is preempted;
- `OutputRouter`: one call for each engine step, with the step's outputs;
- `FIFOScheduler`: tells what begins and what is freed, and mends two faults (see `scheduler`);
- `ContinuousBatchingLogitsProcessor`: sees the step's requests in row order, then their logits;
- `ContinuousBatchingManager`: a daemon thread, and word of its end.

Never on the event loop's thread, `submit`, `request_ids` and `count` excepted.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import Any, ClassVar

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, OutputRouter
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState, RequestStatus
from transformers.generation.continuous_batching.requests import logger as stock_logger
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine.backends.transformers.attention import paged_attention, supports
from engine.backends.transformers.run import SchedulerTotals
from engine.backends.transformers.sampler import choose
from engine.backends.transformers.scheduler import SequenceScheduler, StepListener
from engine.backends.transformers.sequence import Delivery, Sequence
from engine.types import EngineRequest, EngineStats, FinishReason, SequenceOutput

logger = logging.getLogger(__name__)
NAME = "tailrace"
"""Under which our scheduler and our attention function are registered with transformers."""


def _tame(stock: logging.Logger) -> None:
    """Lets the library's own logger speak like any other: through the root's handlers, and of warnings only."""
    stock.handlers.clear()
    stock.propagate = True
    stock.setLevel(logging.WARNING)


class SequenceState(RequestState):  # type: ignore[misc]
    """The scheduler's record of one sequence. A preempted sequence gets a new one, with its `Sequence` kept."""

    def __init__(self, key: str, sequence: Sequence, token_ids: list[int], max_new_tokens: int) -> None:
        stop_ids = list(sequence.stop_ids)
        super().__init__(key, token_ids, streaming=True, max_new_tokens=max_new_tokens, eos_token_id=stop_ids)
        self.sequence = sequence
        self.new_token_ids: list[int] = []

    def update_and_check_completion(self, token_id: int, logprob: float | None) -> bool:
        """Takes a step's token; True when it is the last, or when sampling failed."""
        if self.sequence.failure is not None:
            self.error = self.sequence.failure
            self.status = RequestStatus.FAILED
            return True
        self.sequence.append(token_id)
        self.new_token_ids.append(token_id)
        return bool(super().update_and_check_completion(token_id, logprob))

    def to_generation_output(self) -> Delivery:
        """What is new since the last call."""
        sequence = self.sequence
        token_ids, self.new_token_ids = self.new_token_ids, []
        output = SequenceOutput(sequence.request.request_id, token_ids, cached_tokens=sequence.cached_tokens)
        if token_ids and sequence.logprobs is not None:
            output.logprobs = [sequence.logprobs]
        if self.status == RequestStatus.FAILED:
            output.finish_reason, output.error = FinishReason.ERROR, self.error
        elif self.status == RequestStatus.FINISHED:
            stopped = token_ids[-1] in sequence.stop_ids
            output.finish_reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            output.stop_token_id = token_ids[-1] if stopped else None
        return sequence, output

    def create_equivalent_initial_request(self) -> SequenceState:
        """The same sequence, to be prefilled again with what it has generated, after its KV blocks were taken."""
        token_ids = self.initial_tokens + self.generated_tokens
        return SequenceState(
            self.request_id, self.sequence, token_ids, self.max_new_tokens - len(self.generated_tokens)
        )


class StepRouter(OutputRouter):  # type: ignore[misc]
    """Hands each step's outputs over in one call."""

    def __init__(self, listener: StepListener) -> None:
        super().__init__()
        self._listener = listener
        self.stopping = False

    def fail_and_deliver(self, state: SequenceState, error: Exception) -> None:
        """Ends a sequence that the engine can't go on with, in words fit for a client."""
        state.status = RequestStatus.FAILED
        state.error = "the engine was stopped" if self.stopping else f"the engine failed: {error}"
        self.deliver(state.to_generation_output())

    def deliver(self, output: Delivery) -> None:
        self._listener.stepped([output])

    def deliver_batch(self, outputs: list[Delivery]) -> None:
        self._listener.stepped(outputs)


class StepSampler(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """The one logits processor: per-request sampling of every kind."""

    supported_kwargs: ClassVar[dict[str, type]] = {}
    ignored_kwargs: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._rows: list[Sequence] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        """Notes whose rows come next. What is returned is stored with the step's inputs: nothing is needed there."""
        self._rows = [future.state.sequence for future in requests_with_new_token]
        return torch.empty(0, dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        choose(scores, self._rows)
        return scores


class Manager(ContinuousBatchingManager):  # type: ignore[misc]
    """The engine's thread, its queues and its KV cache, with our own parts put in."""

    def __init__(
        self, model: Any, config: ContinuousBatchingConfig, listener: StepListener, totals: SchedulerTotals
    ) -> None:
        """`listener` hears of each step and of the thread's end, on that thread; `totals` are counted on."""
        _tame(stock_logger)
        SCHEDULER_MAPPING[NAME] = SequenceScheduler
        config.scheduler_type = NAME
        super().__init__(model, GenerationConfig(do_sample=False), config)
        self._listener = listener
        self._keys = 0
        self.output_router = StepRouter(listener)
        self.logit_processor.logits_processor.append(StepSampler())
        self.logit_processor.tensors_required = 1
        self.logit_processor.do_processing = True
        if supports(model.config.get_text_config()):
            ALL_ATTENTION_FUNCTIONS.register(NAME, paged_attention)
            model.set_attn_implementation(NAME)  # only now: the stock constructor accepts no name but its own
        self.batch_processor = self._create_batch_processor()
        self.batch_processor.scheduler.attach(listener, totals)

    def start(self) -> None:
        """Starts the engine's thread: a daemon, so that a process which never closes the engine can still exit."""
        self.background_thread_status.clear()
        self._generation_thread = threading.Thread(
            target=self._run_generation_loop, name="tailrace-engine", daemon=True
        )
        self._generation_thread.start()

    def _run_generation_loop(self) -> None:
        try:
            with torch.inference_mode():
                super()._run_generation_loop()
        finally:
            error = self.background_thread_status.fatal_error
            self._listener.exited("the engine was stopped" if error is None else f"the engine failed: {error}")

    @property
    def accepting(self) -> bool:
        return self.background_thread_status.can_accept_new_requests() is None

    def submit(self, request: EngineRequest, eos_token_ids: frozenset[int]) -> tuple[str, Sequence]:
        """Queues a sequence; returns it with the key to cancel it by, which is never used twice."""
        self._keys += 1
        key = str(self._keys)
        sequence = Sequence(request, eos_token_ids, self.model.device)
        state = SequenceState(key, sequence, list(request.prompt_token_ids), request.sampling.max_tokens)
        self.input_queue.put_nowait(state)
        self._wake_up_loop.set()
        return key, sequence

    def count(self) -> EngineStats:
        """The scheduler's counts and the block pool's. Blocks that are kept for their content only are free."""
        processor = self.batch_processor
        if processor is None:
            return EngineStats(running=0, waiting=0, kv_blocks_total=0, kv_blocks_free=0)
        scheduler, cache = processor.scheduler, processor.cache
        free_bytes = cache.compute_free_capacity(relative=False)
        free_bytes += sum(
            len(one.ledger.cached_blocks) * one.bytes_per_block for one in cache.cache_allocators.values()
        )
        block_bytes = cache.num_sectors * cache.bytes_per_sector / cache.num_blocks
        return EngineStats(
            running=len(scheduler.active_requests),
            waiting=self.input_queue.qsize() + len(scheduler.waiting_requests),
            kv_blocks_total=cache.num_blocks,
            kv_blocks_free=min(cache.num_blocks, math.floor(free_bytes / block_bytes)),
        )

    def request_ids(self) -> set[str]:
        """Of every sequence that the queue and the scheduler hold. Each copy is one step of the interpreter's."""
        processor = self.batch_processor
        if processor is None:
            return set()
        with self.input_queue.mutex:
            states = list(self.input_queue.queue)
        states += list(processor.scheduler.waiting_requests.values())
        states += list(processor.scheduler.active_requests.values())
        return {state.sequence.request.request_id for state in states}

    def shut_down(self, timeout: float) -> None:
        """Ends the thread after its current step, fails what is left, and gives the memory back. Blocks so long.

        Python can't end a thread that hangs in a call of torch's: it is left behind, a daemon that keeps the model
        until the call returns, and then ends by itself.
        """
        self.output_router.stopping = True
        if self.is_running():
            self.stop(block=True, timeout=timeout, hard_stop=True)
        self.batch_processor = None
        if self.is_running():
            logger.error("the engine's thread hangs and is left behind")
        else:
            self.destroy()
