"""The protocol that every backend keeps, and the contract that one test suite runs over all of them.

Never text, never HTTP: a backend speaks token ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from engine.types import EngineRequest, EngineStats, ModelLimits, StepOutputs


class Backend(Protocol):
    """A continuous-batching engine. All methods are called on the event loop's thread.

    Order: `start` once, then any of the others, then `close` once. After a fault that ends the
    engine, `next_step` raises `EngineUnavailableError` and goes on raising it.
    """

    name: str
    limits: ModelLimits
    """Final after `start`: the context is the model's, or what the KV blocks hold if that is less."""

    async def start(self) -> None:
        """Loads what is needed and returns when sequences can be submitted. May take minutes; never blocks the loop."""

    def check(self, request: EngineRequest) -> None:
        """Raises `UnsupportedParameterError` or another `InvalidRequestError` for what this backend can't do."""

    def submit(self, request: EngineRequest) -> None:
        """Takes a sequence; returns at once, never blocks. `EngineUnavailableError` when the engine is not up.

        Every submitted sequence ends in exactly one output with a `finish_reason`, unless it is aborted.
        """

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends sequences; returns at once. Unknown or ended ids are ignored; aborting twice is legal.

        The sequence's KV blocks are free after the engine's next step at the latest. Tokens that were
        generated before the engine saw the abort may still come out of `next_step`; the core counts them.
        """

    async def next_step(self) -> StepOutputs:
        """Waits for the next engine step with any output. One caller at a time. Cancelling the wait loses nothing."""

    def stats(self) -> EngineStats:
        """Reads the scheduler's own counts and the block pool's; cheap."""

    async def close(self) -> None:
        """Stops the engine and frees what it holds. Legal at any time, and twice."""
