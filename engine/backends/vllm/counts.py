"""The engine's figures: the latest word of each engine process's scheduler, and totals over all engines so far.

Never imports vLLM: it reads what the schedulers' statistics say.
"""

from __future__ import annotations

from typing import Any

from engine.types import EngineStats


class EngineCounts:
    """The totals outlive an engine; `begin` starts the rest over."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        self._usage: dict[int, float] = {}
        """Share of each engine's KV blocks that are held."""
        self._blocks = 0
        self._engines = 1
        self._block_size = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0

    def begin(self, kv_blocks: int, engines: int, block_size: int) -> None:
        """A fresh engine: `kv_blocks` of `block_size` tokens over all of its `engines` processes."""
        self._running.clear()
        self._usage.clear()
        self._blocks, self._engines, self._block_size = kv_blocks, engines, block_size

    def end(self) -> None:
        self.begin(0, 1, 0)

    def take(self, engine: int, statistics: Any) -> None:
        """One step's `SchedulerStats` of the engine process of that index."""
        self._running[engine] = statistics.num_running_reqs
        self._usage[engine] = statistics.kv_cache_usage
        self._prefix_cache_queries += statistics.prefix_cache_stats.queries
        self._prefix_cache_hits += statistics.prefix_cache_stats.hits

    def stats(self, held: int, preemptions: int) -> EngineStats:
        """`held`: sequences in the engine, of which those that do not run wait."""
        running = sum(self._running.values())
        each = self._blocks // self._engines
        used = sum(round(usage * each) for usage in self._usage.values())
        return EngineStats(
            running=running,
            waiting=max(held - running, 0),
            kv_blocks_total=self._blocks,
            kv_blocks_free=self._blocks - used,
            block_size=self._block_size,
            preemptions_total=preemptions,
            prefix_cache_queries_total=self._prefix_cache_queries,
            prefix_cache_hits_total=self._prefix_cache_hits,
        )
