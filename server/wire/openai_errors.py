"""OpenAI's error object, for every status, and as the last event of a stream that failed after its headers.

Source: the error codes guide of the OpenAI API; the Python SDK reads `message`, `type`, `param` and `code`.
"""

from __future__ import annotations

from server.wire.errors import ErrorFacts
from server.wire.sse import ascii_json, frame

_TYPES = {429: "rate_limit_error", 503: "service_unavailable_error"}


def error_object(facts: ErrorFacts) -> dict[str, dict[str, str | None]]:
    """The body of an error answer: what, whose fault (`type`), which field (`param`)."""
    default = "invalid_request_error" if facts.status < 500 else "server_error"
    kind = _TYPES.get(facts.status, default)
    return {"error": {"message": facts.message, "type": kind, "param": facts.param, "code": facts.code}}


def error_body(facts: ErrorFacts) -> bytes:
    return ascii_json(error_object(facts))


def error_frame(facts: ErrorFacts) -> bytes:
    """The event that ends a failed stream; no `[DONE]` follows it."""
    return frame(error_object(facts))
