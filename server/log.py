"""Logging: one JSON line a record, to standard error. Never a prompt or an answer."""

from __future__ import annotations

import json
import logging
import logging.config
from datetime import UTC, datetime
from typing import Any

from server.account import Account

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


def log_account(account: Account) -> None:
    """The one line of a request."""
    _requests.info("%s", account.end_state.value, extra={"fields": account.as_record()})


def configure_logging(level: str) -> None:
    """Everything below the root logger goes through the JSON formatter; uvicorn's own access lines are off."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": JsonFormatter}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"level": level.upper(), "handlers": ["stderr"]},
            "loggers": {"uvicorn.access": {"level": "WARNING"}},
        }
    )
