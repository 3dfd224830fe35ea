"""The HTTP status and type of every error, in one table: each dialect puts them in its own shape.

Never a stack trace or a path on the wire: what a server fault says to a client is its kind and the request id.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import (
    EngineControlError,
    EngineError,
    EngineOverloadedError,
    EngineUnavailableError,
    GenerationFailedError,
    InvalidRequestError,
)


class WireError(Exception):
    """A fault of the request that only HTTP knows: no such route, no such model, no key, too large."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What a dialect's error shape is made of."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    """Seconds, for the Retry-After header."""


INTERNAL_MESSAGE = "the server failed on this request; its log has the reason under the request id"


def facts_of(error: BaseException) -> ErrorFacts:
    """The one mapping from what went wrong to what the client is told."""
    match error:
        case WireError():
            return ErrorFacts(error.status, error.message, error.code, error.param)
        case InvalidRequestError():
            return ErrorFacts(400, error.message, error.code, error.param)
        case EngineControlError():
            return ErrorFacts(400, error.message, "engine_control_failed", error.param)
        case EngineOverloadedError():
            return ErrorFacts(429, error.message, error.code, retry_after=error.retry_after)
        case EngineUnavailableError():
            return ErrorFacts(503, error.message, "engine_unavailable", retry_after=error.retry_after)
        case GenerationFailedError():
            return ErrorFacts(500, error.message, "generation_failed")
        case EngineError():
            return ErrorFacts(500, INTERNAL_MESSAGE, "engine_error")
        case _:
            return ErrorFacts(500, INTERNAL_MESSAGE, "internal_error")
