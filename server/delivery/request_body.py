"""A request's body, read within bounds of size and time. Never a look into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.types import Receive

from server.delivery.departures import ClientGoneError
from server.wire.errors import WireError

BODY_SECONDS = 60.0
"""How long a request's body may take to come."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a request's body may be."""

    size_bytes: int
    came: Callable[[int], None] = lambda _: None
    """Hears of the bytes of each part as they come; it may raise, to refuse the rest."""
    seconds: float = BODY_SECONDS


async def read_body(receive: Receive, headers: Mapping[str, str], limits: BodyLimits) -> bytes:
    """The whole request body. `ClientGoneError` on a cut.

    A `WireError` 413 as soon as it is known to be too large, 408 when it is not whole in time.
    """
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.size_bytes:
        raise _too_large(limits.size_bytes)
    try:
        async with asyncio.timeout(limits.seconds):
            return await _joined(receive, limits)
    except TimeoutError:
        message = f"the request body did not come within {limits.seconds:g} s"
        raise WireError(408, message, code="request_timeout") from None


async def _joined(receive: Receive, limits: BodyLimits) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limits.size_bytes:
            raise _too_large(limits.size_bytes)
        limits.came(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit_bytes: int) -> WireError:
    return WireError(413, f"the request body is larger than {limit_bytes} bytes", code="request_too_large")
