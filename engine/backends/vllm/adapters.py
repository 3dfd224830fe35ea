"""The LoRA adapters that requests may name. Never their weights: those are in the engine's own processes.

Each loading has a number, and a name towards vLLM, of its own: vLLM keeps its prefix cache by that name, and so blocks
of an adapter's old weights are never taken for those of new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.errors import EngineControlError, InvalidRequestError


@dataclass(frozen=True, slots=True)
class Adapter:
    """One loading of an adapter."""

    name: str
    """What clients ask for."""
    folder: str
    number: int
    """At least 1, never used again."""

    @property
    def engine_name(self) -> str:
        """What vLLM calls it."""
        return f"{self.name}#{self.number}"


class Adapters:
    """By name; at most `limit`, which is what the engine keeps in memory without reading one from disk again."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._known: dict[str, Adapter] = {}
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._known.values()))

    def folders(self) -> Mapping[str, str]:
        return {name: adapter.folder for name, adapter in self._known.items()}

    def find(self, name: str) -> Adapter:
        """`InvalidRequestError` where none of that name is loaded (any more)."""
        adapter = self._known.get(name)
        if adapter is None:
            raise InvalidRequestError(f"the adapter {name!r} is not loaded", param="model", code="model_not_found")
        return adapter

    def numbered(self, name: str, folder: str) -> Adapter:
        """A loading to be tried; `put` makes it known. `EngineControlError` where there is no room for one more."""
        if name not in self._known and len(self._known) >= self.limit:
            raise EngineControlError(
                f"{self.limit} adapters are loaded, the most this engine keeps in memory (engine.vllm.max_cpu_loras)"
                if self.limit
                else "this engine has no adapters: set engine.vllm.enable_lora, or engine.lora_modules",
                param="lora_name",
            )
        return Adapter(name, folder, next(self._numbers))

    def put(self, adapter: Adapter) -> Adapter | None:
        """Requests get it from now on. Returns the one that had the name before."""
        before = self._known.get(adapter.name)
        self._known[adapter.name] = adapter
        return before

    def drop(self, name: str) -> Adapter | None:
        return self._known.pop(name, None)
