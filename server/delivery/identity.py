"""The id of a request, said in every answer. Never the client's own word for it, but for the log."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIdentity:
    """Plain ASGI middleware: every request has an id, and every answer says it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        stamp = [(name.encode(), value.encode()) for name, value in identity_headers(request_id).items()]

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *stamp]
            await send(message)

        await self._app(scope, receive, stamped)


def identity_headers(request_id: str) -> dict[str, str]:
    """The request's id under the names that OpenAI's and Anthropic's SDKs read."""
    return {"x-request-id": request_id, "request-id": request_id}


def client_request_id(headers: Mapping[str, str]) -> str | None:
    """The id that the client gave its request, if it is a printable one: for the log only."""
    value = headers.get("x-request-id", "")
    return value if _CLIENT_ID.fullmatch(value) else None
