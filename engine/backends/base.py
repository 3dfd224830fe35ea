"""The protocol that every backend keeps, and the contract that one test suite runs over all of them.

Never text, never HTTP: a backend speaks token ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from engine.types import EngineRequest, EngineStats, ModelLimits, StepOutputs


class Backend(Protocol):
    """A continuous-batching engine. All methods are called on the event loop's thread.

    Order: `start`, then any of the others, then `close`. After a fault that ends the engine, `next_step` raises
    `EngineUnavailableError` and goes on raising it. `close` and then `start` on the same object brings up a fresh
    engine, which knows nothing of the one before; the totals of `stats` go on counting.
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

        The sequence's KV blocks are free after the engine's next step at the latest, and then `next_step` says
        so (`StepOutputs.freed`), also when nothing else happens. Outputs that were made before the engine saw
        the abort may still come first; the core counts them. A sequence that had just ended by itself may end in its
        last output instead.
        """

    async def next_step(self) -> StepOutputs:
        """Waits for the engine's next step, or for word of aborted sequences. One caller at a time.

        A step is one pass of the model, also one that only prefills and has no output: each is a sign of life.
        Cancelling the wait loses nothing.
        """

    def request_ids(self) -> Collection[str]:
        """The sequences that the engine holds now, waiting ones and those not yet freed too: its own word on it."""

    def stats(self) -> EngineStats:
        """Reads the scheduler's own counts and the block pool's; cheap."""

    async def close(self) -> None:
        """Stops the engine and frees what it holds, in bounded time even if it hangs. Legal at any time, and twice."""


class EngineControls(Protocol):
    """What an operator may ask of an engine that has LoRA adapters and sleep. On the event loop's thread.

    All raise `EngineUnavailableError` while there is no engine, and `EngineControlError` for what it refused.
    """

    sleep_level: int
    """0 while the engine is awake; 1: its weights are in the machine's memory; 2: they are gone. A restart wakes it."""
    most_adapters: int
    """Adapters that one step can serve; 0 where there are none."""

    def adapters(self) -> Mapping[str, str]:
        """Folders of the loaded adapters, by the name that clients ask for."""

    def adapters_in_use(self) -> tuple[Collection[str], Collection[str]]:
        """Names of those with running sequences, and of those with waiting ones."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Under a name of its own or in place of another, whose running sequences end with the old weights."""

    async def unload_adapter(self, name: str) -> None:
        """No sequence gets it any more; running ones end with it. An unknown name is no error."""

    async def sleep(self, level: int) -> None:
        """Frees the engine's memory. No sequence may be live."""

    async def wake_up(self) -> None:
        """The opposite: weights are back as they were when this returns."""
