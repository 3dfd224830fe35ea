"""A `tailrace serve` process of the tests' own: started on a free port, ready by its ready line, ended by its id."""

from __future__ import annotations

import json
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

COMMAND = Path(sys.executable).with_name("tailrace")
READY = re.compile(r"tailrace ready on (https?://\S+)")
STOP_SECONDS = 20


def simulated(model: Path, *settings: str) -> tuple[str, ...]:
    """The flags that serve the simulated engine with this folder's tokenizer and these KEY=VALUE settings."""
    return ("--engine", "simulated", "--model", str(model), *[part for one in settings for part in ("--set", one)])


class RunningServer:
    """Use as a context manager. `url` has no slash at its end."""

    def __init__(self, *flags: str, log_folder: Path, verify: ssl.SSLContext | bool = True) -> None:
        """`verify`: which certificates are trusted of a server that serves https."""
        self.log_file = log_folder / "server.log"
        self._flags = flags
        self._client = httpx.Client(timeout=60, verify=verify)
        self.url = ""

    def __enter__(self) -> Self:
        with self.log_file.open("wb") as log:
            command = [str(COMMAND), "serve", "--port", "0", *self._flags]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # ends with the process, if it dies before it is ready
        match = READY.fullmatch(line.strip())
        if match is None:
            self.stop()
            raise AssertionError(f"the server did not get ready: {line!r}\n{self.log_file.read_text()}")
        self.url = match.group(1)
        self._client.base_url = httpx.URL(self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """SIGTERM, then SIGKILL; returns the exit status."""
        self._client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """A whole answer; `body` is JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._client.post(path, content=content, headers=headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self._client.get(path, headers=headers)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The `data:` of every event of a stream, parsed, without `[DONE]`, which must be there."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        frames = response.content.split(b"\n\n")
        assert frames[-2:] == [b"data: [DONE]", b""], frames[-2:]
        return [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2] if not frame.startswith(b":")]

    def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics`, by its name with labels."""
        lines = self._client.get("/metrics").text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def log_records(self, **wanted: object) -> list[dict[str, Any]]:
        """The JSON lines of the log that have these values."""
        lines = self.log_file.read_text().splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [record for record in records if wanted.items() <= record.items()]

    def wait_idle(self, seconds: float = 2.0) -> None:
        """Until nothing runs, nothing waits and no block is held; fails after so many seconds."""
        names = [
            f"tailrace_{name}" for name in ("sequences_running", "sequences_waiting", "kv_blocks_used", "streams_open")
        ]
        self.wait_for(dict.fromkeys(names, 0.0), seconds)

    def wait_for(self, samples: Mapping[str, float], seconds: float) -> None:
        """Until these samples have these values; fails after so many seconds."""

        def now() -> dict[str, float | None]:
            metrics = self.metrics()
            return {name: metrics.get(name) for name in samples}

        poll_until(lambda: now() == dict(samples), seconds, lambda: f"{now()}, not {dict(samples)}")


def poll_until(condition: Callable[[], bool], seconds: float, explain: Callable[[], str]) -> None:
    """Asks again and again; the deadline is a failure's, never a success's."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.005)
