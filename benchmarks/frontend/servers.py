"""The front ends under measurement, each on its core, each with a mock core and a board of its own.

Never more of a server than its command line: how it starts, is waited for and ends is `benchmarks.served`'s.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.frontend.board import Board
from benchmarks.served import Served, tailrace_words, vllm_words

SERVERS = ("tailrace", "vllm", "vllm-rs")
RUST_PROCESS = "vllm-rs"
ENGINE_ARGUMENTS = {"max_model_len": 8192, "max_num_seqs": 2048, "kv_cache_memory_bytes": 268435456}
"""vLLM's, for both servers. The mock has no cache; the figure keeps vLLM from measuring the machine's memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """What all servers of a run share."""

    folder: Path
    """For boards and logs."""
    model: Path
    token_ids: Path
    server_cpu: int
    core_cpu: int
    """The mock core's and the client's."""
    rust_binary: Path | None


class FrontEnd(Served):
    """A server with a mock core."""

    def __init__(self, name: str, place: Place) -> None:
        self.board_file = place.folder / f"{name}.board"
        self.board = Board.create(self.board_file)
        super().__init__(name, _line(name, place, self.board_file), place.folder)

    def front_end_process(self) -> psutil.Process:
        """The one that answers HTTP: the server's own, or vllm-rs, which vLLM's command starts beside the engine."""
        process = super().front_end_process()
        if self.name != RUST_PROCESS:
            return process
        return next(child for child in process.children(recursive=True) if child.name() == RUST_PROCESS)


def _line(name: str, place: Place, board: Path) -> list[str]:
    mocked = [sys.executable, "-m", "benchmarks.frontend.mocked", "--board", str(board)]
    mocked += ["--token-ids", str(place.token_ids), "--core-cpu", str(place.core_cpu)]
    on_core = ["taskset", "-c", str(place.server_cpu)]
    if name == "tailrace":
        return [*on_core, *mocked, "tailrace", *tailrace_words(place.model, ENGINE_ARGUMENTS, "vllm")]
    rust = [] if name == "vllm" else ["env", "VLLM_USE_RUST_FRONTEND=1", f"VLLM_RUST_FRONTEND_PATH={place.rust_binary}"]
    return [*on_core, *rust, *mocked, "vllm", *vllm_words(place.model, ENGINE_ARGUMENTS)]
