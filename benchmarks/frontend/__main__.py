"""What a front end costs for each delivered token: tailrace's, vLLM's own and vllm-rs, on the same mock engine core.

    .venv-vllm/bin/python -m benchmarks.frontend [--out FILE] [--servers tailrace,vllm] [--rust-binary VLLM_RS]

Prints a table of medians; with --out also JSON, every single run in it, and the table beside it as .md. README.md says
what is measured. Two cores are taken whole: one by the server, one by the mock core and the client.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.frontend import token_ids
from benchmarks.frontend.client import Load, LoadClient
from benchmarks.frontend.matrix import Cell, Row, Run, rows, run_all
from benchmarks.frontend.servers import SERVERS, FrontEnd, Place
from benchmarks.side_by_side import machine, numbers
from engine.model import demo_model_folder

COLUMNS = {
    "CPU us/tok": "cpu_us_per_token",
    "lowest": "lowest_cpu_us",
    "highest": "highest_cpu_us",
    "of vllm": "share_of_vllm",
    "tok/s": "tokens_per_second",
    "busy": "busy_share",
    "events/tok": "events_per_token",
    "bytes/tok": "bytes_per_token",
    "TTFT p50 ms": "ttft_p50_ms",
    "gap p50 ms": "gap_p50_ms",
    "gap p99 ms": "gap_p99_ms",
}
MAX_TOKENS = 256


def table(found: list[Row]) -> str:
    """In Markdown."""
    head = ["endpoint", "streams", "step ms", "server", "runs", *COLUMNS]
    lines = [head, ["---"] * len(head)]
    for row in found:
        load, pace = row.cell.load, f"{row.cell.interval_ms:g}" if row.cell.interval_ms else "as delivered"
        values = (getattr(row, name) for name in COLUMNS.values())
        figures = ["" if value is None else f"{value:.4g}" for value in values]
        lines.append([load.endpoint, str(load.streams), pace, row.server, str(row.runs), *figures])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(options: argparse.Namespace) -> list[Cell]:
    """As many rounds of each number of streams as make about the same number of tokens."""
    return [
        Cell(Load(endpoint, streams, max(1, options.tokens // (streams * MAX_TOKENS)), MAX_TOKENS), interval)
        for interval in options.step_ms
        for streams in options.streams
        for endpoint in options.endpoints.split(",")
    ]


def told(run: Run) -> None:
    """To standard error, as it goes."""
    load = run.cell.load
    print(
        f"{load.endpoint} {load.streams}, step {run.cell.interval_ms:g} ms, {run.server}: "
        f"{run.cpu_us_per_token:.1f} us/tok, {run.tokens_per_second:.0f} tok/s, "
        f"{run.events_per_token:.3f} events/tok, {run.lost_tokens} lost",
        file=sys.stderr,
        flush=True,
    )


def measure(options: argparse.Namespace) -> list[Run]:
    """Starts the servers one after the other; they stay up, and those that wait their turn do nothing."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-frontend-")))
        client = LoadClient(folder, options.cpus[1])
        ids = folder / "token_ids.json"
        token_ids.write(options.model, ids)
        server_cpu, core_cpu = options.cpus
        place = Place(folder, options.model, ids, server_cpu, core_cpu, options.rust_binary)
        servers = [running.enter_context(FrontEnd(name, place)) for name in options.servers.split(",")]
        return run_all(servers, cells(options), client, options.rounds, told)


def document(options: argparse.Namespace, runs: list[Run], found: list[Row]) -> dict[str, Any]:
    settings = {name: value for name, value in vars(options).items() if name not in ("model", "out", "rust_binary")}
    facts = machine() | {"cores": str(os.cpu_count()), "load_average": str(os.getloadavg())}
    return {
        "machine": facts,
        "settings": settings,
        "rows": [asdict(row) for row in found],
        "runs": msgspec.to_builtins(runs),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.frontend", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="tailrace,vllm", help=f"of {', '.join(SERVERS)}")
    parser.add_argument("--rust-binary", type=Path, help="the file vllm/vllm-rs of vLLM's CUDA wheel; for vllm-rs")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; only its tokenizer is used")
    parser.add_argument("--streams", type=numbers, default=[64, 256])
    parser.add_argument("--endpoints", default="completions,chat")
    parser.add_argument("--step-ms", type=lambda text: [float(part) for part in text.split(",")], default=[0.0])
    parser.add_argument("--tokens", type=int, default=65_536, help="about so many a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", type=numbers, default=[0, 1], help="the server's core, and the mock's and client's")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    unknown = set(options.servers.split(",")) - set(SERVERS)
    if unknown or ("vllm-rs" in options.servers and options.rust_binary is None):
        parser.error(f"servers are {', '.join(SERVERS)}, and vllm-rs wants --rust-binary")
    options.model = options.model or demo_model_folder()
    return options


def main() -> None:
    # A shell that starts this in the background has interrupts ignored, and then nothing would stop the servers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = parsed()
    runs = measure(options)
    found = rows(runs)
    print(table(found))
    if options.out:
        options.out.write_text(json.dumps(document(options, runs, found), indent=2) + "\n")
        options.out.with_suffix(".md").write_text(table(found) + "\n")


if __name__ == "__main__":
    main()
