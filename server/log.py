"""Logging: one JSON line a record, to standard error, by a thread of its own. Never a prompt or an answer.

The event loop never waits for whoever reads the log: lines over the queue's bound are dropped and counted.
"""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any, TextIO

QUEUED_LINES = 10_000
"""Lines kept for a reader that is slow."""
LAST_LINES_SECONDS = 2.0
"""How long the process's end waits for the last lines to leave."""
_LINES_A_WRITE = 256
_requests = logging.getLogger("tailrace.requests")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; what the caller put under `extra={"fields": {...}}` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class QueuedLines(logging.Handler):
    """Formats where it is called, while what the record names is still as it was; writes on a thread of its own.

    Not the library's `QueueHandler` and `QueueListener`: a listener's end waits without a bound for a full pipe.
    """

    def __init__(self, output: TextIO | None = None, capacity: int = QUEUED_LINES) -> None:
        super().__init__()
        self.dropped = 0
        """Lines that found the queue full."""
        self._output = sys.stderr if output is None else output
        self._lines: Queue[str | None] = Queue(capacity)
        self._writer = Thread(target=self._write, name="log writer", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except Full:
            self.dropped += 1
        except Exception:  # noqa: BLE001 - a line that can't be made is reported as the library does, and raises nothing
            self.handleError(record)

    def close(self) -> None:
        """Lets the queued lines out, for a bounded time. `logging` calls it at the process's end."""
        with suppress(Full):
            self._lines.put(None, timeout=LAST_LINES_SECONDS)
            self._writer.join(LAST_LINES_SECONDS)
        super().close()

    def _write(self) -> None:
        """One write for all that is queued: each takes the interpreter's lock from the event loop once."""
        ended = False
        while not ended:
            lines = [self._lines.get()]
            with suppress(Empty):
                while len(lines) < _LINES_A_WRITE:
                    lines.append(self._lines.get_nowait())
            ended = None in lines
            with suppress(OSError, ValueError):  # nobody reads the log any more
                self._output.write("".join(f"{line}\n" for line in lines if line is not None))
                self._output.flush()


def log_request(record: Mapping[str, Any]) -> None:
    """The one line of a request: its account's record, when that is complete."""
    _requests.info("%s", record["end_state"], extra={"fields": dict(record)})


def dropped_lines() -> int:
    """Lines of the log that were dropped since the process began."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, QueuedLines))


def configure_logging(level: str) -> None:
    """Everything below the root logger goes through the JSON formatter; uvicorn's own access lines are off."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": JsonFormatter}},
            "handlers": {"stderr": {"()": QueuedLines, "formatter": "json"}},
            "root": {"level": level.upper(), "handlers": ["stderr"]},
            "loggers": {"uvicorn.access": {"level": "WARNING"}},
        }
    )
