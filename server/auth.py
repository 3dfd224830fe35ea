"""API keys, checked before a body is read: constant-time, by hash, under Bearer and x-api-key alike.

Never a key in a log or an answer. Without configured keys the server is open, and says so when it starts.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from server.wire.errors import WireError

PREFIX = "sha256:"
PROTECTED = ("/v1/", "/tokenize", "/detokenize")
"""Paths that need a key; health, readiness and metrics are for the operator's own network."""


class ApiKeys:
    """The hashes of the keys that are let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [
            bytes.fromhex(key.removeprefix(PREFIX)) if key.startswith(PREFIX) else _digest(key.encode()) for key in keys
        ]

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raises a 401 `WireError`, the same for every reason."""
        if not self._digests or not path.startswith(PROTECTED):
            return
        if not any(self._known(key) for key in _presented(headers)):
            message = "a valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            raise WireError(401, message, code="invalid_api_key")

    def _known(self, key: bytes) -> bool:
        digest = _digest(key)
        # Every digest is compared, so that the time tells nothing of which one was near.
        return sum([hmac.compare_digest(digest, known) for known in self._digests]) > 0


def _presented(headers: Mapping[str, str]) -> list[bytes]:
    """The keys that a request shows; header text is latin-1, as HTTP has it."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [headers.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else ""]
    return [key.strip().encode("latin-1", "replace") for key in keys if key.strip()]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
