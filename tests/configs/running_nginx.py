"""An nginx process of the tests' own, out of Debian's package: a configuration with its ports and folders moved.

Never another change to the configuration than those, unless the test makes it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.debian_packages import program
from tests.running_server import STOP_SECONDS, poll_until

SHIPPED = Path(__file__).parents[2] / "configs" / "nginx.conf"
START_SECONDS = 10
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class RunningNginx:
    """Use as a context manager. `url` has no slash at its end."""

    def __init__(self, configuration: str, upstream: str, folder: Path) -> None:
        """`upstream` is the server's address in place of 127.0.0.1:8000."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._folder = folder
        paths = f"    access_log {folder}/access.log;\n" if "access_log" not in configuration else ""
        paths += "".join(f"    {name}_temp_path {folder}/{name};\n" for name in TEMPORARY)
        self._text = _replaced(
            configuration, ("127.0.0.1:8000", upstream), ("listen 8080;", f"listen 127.0.0.1:{port};")
        )
        self._text = _replaced(self._text, ("http {\n", f"http {{\n{paths}"))
        self._text = re.sub(r"/var/log/nginx/", f"{folder}/", self._text)

    def __enter__(self) -> Self:
        file = self._folder / "nginx.conf"
        file.write_text(self._text)
        directives = f"daemon off; pid {self._folder}/nginx.pid;" + (" user root root;" if os.geteuid() == 0 else "")
        nginx, flags = program("nginx", "/usr/sbin/nginx"), ("-e", "stderr", "-g", directives)
        with (self._folder / "stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                [nginx, *flags, "-p", self._folder, "-c", file], stdout=subprocess.DEVNULL, stderr=stderr
            )
        try:
            poll_until(self._listens, START_SECONDS, self.log)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """What it complained of."""
        return (self._folder / "stderr").read_text()

    def _listens(self) -> bool:
        assert self._process.poll() is None, self.log()
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def _replaced(text: str, *pairs: tuple[str, str]) -> str:
    """Each of the old parts stands there exactly once."""
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
