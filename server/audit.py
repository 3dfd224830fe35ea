"""The audit log: every request's prompt and text, one JSON line each, in a file that is rotated. Off by default.

Never in the event loop's way: entries wait in memory for a thread that writes them, and over a bound they are dropped
and counted, so that a slow or full disk costs entries and nothing else.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from engine.errors import ConfigError
from server.config import ServerConfig
from server.wire.sse import ascii_json

MAX_WAITING_ENTRIES = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
CLOSE_SECONDS = 2.0
"""How long the end of the server waits for the disk."""
_OWNER_ONLY = 0o600
_END: Final = b""

logger = logging.getLogger(__name__)


class AuditLog:
    """`record` from the event loop's thread, `close` once. The file is opened at once: `ConfigError` if it can't be."""

    def __init__(self, path: str, *, max_bytes: int, files: int) -> None:
        try:
            self._file = RotatingFile(Path(path), max_bytes, files)
        except OSError as error:
            raise ConfigError(f"server.audit_log: {path} can't be written: {error.strerror}") from error
        self._waiting: queue.Queue[bytes] = queue.Queue(MAX_WAITING_ENTRIES)
        # Each of these counts is written by one thread only.
        self._accepted_bytes = 0
        self._handled_bytes = 0
        self._refused = 0
        self._failed = 0
        # A daemon: a disk that never answers does not keep the process from its end.
        self._writer = threading.Thread(target=self._write_all, name="audit log", daemon=True)
        self._writer.start()

    @classmethod
    def from_config(cls, config: ServerConfig) -> Self | None:
        """The log that the settings ask for, or None."""
        if config.audit_log is None:
            return None
        return cls(config.audit_log, max_bytes=config.audit_log_max_bytes, files=config.audit_log_files)

    @property
    def dropped_total(self) -> int:
        """Entries that are not in the file: there was no room in memory, or the disk took none."""
        return self._refused + self._failed

    def record(self, entry: Mapping[str, object]) -> None:
        """Keeps the entry for the writer, or drops it. Never waits."""
        line = ascii_json(entry) + b"\n"
        if self._accepted_bytes - self._handled_bytes + len(line) > MAX_WAITING_BYTES:
            self._refuse()
            return
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._refuse()
        else:
            self._accepted_bytes += len(line)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Writes what waits, for so long at most; the rest is dropped and counted."""
        try:
            self._waiting.put(_END, timeout=seconds)
        except queue.Full:
            pass
        else:
            self._writer.join(seconds)
        if self._writer.is_alive():
            self._refused += self._waiting.qsize()
            logger.error("the audit log's disk did not take the last entries within %g s", seconds)

    def _refuse(self) -> None:
        if not self._refused:
            logger.error("the audit log's disk is too slow: entries are dropped and counted from now on")
        self._refused += 1

    def _write_all(self) -> None:
        while (line := self._waiting.get()) is not _END:
            try:
                self._file.write(line)
            except OSError as error:
                if not self._failed:
                    logger.error("the audit log can't be written: %s; entries are dropped and counted", error)  # noqa: TRY400 - no trace says more
                self._failed += 1
            self._handled_bytes += len(line)
        self._file.close()


class RotatingFile:
    """Lines in a file that only its owner may read; the full one becomes `.1`, that one `.2`, and the last is removed.

    Unlike the standard library's it has neither buffers nor locks, at which the process's end would wait for a disk
    that does not answer.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """`files` are kept beside the one being written. What is no regular file (a pipe) is never rotated."""
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._torn = False
        self._open()

    def write(self, line: bytes) -> None:
        """Appends a line, ended by a newline. After an `OSError` the next line begins on one of its own."""
        if self._regular and self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        rest = memoryview(b"\n" + line if self._torn else line)
        self._torn = True
        while rest:
            written = os.write(self._descriptor, rest)
            self._size += written
            rest = rest[written:]
        self._torn = False

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> None:
        # Not blocking while it is opened: a FIFO that nobody reads is an error, not a server that never gets ready.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self._path, flags, _OWNER_ONLY)
        os.set_blocking(self._descriptor, True)
        found = os.fstat(self._descriptor)
        self._regular = stat.S_ISREG(found.st_mode)
        self._size = found.st_size

    def _rotate(self) -> None:
        if self._path.exists():  # else it was renamed before and a new one could not be opened
            self._shift()
        full = self._descriptor
        self._open()
        self._torn = False
        os.close(full)

    def _shift(self) -> None:
        numbered = [self._path, *(self._path.with_name(f"{self._path.name}.{n + 1}") for n in range(self._files))]
        for older, newer in zip(reversed(numbered[1:]), reversed(numbered[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
