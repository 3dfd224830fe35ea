"""Accounts made by hand, and scrapes to compare before and after their end.

Never a server: its metrics are read with `RunningServer.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse_text

from engine.core import EngineCore
from engine.gaps import TokenGaps
from server.account import Account
from server.lifecycle import Delivery, EndState, Generation, Phase
from server.metrics import Metrics

MODEL = {"model_name": "m", "engine": "0"}

TOKEN_KINDS = ("generated", "written", "delivered", "undelivered", "zombie", "cut")

ENDS = {
    EndState.COMPLETED: (Generation.FINISHED, Delivery.CLOSED),
    EndState.CLIENT_CANCELLED: (Generation.ABORTED, Delivery.LOST),
    EndState.UPSTREAM_ERROR: (Generation.FAILED, Delivery.CLOSED),
}


def metrics_of(core: EngineCore) -> Metrics:
    return Metrics(core, model_name="m", queue_limit=7)


def account(end: EndState = EndState.COMPLETED, **fields: Any) -> Account:
    """An account that the engine was handed at second 100, and that ended so."""
    told = Account("r1", "/v1/completions", "m", streams=True, started_at=100.0, **fields)
    told.state.generate(Generation.QUEUED)
    if end is EndState.TIMED_OUT:
        told.state.time_out(Phase.TOTAL)
        told.state.close(delivered=True)
    else:
        told.state.generation, told.state.delivery = ENDS[end]
    return told


def gaps(*steps: tuple[float, int]) -> TokenGaps:
    """Of steps that came so many seconds after the one before, and held so many tokens."""
    counted = TokenGaps()
    for seconds, tokens in steps:
        counted.add(seconds, tokens)
    return counted


class Samples(dict[str, float]):
    """Every sample by its name and labels as a scrape spells them, buckets left out."""

    def __init__(self, metrics: Metrics) -> None:
        text, _ = metrics.exposition()
        for family in parse_text(text.decode()):
            for sample in family.samples:
                if "le" not in sample.labels:
                    self[named(sample.name, sample.labels)] = sample.value

    def growth(self, before: Samples) -> dict[str, float]:
        """What is not as it was."""
        return {name: value - before.get(name, 0) for name, value in self.items() if value != before.get(name, 0)}


def named(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}" if inner else name


def grown(metrics: Metrics, *accounts: Account) -> dict[str, float]:
    """What these accounts' ends change, the processes' own figures left out."""
    for _ in accounts:
        metrics.opened()
    before = Samples(metrics)
    for told in accounts:
        metrics.ended(told)
    growth = Samples(metrics).growth(before)
    return {name: value for name, value in growth.items() if not name.startswith("process_")}
