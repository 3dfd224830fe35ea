"""Runs loads against front ends in turn, and makes medians of what came of them. Never two loads at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.frontend.client import ClientFigures, Load, LoadClient
from benchmarks.frontend.servers import FrontEnd
from benchmarks.served import NAME

SETTLE_SECONDS = 0.3
"""Between two loads: connections close, accounts are written; what they cost counts to nobody."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of load, at one pace of the engine's."""

    load: Load
    interval_ms: float
    """From step to step; 0: the next step as soon as all tokens arrived."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load against one server."""

    server: str
    cell: Cell
    cpu_us_per_token: float
    """User and system time of the process that answers HTTP, over the tokens that arrived."""
    busy_share: float
    """Of its core, by that process."""
    tokens_per_second: float
    events_per_token: float
    bytes_per_token: float
    late_steps: int
    lost_tokens: int
    """That the core waited for in vain: a run with any is no measurement of a front end that delivers."""
    figures: ClientFigures


def run(server: FrontEnd, cell: Cell, client: LoadClient) -> Run:
    """`RuntimeError` where a stream failed."""
    board, load = server.board, cell.load
    board.interval_us = round(cell.interval_ms * 1000)
    late, lost = board.late, board.forgiven
    before = server.front_end_cpu_seconds()
    figures = client.run(server.port, NAME, load, server.board_file)
    cpu = server.front_end_cpu_seconds() - before
    time.sleep(SETTLE_SECONDS)
    return Run(
        server=server.name,
        cell=cell,
        cpu_us_per_token=1e6 * cpu / figures.tokens,
        busy_share=cpu / figures.seconds,
        tokens_per_second=figures.tokens / figures.seconds,
        events_per_token=figures.text_events / figures.tokens,
        bytes_per_token=figures.bytes / figures.tokens,
        late_steps=board.late - late,
        lost_tokens=board.forgiven - lost,
        figures=figures,
    )


def run_all(
    servers: Sequence[FrontEnd], cells: Sequence[Cell], client: LoadClient, rounds: int, told: Callable[[Run], None]
) -> list[Run]:
    """Every cell against every server, `rounds` times; within a round the servers take turns load by load.

    A round before them is thrown away: caches fill, and code is compiled. `told` hears of each run that counts.
    """
    runs = []
    for number in range(rounds + 1):
        for cell in cells:
            for server in servers:
                done = run(server, cell, client)
                if number:
                    told(done)
                    runs.append(done)
    return runs


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one server's runs at one cell."""

    server: str
    cell: Cell
    runs: int
    cpu_us_per_token: float
    lowest_cpu_us: float
    highest_cpu_us: float
    share_of_vllm: float | None
    """This server's CPU a token over that of vLLM's own in the same round; None without such a server."""
    tokens_per_second: float
    busy_share: float
    events_per_token: float
    bytes_per_token: float
    ttft_p50_ms: float
    gap_p50_ms: float
    gap_p99_ms: float


def rows(runs: Sequence[Run], reference: str = "vllm") -> list[Row]:
    """One for each server and cell, in the order in which they first came."""
    keys = dict.fromkeys((one.cell, one.server) for one in runs)
    return [_row([one for one in runs if (one.cell, one.server) == key], runs, reference) for key in keys]


def _row(ours: list[Run], runs: Sequence[Run], reference: str) -> Row:
    cell = ours[0].cell
    theirs = [one for one in runs if one.cell == cell and one.server == reference]
    cpu = [one.cpu_us_per_token for one in ours]
    ratios = [one.cpu_us_per_token / other.cpu_us_per_token for one, other in zip(ours, theirs, strict=False)]
    figure: Callable[[Callable[[Run], float]], float] = lambda of: statistics.median(map(of, ours))  # noqa: E731
    return Row(
        server=ours[0].server,
        cell=cell,
        runs=len(ours),
        cpu_us_per_token=statistics.median(cpu),
        lowest_cpu_us=min(cpu),
        highest_cpu_us=max(cpu),
        share_of_vllm=statistics.median(ratios) if ratios else None,
        tokens_per_second=figure(lambda one: one.tokens_per_second),
        busy_share=figure(lambda one: one.busy_share),
        events_per_token=figure(lambda one: one.events_per_token),
        bytes_per_token=figure(lambda one: one.bytes_per_token),
        ttft_p50_ms=figure(lambda one: one.figures.ttft_p50_ms),
        gap_p50_ms=figure(lambda one: one.figures.gap_p50_ms),
        gap_p99_ms=figure(lambda one: one.figures.gap_p99_ms),
    )
