"""A request that can't be served is told so: a 4xx, the field's name, the same for a stream; and nothing comes of it.

Never a 5xx, never a stream that begins and fails, never a neighbour that suffers.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer
from tests.server.bad_requests import BODIES, ROWS, Bad
from tests.server.replies import CHAT, COMPLETIONS, MESSAGES, whole


@pytest.fixture(autouse=True)
def nothing_left(http: httpx.Client) -> Iterator[None]:
    """After each test a normal request succeeds, and nothing is left running."""
    yield
    assert whole(http, COMPLETIONS, {"prompt": [905]}).text == " world"
    lines = http.get("/metrics").text.splitlines()
    busy = ("tailrace_sequences_running", "tailrace_sequences_waiting", "tailrace_kv_blocks_used")
    assert [line for line in lines if line.startswith(busy)] == [f"{name} 0.0" for name in busy]


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error object of an answer of this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.content.isascii()
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    return dict(error)


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{rank}-{row.param}") for rank, row in enumerate(ROWS)])
def test_a_bad_field_is_named(http: httpx.Client, row: Bad) -> None:
    """Status and error are the same whether a stream was asked for or not, and `param` is the field."""
    ways = [{"stream": True}, {}, {"stream": False}]
    if "stream_options" in row.fields:
        ways = ways[:1]  # a whole answer has no such options, and says so
    errors = [error_of(http.post(row.path, json={**row.body, **way}), row.status) for way in ways]
    assert all(error == errors[0] for error in errors)
    assert errors[0]["param"] == row.param
    assert " instance of " not in errors[0]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request(http: httpx.Client, path: str, name: str) -> None:
    """What is not a JSON object of the route's kind is a 400 that says so."""
    error_of(http.post(path, content=BODIES[name]))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_stream_is_a_boolean(http: httpx.Client, path: str) -> None:
    """Nothing else stands for true, and no usage can be asked of a whole answer."""
    valid = {"messages": MESSAGES} if path == CHAT else {"prompt": [905]}
    values: list[Any] = ["yes", "true", 1, 0, [], {}]
    for value in values:
        assert error_of(http.post(path, json={**valid, "stream": value}))["param"] == "stream"
    ways: list[dict[str, Any]] = [{}, {"stream": False}, {"stream": None}]
    for stream in ways:
        error = error_of(http.post(path, json={**valid, **stream, "stream_options": {"include_usage": True}}))
        assert error["param"] == "stream_options"


def test_the_last_of_two_equal_fields_counts(http: httpx.Client) -> None:
    """A field sent twice is the last one, as in every JSON reader of Python's: it is validated like any other."""
    body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "max_tokens": -1}'
    assert error_of(http.post(CHAT, content=body))["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
    ],
)
def test_bad_fields_of_the_tokenizer_routes(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    """They answer like the others."""
    assert error_of(http.post(path, json=body))["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", COMPLETIONS, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("OPTIONS", CHAT, 405),
        ("GET", "/nope", 404),
        ("POST", "/v1/nope", 404),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/v1/models/%ff%00%F0%9F%98%80", 404),
        ("GET", "/../../etc/passwd", 404),
    ],
)
def test_a_path_or_method_that_is_not_here(http: httpx.Client, method: str, path: str, status: int) -> None:
    """Routing errors have the same shape; a wrong method says the right ones."""
    response = http.request(method, path)
    error_of(response, status)
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit(http: httpx.Client, declared: bool) -> None:
    """20 MB are a 413, whether their length was declared or is found out on the way."""
    content: Any = b" " * 20_000_000 if declared else (b" " * 1_000_000 for _ in range(20))
    assert error_of(http.post(CHAT, content=content), 413)["code"] == "request_too_large"


LINES = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
RAW: dict[str, bytes] = {
    "negative length": f"{LINES}Content-Length: -1\r\n\r\n{{}}".encode(),
    "length of letters": f"{LINES}Content-Length: abc\r\n\r\n{{}}".encode(),
    "length of 23 digits": f"{LINES}Content-Length: 99999999999999999999999\r\n\r\n{{}}".encode(),
    "length over the limit, body never sent": f"{LINES}Content-Length: 9999999999\r\n\r\n".encode(),
    "two lengths": f"{LINES}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}".encode(),
    "length and chunks": f"{LINES}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{{}}".encode(),
    "bad chunk size": f"{LINES}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
    "no body and no length": f"{LINES}\r\n".encode(),
    "percent-encoding of no byte": b"GET /v1/models/%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "percent-encoded surrogate": b"GET /v1/models/%ED%A0%80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "raw byte in the path": b"GET /\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01",
    "no HTTP": b"hello\r\n\r\n",
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_no_client_library_sends(echo_server: RunningServer, name: str) -> None:
    """Whatever comes over the socket, the answer is a 4xx with an error object and an id, and the connection ends."""
    url = httpx.URL(echo_server.url)
    with closing(socket.create_connection((url.host, url.port or 80), timeout=10)) as connection:
        connection.sendall(RAW[name])
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 4"), answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nx-request-id: " in head
    assert json.loads(body)["error"]["message"]


def test_edges_of_the_context(http: httpx.Client) -> None:
    """A prompt that leaves room for one token gets one; without `max_tokens` a chat gets what is left."""
    reply = whole(http, COMPLETIONS, {"prompt": [905] * 8_191, "max_tokens": 1})
    assert (reply.text, reply.finish_reason) == (" world", "length")
    assert reply.usage is not None
    assert reply.usage["total_tokens"] == 8_192


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": []},
        {"stop": ["x"] * 1_000},
        {"logit_bias": {}},
        {"stop_token_ids": []},
        {"top_k": -1},
        {"temperature": 0},
        {"temperature": 2},
        {"seed": -(2**63)},
        {"tools": []},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None, "guided_json_object": False},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "assistant", "content": "only"}]},
        {"messages": [{"role": "user", "content": "\x00\u2028"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
        {"user": "someone", "metadata": {"a": "b"}, "store": False},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_what_is_odd_but_fine(http: httpx.Client, fields: dict[str, Any]) -> None:
    """The door is not stricter than its contract: edges and fields that ask for nothing are served."""
    assert whole(http, CHAT, {"messages": MESSAGES, "max_tokens": 2, **fields}).finish_reason == "length"
