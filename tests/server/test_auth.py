"""API keys: one 401 for every reason, before a body is read, whatever the header's bytes; nothing of a key is told."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from engine.errors import ConfigError
from server.auth import ApiKey, ApiKeys, hashed, refuse_unguarded
from server.config import ApiKeyConfig, ServerConfig
from server.wire.errors import WireError
from tests.running_server import RunningServer, simulated
from tests.server.replies import CHAT, MESSAGES

KEY = "sk-right"
Headers = dict[str, str]
GOOD: list[Headers] = [
    {"authorization": f"Bearer {KEY}"},
    {"authorization": f"bearer {KEY}"},
    {"authorization": f"BEARER {KEY}"},
    {"x-api-key": KEY},
    {"authorization": "Bearer wrong", "x-api-key": KEY},
    {"authorization": f"Bearer {KEY} "},  # blanks around a header's value are no part of it (RFC 9110, 5.5)
]
BAD: list[Headers] = [
    {},
    {"authorization": "Bearer clé"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer"},
    {"authorization": ""},
    {"authorization": "Basic abc"},
    {"authorization": KEY},
    {"authorization": f"Token {KEY}"},
    {"authorization": f"Bearer {KEY}x"},
    {"authorization": f"Bearer {KEY[:-1]}"},
    {"authorization": f"Bearer {KEY.upper()}"},
    {"authorization": "Bearer sha256:" + hashlib.sha256(KEY.encode()).hexdigest()},
    {"x-api-key": "ÿþ"},
    {"x-api-key": ""},
    {"authorization": "Bearer " + "A" * 20_000},
]


def known(*keys: str) -> ApiKeys:
    """Of a server with these keys."""
    return ApiKeys(ServerConfig(api_keys=tuple(ApiKeyConfig(key=key) for key in keys)))


@pytest.mark.parametrize("configured", [KEY, "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()])
@pytest.mark.parametrize(("headers", "good"), [(row, True) for row in GOOD] + [(row, False) for row in BAD])
def test_keys(configured: str, headers: Headers, good: bool) -> None:
    """The right key lets in, by either header and as text or hash; nothing else does, and all are told the same."""
    keys = known("other", configured)
    for path in ("/v1/models", CHAT, "/tokenize", "/detokenize"):
        if good:
            assert keys.check(path, headers) == ApiKey("key-2")
        else:
            with pytest.raises(WireError) as raised:
                keys.check(path, headers)
            assert (raised.value.status, raised.value.code) == (401, "invalid_api_key")
            assert str(raised.value).startswith("a valid API key is needed")


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/"])
def test_what_needs_no_key(path: str) -> None:
    """The operator's own routes are open."""
    assert known(KEY).check(path, {}) is None


def test_without_keys_the_server_is_open() -> None:
    """No configured key, no check, whatever is shown."""
    assert known().check(CHAT, {}) is None
    assert known().check(CHAT, {"x-api-key": KEY}) is None


def test_a_key_of_any_characters() -> None:
    """Header text is bytes: a key that was configured in UTF-8 is found however HTTP libraries decode it."""
    key = "clé-🌶"
    assert known(key).check(CHAT, {"x-api-key": key.encode().decode("latin-1")}) == ApiKey("key-1")


def test_a_key_brings_its_name_and_bounds() -> None:
    """Its own bounds win over those for all keys; what neither names is unbounded; the hash is of the key as it is."""
    entries = (
        ApiKeyConfig(name="ann", key="a", max_concurrent=2, admin=True),
        ApiKeyConfig(key=hashed("b"), tokens_per_minute=9),
    )
    keys = ApiKeys(ServerConfig(api_keys=entries, key_max_concurrent=5, key_requests_per_minute=7))
    assert keys.check(CHAT, {"x-api-key": "a"}) == ApiKey("ann", 2, 7, None, admin=True)
    assert keys.check(CHAT, {"x-api-key": "b"}) == ApiKey("key-2", 5, 7, 9, admin=False)


def test_a_key_is_in_no_representation() -> None:
    """Settings may be logged: their text does not show a key."""
    config = ServerConfig(api_keys=(ApiKeyConfig(key="sk-secret"),))
    assert "sk-secret" not in f"{config!r} {config}"


@pytest.mark.parametrize(
    ("host", "open_"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - the host that is refused
        ("::", False),
        ("", False),
        ("192.168.1.4", False),
        ("myhost", False),
        ("localhost.example.org", False),
    ],
)
def test_open_means_loopback(host: str, open_: bool) -> None:
    """Without a key a server listens on this machine only, unless its operator says that the network is guarded."""
    refuse_unguarded(ServerConfig(host=host, allow_open=True))
    refuse_unguarded(ServerConfig(host=host, api_keys=(ApiKeyConfig(key=KEY),)))
    if open_:
        refuse_unguarded(ServerConfig(host=host))
    else:
        with pytest.raises(ConfigError, match="without API keys everyone who reaches"):
            refuse_unguarded(ServerConfig(host=host))


@pytest.fixture(scope="module")
def guarded(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a key."""
    flags = simulated(demo_model, f"server.api_keys={KEY}")
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("guarded")) as server:
        yield server


def asked(server: RunningServer, method: str, path: str, headers: Headers, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of an answer. The standard library sends headers as they are, httpx only good ones."""
    address = httpx.URL(server.url)
    with closing(http.client.HTTPConnection(address.host, address.port, timeout=10)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        assert response.headers["x-request-id"]
        assert (response.headers["www-authenticate"] == "Bearer") == (response.status == 401)
        return response.status, response.read()


@pytest.mark.parametrize("headers", BAD)
def test_no_key_no_entry(guarded: RunningServer, headers: Headers) -> None:
    """A refused body is not parsed, so a bad one is a 401 as well; every refusal is the same; never a 5xx."""
    status, told = asked(guarded, "GET", "/v1/models", headers)
    assert status == 401
    assert json.loads(told)["error"]["code"] == "invalid_api_key"
    for method, path in (("POST", CHAT), ("POST", "/v1/nope"), ("POST", "/tokenize")):
        assert asked(guarded, method, path, headers, b"{ no JSON") == (401, told)


@pytest.mark.parametrize("headers", GOOD)
def test_the_key_opens(guarded: RunningServer, headers: Headers) -> None:
    """Then the routes answer as they do without keys."""
    assert asked(guarded, "GET", "/v1/models", headers)[0] == 200
    assert asked(guarded, "POST", CHAT, headers, b"{ no JSON")[0] == 400
    body = json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode()
    assert asked(guarded, "POST", CHAT, headers, body)[0] == 200


def test_no_key_is_ever_logged(guarded: RunningServer) -> None:
    """Neither the right key nor one that was tried stands in the log."""
    for headers in (GOOD[0], BAD[8]):
        asked(guarded, "POST", CHAT, headers, b"{ no JSON")
    assert KEY not in guarded.log_file.read_text()
