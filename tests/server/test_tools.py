"""Tool calls and reasoning over HTTP: whatever is said, the stream folds to the whole answer, and ends as it should.

The model is the simulated engine, which is told what to say; how real models write is the parsers' tests' business.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.running_server import RunningServer, simulated
from tests.server.replies import CHAT, Reply, chunks, scripted, streamed, whole

GET = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "get", "arguments": {"id": "é🌶"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
PIECES = [CALL, SECOND, "<tool_call>", "</tool_call>", "<think>", "</think>", "\n", "Let me see. ", "🌶", "<"]


@pytest.fixture(scope="module")
def thinker(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The simulated engine, whose answers are read as a reasoning model's."""
    flags = simulated(demo_model, "engine.step_interval_ms=1", "engine.reasoning_parser=qwen3")
    with (
        RunningServer(*flags, log_folder=tmp_path_factory.mktemp("thinker")) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def encode(demo_model: Path) -> Any:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def both_ways(http: httpx.Client, ids: Sequence[int], steps: Sequence[int] = (), **fields: Any) -> Reply:
    """The reply that the stream and the whole answer agree on."""
    body = scripted(CHAT, ids, steps=steps, then=fields.pop("then", "eos")) | fields
    stream, answer = streamed(http, CHAT, body), whole(http, CHAT, body)
    for reply in (stream, answer):
        for call in itertools.chain.from_iterable(choice.calls for choice in reply.choices.values()):
            assert call.pop("id").startswith("call_"), "each answer's calls have ids of their own"
    assert stream == answer
    return answer


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=6), steps=st.lists(st.integers(1, 9), max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_stream_folds_to_the_whole(thinker: httpx.Client, encode: Any, pieces: list[str], steps: list[int]) -> None:
    """For texts of markers and parts of them, in any steps: reasoning, content, calls, reason and usage."""
    ids = encode("".join(pieces))
    reply = both_ways(thinker, ids, steps, tools=[GET, NOW])
    again = both_ways(thinker, ids, [len(ids)] if ids else [], tools=[GET, NOW])
    assert reply == again
    assert (reply.finish_reason == "tool_calls") == bool(reply.choices[0].calls)
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == len(ids)


def test_reasoning_content_and_calls(thinker: httpx.Client, encode: Any) -> None:
    """Each in its own field; a call's first delta alone says who it is; reasoning tokens are in usage."""
    ids = encode(f"<think>\nplan\n</think>\n\nLet me see.\n{CALL}\n{SECOND}")
    reply = both_ways(thinker, ids, [3], tools=[GET, NOW])
    (choice,) = reply.choices.values()
    assert (choice.reasoning, choice.text, choice.finish_reason) == ("plan", "Let me see.\n", "tool_calls")
    functions = [call["function"] for call in choice.calls if call["type"] == "function"]
    called = [(function["name"], json.loads(function["arguments"])) for function in functions]
    assert called == [("get", {"id": "é🌶"}), ("now", {})]
    assert reply.usage is not None
    assert reply.usage["completion_tokens_details"]["reasoning_tokens"] == len(encode("plan"))
    hidden = both_ways(thinker, ids, [3], tools=[GET, NOW], include_reasoning=False)
    assert hidden.choices[0].reasoning == ""
    assert hidden.usage == reply.usage


def test_a_call_that_length_cuts_goes_as_far_as_it_came(thinker: httpx.Client, encode: Any) -> None:
    """It is delivered, a character that the cut broke as U+FFFD, and the reason is `length`."""
    reply = both_ways(thinker, encode(CALL)[:-9], tools=[GET], then="length")
    (call,) = reply.choices[0].calls
    assert '{"id": "é🌶"}'.startswith(call["function"]["arguments"].rstrip("\ufffd"))
    assert reply.finish_reason == "length"


def test_a_stop_string_is_no_tool_call(thinker: httpx.Client, encode: Any) -> None:
    """After a call, a client's stop string ends the answer as `stop`, and is told of."""
    reply = both_ways(thinker, encode(f"{CALL}\nDone. And more"), tools=[GET], stop=["Done"])
    assert len(reply.choices[0].calls) == 1
    assert (reply.finish_reason, reply.choices[0].stop_reason) == ("stop", "Done")


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"tool_choice": "required"}, "plain text", "stop"),
        ({"tool_choice": "auto"}, CALL, "tool_calls"),
        ({"tool_choice": "none"}, CALL, "stop"),
        ({"tool_choice": {"type": "function", "function": {"name": "get"}}}, CALL, "tool_calls"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}},
            SECOND,
            "tool_calls",
        ),
    ],
    ids=str,
)
def test_tool_08_the_reason_is_what_was_made(
    http: httpx.Client, encode: Any, fields: dict[str, Any], text: str, reason: str
) -> None:
    """Not what was asked for: the same streamed and whole; what is no call is content, all of it."""
    reply = both_ways(http, encode(text), tools=[GET, NOW], **fields)
    assert reply.finish_reason == reason
    assert reply.text == ("" if reason == "tool_calls" else text)


