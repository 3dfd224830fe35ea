"""What uvicorn's request cycle lacks: HTTP/1.0's and unread requests' answers, and a short way for a stream's frames.

Never what an answer says: its messages pass, and only their framing is another.
"""

from __future__ import annotations

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def chunk_written(cycle: RequestResponseCycle | None, data: bytes) -> bool:
    """Does what `cycle.send` does with one more part of a chunked body that goes on; False: it is another case.

    Five coroutines lie between an answer and that method, and to a body's parts they do nothing: a third of what a
    token's frame costs besides the kernel. Source: uvicorn's `RequestResponseCycle.send`.
    """
    if cycle is None or not data or not cycle.chunked_encoding or cycle.disconnected or cycle.response_complete:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True


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
