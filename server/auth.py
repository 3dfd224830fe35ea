"""API keys, checked before a body is read: constant-time, by hash, under Bearer and x-api-key alike.

Never a key in a log or an answer: what is known of a request's key from here on is its record, under its name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import ConfigError
from server.config import SHA256_PREFIX, ApiKeyConfig, ServerConfig
from server.wire.errors import WireError

PROTECTED = ("/v1/", "/tokenize", "/detokenize")
"""Paths that need a key; health, readiness and metrics are for the operator's own network."""


ADMIN = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/is_sleeping"})
"""Paths for operators: closed on a server that names no operator's key, also if it is open otherwise."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Whose request it is, and what that one may use. A bound of None is none."""

    name: str
    """Unique, and safe for logs and as a metric's label."""
    max_concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt tokens and generated ones together."""
    admin: bool = False


class ApiKeys:
    """The keys that are let in, by their hashes."""

    def __init__(self, config: ServerConfig) -> None:
        entries = (*config.api_keys, *config.admin_keys)
        self._known = [(_configured_digest(entry.key), _record(entry, config)) for entry in entries]
        self._is_open = not config.api_keys
        self._has_admin = any(entry.admin for entry in entries)

    def check(self, path: str, headers: Mapping[str, str]) -> ApiKey | None:
        """The key of a request that may come in, None where none is needed. Else a 401, the same for every reason.

        An operator's path is a 403 for a key that is no operator's, and for all where there is none.
        """
        if path in ADMIN:
            return self._admin(headers)
        if self._is_open or not path.startswith(PROTECTED):
            return None
        return self._found(headers)

    def _admin(self, headers: Mapping[str, str]) -> ApiKey:
        if not self._has_admin:
            message = "this server has no key for operators: set server.admin_keys (tailrace hash-key makes an entry)"
            raise WireError(403, message, code="admin_key_required")
        key = self._found(headers)
        if not key.admin:
            raise WireError(
                403, "this is for operators: their keys are in server.admin_keys", code="admin_key_required"
            )
        return key

    def _found(self, headers: Mapping[str, str]) -> ApiKey:
        found = [key for shown in _presented(headers) for key in self._matching(shown)]
        if not found:
            message = "a valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            raise WireError(401, message, code="invalid_api_key")
        return found[0]

    def _matching(self, shown: bytes) -> list[ApiKey]:
        digest = _digest(shown)
        # Every digest is compared, so that the time tells nothing of which one was near.
        return [key for known, key in self._known if hmac.compare_digest(digest, known)]


def refuse_unguarded(config: ServerConfig) -> None:
    """`ConfigError` for a server without keys that others than this machine could reach, unless that is wanted."""
    if not (config.api_keys or config.allow_open or _is_loopback(config.host)):
        raise ConfigError(
            f"without API keys everyone who reaches {config.host or 'this machine'} could use the model: set "
            "server.api_keys (tailrace hash-key), or server.allow_open=true where the network is guarded, "
            "or listen on 127.0.0.1"
        )


def hashed(key: str) -> str:
    """The form in which a config file can hold a key."""
    return SHA256_PREFIX + _digest(key.encode()).hex()


def _record(entry: ApiKeyConfig, config: ServerConfig) -> ApiKey:
    return ApiKey(
        name=entry.name,
        max_concurrent=entry.max_concurrent or config.key_max_concurrent,
        requests_per_minute=entry.requests_per_minute or config.key_requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute or config.key_tokens_per_minute,
        admin=entry.admin,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _presented(headers: Mapping[str, str]) -> list[bytes]:
    """The keys that a request shows; header text is latin-1, as HTTP has it."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [headers.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else ""]
    return [key.strip().encode("latin-1", "replace") for key in keys if key.strip()]


def _configured_digest(key: str) -> bytes:
    if key.startswith(SHA256_PREFIX):
        return bytes.fromhex(key.removeprefix(SHA256_PREFIX))
    return _digest(key.encode())


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
