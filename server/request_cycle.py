"""What uvicorn's request cycle lacks: answers of unknown length to HTTP/1.0, and to bodies that were not asked for.

Never what an answer says: its messages pass, and only their framing is another.
"""

from __future__ import annotations

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


async def without_chunks(
    app: ASGI3Application,
    cycle: RequestResponseCycle,
    scope: Scope,
    receive: ASGIReceiveCallable,
    _send: ASGISendCallable,
) -> None:
    """HTTP/1.0 knows no chunks: a body of unknown length goes out as it is, and ends with the connection."""
    declared = False

    async def unframed(message: ASGISendEvent) -> None:
        nonlocal declared
        if message["type"] == "http.response.start":
            declared = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = None if declared else False
        elif message["type"] == "http.response.body" and not declared:
            cycle.expected_content_length = len(message.get("body", b""))  # each part is all that uvicorn expects
        await cycle.send(message)

    await app(scope, receive, unframed)


async def closing_if_unread(
    app: ASGI3Application,
    cycle: RequestResponseCycle,
    scope: Scope,
    receive: ASGIReceiveCallable,
    _send: ASGISendCallable,
) -> None:
    """A client that asked before it sends its body, and is answered without, is told that the connection closes.

    Else it may or may not send the body, and nobody knows what its next bytes are. Source: RFC 9110, 10.1.1.
    """

    async def closing(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start" and cycle.waiting_for_100_continue:
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await cycle.send(message)

    await app(scope, receive, closing)
