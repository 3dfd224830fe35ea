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

from server.auth import ApiKeys
from server.wire.errors import WireError
from tests.running_server import RunningServer
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


@pytest.mark.parametrize("configured", [KEY, "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()])
@pytest.mark.parametrize(("headers", "good"), [(row, True) for row in GOOD] + [(row, False) for row in BAD])
def test_keys(configured: str, headers: Headers, good: bool) -> None:
    """The right key lets in, by either header and as text or hash; nothing else does, and all are told the same."""
    keys = ApiKeys(["other", configured])
    for path in ("/v1/models", CHAT, "/tokenize", "/detokenize"):
        if good:
            keys.check(path, headers)
        else:
            with pytest.raises(WireError) as raised:
                keys.check(path, headers)
            assert (raised.value.status, raised.value.code) == (401, "invalid_api_key")
            assert str(raised.value).startswith("a valid API key is needed")


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/"])
def test_what_needs_no_key(path: str) -> None:
    """The operator's own routes are open."""
    ApiKeys([KEY]).check(path, {})


def test_without_keys_the_server_is_open() -> None:
    """No configured key, no check."""
    ApiKeys([]).check(CHAT, {})


def test_a_key_of_any_characters() -> None:
    """Header text is bytes: a key that was configured in UTF-8 is found however HTTP libraries decode it."""
    key = "clé-🌶"
    ApiKeys([key]).check(CHAT, {"x-api-key": key.encode().decode("latin-1")})


@pytest.fixture(scope="module")
def guarded(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a key."""
    flags = ("--engine", "simulated", "--model", str(demo_model), "--set", f"server.api_keys={KEY}")
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
