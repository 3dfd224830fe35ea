"""A server under measurement, ours or vLLM's: its command line, and its process from start to end.

Never a process that it did not start.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

NAME = "random"
"""The model's name, to its clients."""
START_SECONDS = 240
STOP_SECONDS = 30
LOG_TAIL_CHARACTERS = 3000


def command(server: str, model: Path, engine_arguments: dict[str, Any], engine: str) -> list[str]:
    """The command line, without a port. `server` is `tailrace` or `vllm`; `engine` is tailrace's."""
    if server == "vllm":
        return [sys.executable, "-m", "benchmarks.vllm_command", *vllm_words(model, engine_arguments)]
    if server == "tailrace":
        return [str(Path(sys.executable).with_name("tailrace")), *tailrace_words(model, engine_arguments, engine)]
    raise ValueError(f"no server is called {server!r}; there are tailrace and vllm")


def vllm_words(model: Path, engine_arguments: dict[str, Any]) -> list[str]:
    """What follows `vllm` on its command line."""
    flags = [word for name, value in engine_arguments.items() for word in _vllm_flag(name, value)]
    return ["serve", str(model), "--served-model-name", NAME, "--host", "127.0.0.1", *flags]


def tailrace_words(model: Path, engine_arguments: dict[str, Any], engine: str) -> list[str]:
    """What follows `tailrace` on its command line; the engine arguments are vLLM's."""
    settings = [f"engine.vllm.{name}={json.dumps(value)}" for name, value in engine_arguments.items()]
    flags = [word for setting in (f"engine.served_model_name={NAME}", *settings) for word in ("--set", setting)]
    return ["serve", "--engine", engine, "--model", str(model), "--host", "127.0.0.1", *flags]


def _vllm_flag(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]


class Served:
    """Use as a context manager: within it the server takes requests."""

    def __init__(self, name: str, line: list[str], logs: Path) -> None:
        self.name = name
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._line = [*line, "--port", str(self.port)]
        self._log = logs / f"{name}.log"

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._line, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - our own
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def front_end_process(self) -> psutil.Process:
        """The process that answers HTTP; its children are the engine."""
        return psutil.Process(self._process.pid)

    def front_end_cpu_seconds(self) -> float:
        """User and system time of the process that answers HTTP, all its threads and none of its children."""
        times = self.front_end_process().cpu_times()
        return float(times.user + times.system)

    def _wait_ready(self) -> None:
        """Both servers list their models only when they can answer."""
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
                raise RuntimeError(f"{self.name} did not get ready: {' '.join(self._line)}\n{tail}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/ready" if self.name == "tailrace" else "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
