"""vLLM's CPU worker, with seeds that survive a prompt of several steps. Runs in the worker's process.

While a prompt is not done, what a step sampled for it is thrown away, and vLLM turns the request's generator back by
one draw. A CPU's generator knows no position: vLLM 0.32 raises there, which ends the whole engine. Never on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class SeededCPUWorker(CPUWorker):  # type: ignore[misc]
    """As vLLM's own, otherwise."""

    def init_device(self) -> None:
        super().init_device()
        runner = self.model_runner
        runner._bookkeeping_sync = rewinding(runner, runner._bookkeeping_sync)  # noqa: SLF001 - nothing public is there


def rewinding(runner: Any, bookkeeping: Callable[..., Any]) -> Callable[..., Any]:
    """The runner's work after sampling, with generators of discarded rows turned back to their seed.

    That is where they stood: nothing was kept that they drew. Only a request that lost its blocks in mid-answer and
    is computed anew has drawn before; its answer goes on with the numbers that it began with.
    """

    def keep_books(*args: Any, **kwargs: Any) -> Any:
        generators = runner.input_batch.generators
        discarded = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        unused = {row: generators.pop(row) for row in discarded if row in generators}
        try:
            return bookkeeping(*args, **kwargs)
        finally:
            for generator in unused.values():
                generator.manual_seed(generator.initial_seed())
            generators.update(unused)

    return keep_books
