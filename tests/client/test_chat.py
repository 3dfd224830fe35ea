"""The chat client: text as it comes, and never an answer that was not whole.

A transport of the tests' own says what no healthy server does; the rest is said by a real one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import pytest

from client.chat import ChatError, chat_loop, first_model, stream_answer
from tests.running_server import RunningServer

BODY = {"messages": [{"role": "user", "content": "hi"}]}


def served(content: bytes, status: int = 200) -> httpx.Client:
    """A client whose server answers everything with these bytes."""
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content))
    return httpx.Client(base_url="http://test", transport=transport)


def chunk(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


def test_text_comes_piece_by_piece() -> None:
    """Deltas are handed on in order; comments, role, finish and usage chunks have no text."""
    content = b": keep-alive\n\n" + b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n' + chunk("a") + chunk("🌶")
    content += b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
    with served(content) as client:
        assert "".join(stream_answer(client, BODY)) == "a🌶"


@pytest.mark.parametrize("content", [b"", chunk("a"), chunk("a") + b"data: [DO", chunk("a")[:-1], b": ping\n\n"])
def test_a_cut_is_an_error(content: bytes) -> None:
    """Without its terminal event a stream was cut, whatever came before."""
    with served(content) as client, pytest.raises(ChatError, match="cut"):
        list(stream_answer(client, BODY))


def test_an_error_event_is_an_error() -> None:
    """What came before it has been handed on; then the server's words are raised."""
    with served(chunk("a") + b'data: {"error":{"message":"it broke"}}\n\n') as client:
        answer: Iterator[str] = stream_answer(client, BODY)
        assert next(answer) == "a"
        with pytest.raises(ChatError, match="it broke"):
            next(answer)


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_a_refusal_is_an_error(status: int) -> None:
    """The status and what the server says of it."""
    with served(b'{"error":{"message":"no"}}', status) as client:
        with pytest.raises(ChatError, match=f"{status}.*no"):
            list(stream_answer(client, BODY))
        with pytest.raises(ChatError, match=f"{status}.*no"):
            first_model(client)


def test_a_server_without_models() -> None:
    """There is nobody to talk to, and that is said."""
    with served(b'{"object":"list","data":[]}') as client, pytest.raises(ChatError, match="no model"):
        first_model(client)


def test_a_conversation(
    echo_server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Turns are read until an empty line; each answer has the whole conversation so far, here echoed."""
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello there\nand again\n\n"))
    chat_loop(echo_server.url, model=None, system="Be brief.", api_key="any")
    said = capsys.readouterr().out
    assert said.count("Be brief.") == 3  # in the second answer as the system turn, and within the first answer
    assert said.count("and again") == 1


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A clear line and exit status 1, no traceback."""
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n\n"))
    with pytest.raises(SystemExit) as ended:
        chat_loop("http://127.0.0.1:9", model=None, system=None, api_key=None)
    assert ended.value.code == 1
    assert "refused" in capsys.readouterr().out
