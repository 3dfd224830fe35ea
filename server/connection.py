"""uvicorn's HTTP connection, with what it says by itself put into the API's words.

Never a request's business: this speaks only where no request could be made out.
"""

from __future__ import annotations

import uuid

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.delivery import identity_headers
from server.wire.errors import ErrorFacts
from server.wire.openai_errors import error_body


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP/1.1 with an error object, and closes."""
        body = error_body(ErrorFacts(400, f"the request is not valid HTTP: {msg}", "invalid_http"))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **identity_headers(uuid.uuid4().hex),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"HTTP/1.1 400 Bad Request\r\n{head}\r\n".encode("ascii") + body)
        self.transport.close()
