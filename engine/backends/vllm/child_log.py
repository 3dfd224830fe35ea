"""How vLLM's own processes log: warnings and worse, one JSON line a record, to standard error, beside the server's.

Never to standard output, which belongs to the server's ready line. In the server's own process vLLM's records go where
all go.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

CHILD_LOGGING = Path(__file__).with_name("child_logging.json")
"""For `logging.config.dictConfig`, which makes the handler that is here."""


EXPECTED = ("Using custom scheduler class",)
"""How messages begin that warn of what this project does on purpose."""


class Unexpected(logging.Filter):
    """Keeps to itself what is `EXPECTED`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(EXPECTED)


class ChildFormatter(logging.Formatter):
    """A record as one line of JSON, with the process that it comes from."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.processName,
            "pid": record.process,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class ChildHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error, and takes Python's own warnings too, which else are lines of text."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(ChildFormatter())
        self.addFilter(Unexpected())
        logging.captureWarnings(True)
