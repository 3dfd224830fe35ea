"""Reported faults of event streams: what a stream's bytes are, how it fails, and what it leaves out.

Answers are read by the official OpenAI SDK and by readers that split lines in every way that clients do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from client.sse import SSEDecoder
from tests.running_server import RunningServer, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import CHAT, COMPLETIONS, Reply, chunks, chunks_of, folded, streamed, whole
from tests.server.reported_cases import CASES, body_of


def sdk_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def silent(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A token every 100 ms, with ten comments between two."""
    flags = simulated(demo_model, "engine.step_interval_ms=100", "server.keepalive_seconds=0.01")
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("silent")) as server:
        yield server


def test_sse_01_comments_without_ids(silent: RunningServer) -> None:
    """The SDK reads on over comments before the first token and between tokens: no block of theirs follows an id."""
    script: dict[str, Any] = {"simulate": {"token_ids": [905] * 4, "then": "eos"}}
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **script}
    raw = silent.post(CHAT, body).content
    assert raw.count(b"\n:") > 8
    assert not re.search(rb"^(id|retry|event)", raw, re.MULTILINE)
    with (
        sdk_of(silent) as sdk,
        sdk.chat.completions.create(
            model=sdk.models.list().data[0].id,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            extra_body=script,
        ) as stream,
    ):
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == " world" * 4


def lines_of_the_standard(body: bytes) -> list[str]:
    """As a reader by the letter of the standard splits them."""
    return re.split(r"\r\n|\n|\r", body.decode())


def test_sse_02_every_reader_hears_the_same(echo_server: RunningServer, http: httpx.Client) -> None:
    """Line separators in the text are no line ends of the stream, in whatever charset and way it is split."""
    response = http.post(CHAT, json=body_of("SSE-02", echo_server))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert max(response.content) < 0x80
    readings = {
        "httpx": list(response.iter_lines()),
        "requests": response.content.decode("latin-1").splitlines(),  # what its iter_lines does to decoded text
        "the standard": lines_of_the_standard(response.content),
    }
    for lines in readings.values():
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert [line for line in lines if line] == [f"data: {part}" for part in data]
        assert data.pop() == "[DONE]"
        assert folded(map(json.loads, data)).text == CASES["SSE-02"]["text"]
    for size in (1, 7, len(response.content)):
        decoder = SSEDecoder()
        pieces = (response.content[at : at + size] for at in range(0, len(response.content), size))
        data = [event.data for piece in pieces for event in decoder.feed(piece)]
        assert folded(map(json.loads, data[:-1])).text == CASES["SSE-02"]["text"]


@pytest.fixture(scope="module")
def failing(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Each sequence fails in the engine's step with its second token."""
    flags = simulated(demo_model, "engine.step_interval_ms=5", "engine.faults.fail_after_tokens=2")
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("failing")) as server:
        yield server


def failing_script(*steps: int) -> dict[str, Any]:
    return {"token_ids": [905] * 4, "steps": list(steps), "then": "eos"}


def test_sse_04_the_sdk_raises(failing: RunningServer) -> None:
    """After the first delta."""
    body = body_of("SSE-04", failing)
    heard: list[str] = []
    with (
        sdk_of(failing) as sdk,
        sdk.chat.completions.create(
            model=body["model"],
            messages=body["messages"],
            stream=True,
            extra_body={"simulate": failing_script(1, 1)},
        ) as stream,
        pytest.raises(openai.APIError),
    ):
        heard.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(heard).startswith(" world")


def test_sse_04_the_raw_stream_ends(failing: RunningServer) -> None:
    """With an error event and nothing after it: no finish reason, no success terminal, no cut."""
    body = body_of("SSE-04", failing, simulate=failing_script(1, 1))
    with OpenRequest(failing.url, CHAT, body) as request:
        *events, last = [json.loads(event.removeprefix(b"data: ")) for event in request.all_events()]
    assert set(last["error"]) == {"message", "type", "code", "param"}
    assert [choice["finish_reason"] for event in events for choice in event["choices"]] == [None] * len(events)


@pytest.mark.parametrize("stream", [True, False])
def test_sse_04_before_the_first_token(failing: RunningServer, stream: bool) -> None:
    """The same failure is a 5xx with the error object."""
    response = failing.post(CHAT, body_of("SSE-04", failing, stream=stream, simulate=failing_script(2)))
    assert response.status_code >= 500
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()["error"]) == {"message", "type", "code", "param"}


def logprobs_of(reply: Reply) -> list[float | None]:
    """Every log probability in a completion: the tokens' own and the alternatives'."""
    told = reply.choices[0].logprobs
    return [*told["token_logprobs"], *(value for entry in told["top_logprobs"] for value in entry.values())]


@pytest.mark.real_model
@pytest.mark.parametrize("biased", [False, True])
def test_sse_09_log_probabilities_are_finite(model_server: RunningServer, biased: bool) -> None:
    """Also where all tokens but one are masked, and where the likeliest is banned; the JSON is strict."""
    body = body_of("SSE-09", model_server, echo=False)
    with httpx.Client(base_url=model_server.url, timeout=60) as http:
        top = whole(http, COMPLETIONS, body | {"max_tokens": 1}).text
        (top_id,) = http.post("/tokenize", json={"prompt": top, "add_special_tokens": False}).json()["tokens"]
        body |= {"logit_bias": {str(top_id): -100}} if biased else {}
        replies = [whole(http, COMPLETIONS, body), streamed(http, COMPLETIONS, body)]
    for reply in replies:
        assert reply.text.startswith(top) != biased
        assert len(reply.choices[0].logprobs["tokens"]) == 2
        assert all(value is None or math.isfinite(value) for value in logprobs_of(reply))
    assert replies[0].choices == replies[1].choices


@pytest.mark.real_model
@pytest.mark.parametrize("model_flags", ["transformers"], indirect=True, scope="session")
def test_sse_09_under_a_grammars_mask(model_server: RunningServer) -> None:
    """Where a grammar leaves two tokens of 49,152, the rest have finite log probabilities or are not told."""
    body = body_of("SSE-09", model_server, echo=False, structured_outputs={"regex": "[ab]{8}"})
    with httpx.Client(base_url=model_server.url, timeout=60) as http:
        replies = [whole(http, COMPLETIONS, body), streamed(http, COMPLETIONS, body)]
    for reply in replies:
        assert set(reply.text) <= {"a", "b"}
        assert all(value is None or math.isfinite(value) for value in logprobs_of(reply))
    assert replies[0].choices == replies[1].choices


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "none"}, {"logprobs": True, "n": 2}, {"tools": None}], ids=str)
def test_sse_11_what_is_empty_is_left_out(
    echo_server: RunningServer, http: httpx.Client, fields: dict[str, Any]
) -> None:
    """No delta has a key for what it does not bring, also where tools are offered."""
    body = body_of("SSE-11", echo_server, **fields)
    for chunk in chunks(http, CHAT, body):
        for choice in chunk["choices"]:
            assert set(choice["delta"]) <= {"role", "content"}


def test_sse_11_tokens_without_text(http: httpx.Client) -> None:
    """A step that says nothing makes no chunk with an empty text."""
    script = {"token_ids": [905, 3, 3, 905], "then": "eos"}
    body = {"messages": [{"role": "user", "content": "hi"}], "simulate": script, "stream": True}
    _, *words, end = chunks_of(http.post(CHAT, json=body).content)
    assert [chunk["choices"][0]["delta"] for chunk in words] == [{"content": " world"}] * 2
    assert end["choices"][0]["delta"] == {}
