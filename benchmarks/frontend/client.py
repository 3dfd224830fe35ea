"""The C load client: compiled on the spot, run on its core, its figures read. Never installed, never kept."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

SOURCE = Path(__file__).with_name("load_client.c")
RUN_SECONDS = 200
"""The client itself gives up earlier."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the client asks for: every stream the same, so many rounds of it."""

    endpoint: str
    """`completions` or `chat`."""
    streams: int
    rounds: int
    max_tokens: int

    @property
    def requests(self) -> int:
        return self.streams * self.rounds

    @property
    def tokens(self) -> int:
        """That have to arrive."""
        return self.requests * self.max_tokens


class ClientFigures(msgspec.Struct, frozen=True):
    """What the client saw; see `load_client.c`."""

    tokens: int
    """By the servers' own usage."""
    events: int
    text_events: int
    """With text in them."""
    bytes: int
    reads: int
    failures: int
    seconds: float
    client_cpu_seconds: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p50_ms: float
    """Between two events with text of one stream."""
    gap_p99_ms: float
    gap_max_ms: float


class LoadClient:
    """A compiled client."""

    def __init__(self, folder: Path, cpu: int) -> None:
        """`CalledProcessError` or `FileNotFoundError` where there is no C compiler that can make it."""
        self._program = str(folder / "load_client")
        self._cpu = str(cpu)
        subprocess.run(["cc", "-O2", "-o", self._program, str(SOURCE)], check=True)  # noqa: S603, S607 - our own source

    def run(self, port: int, model: str, load: Load, board: Path) -> ClientFigures:
        """Raises `RuntimeError` unless every stream came whole, with the tokens that it asked for."""
        words = [str(port), model, load.endpoint, str(load.streams), str(load.rounds), str(load.max_tokens), str(board)]
        line = ["taskset", "-c", self._cpu, self._program, *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)  # noqa: S603 - ours
        if done.returncode:
            raise RuntimeError(f"the load failed: {done.stderr[:2000]}")
        figures = msgspec.json.decode(done.stdout, type=ClientFigures)
        if figures.tokens != load.tokens:
            raise RuntimeError(f"{figures.tokens} tokens came, not {load.requests} times {load.max_tokens}")
        return figures