def test_tool_03_a_call_says_once_who_it_is(http: httpx.Client, encode: Any) -> None:
    """Two calls, two ids, each in one delta; what grows has an index and arguments alone."""
    body = scripted(CHAT, encode(f"{CALL}\n{SECOND}")) | {"tools": [GET, NOW]}
    deltas = [choice["delta"] for chunk in chunks(http, CHAT, body) for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    begun = [call for call in calls if "id" in call]
    assert [call["index"] for call in begun] == [0, 1]
    assert len({call["id"] for call in begun}) == 2
    assert all(set(call) == {"index", "function"} for call in calls if call not in begun)


def test_one_call_where_only_one_is_taken(http: httpx.Client, encode: Any) -> None:
    """The answer ends with it, whatever the model says next, and the engine stops."""
    reply = both_ways(http, encode(f"{CALL}\n{SECOND} more"), tools=[GET, NOW], parallel_tool_calls=False)
    assert [call["function"]["name"] for call in reply.choices[0].calls] == ["get"]
    assert reply.finish_reason == "tool_calls"
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] <= len(encode(CALL)) + 1


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "both"])
def test_what_reasoning_is_called(demo_model: Path, tmp_path: Path, encode: Any, name: str) -> None:
    """By the server's setting, in streams and whole answers alike."""
    flags = simulated(demo_model, "engine.reasoning_parser=qwen3", f"server.reasoning_field={name}")
    body = scripted(CHAT, encode("<think>plan</think>said"))
    names = {"reasoning_content", "reasoning"} if name == "both" else {name}
    with RunningServer(*flags, log_folder=tmp_path) as server, httpx.Client(base_url=server.url) as http:
        message = http.post(CHAT, json=body).json()["choices"][0]["message"]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks(http, CHAT, body)]
    assert {key: message[key] for key in names} == dict.fromkeys(names, "plan")
    assert not {"reasoning_content", "reasoning"} - names & message.keys()
    told = [delta for delta in deltas if names & delta.keys()]
    assert all("".join(delta[key] for delta in told) == "plan" for key in names)


def test_an_unknown_parser_is_refused_at_the_start(demo_model: Path, tmp_path: Path) -> None:
    """With the names that there are."""
    server = RunningServer(*simulated(demo_model, "engine.tool_parser=hermess"), log_folder=tmp_path)
    with pytest.raises(AssertionError), server:
        pass
    assert "hermes, " in server.log_file.read_text()


def test_tools_are_told_as_they_were_sent(http: httpx.Client) -> None:
    """Every key, in the client's order, its own keys too."""
    function = {"strict": True, "x-own": {"b": 1, "a": [2]}, "parameters": {"type": "object"}, "name": "get"}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"function": function, "type": "function"}]}
    tokens = http.post("/tokenize", json=body).json()["tokens"]
    assert json.dumps(function) in http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
