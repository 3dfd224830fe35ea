"""A stream's chunks fold to exactly the whole answer, whatever output steps come: one path, two ways to tell it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineUnavailableError, GenerationFailedError
from engine.output.events import Finished, OutputStep, TokenRecord
from engine.output.parsers.parts import (
    ContentText,
    Part,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engine.output.result import AnswerResult
from engine.types import FinishReason, TokenLogprobs
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.dialect import AnswerContext, ParsedRequest, StreamEncoder, Usage
from server.wire.door import parse_body
from server.wire.errors import facts_of
from tests.server.replies import MESSAGES, Reply, chunks_of, folded, frames_of, parsed

LOGPROBS = st.sampled_from([0.0, -0.25, -12.5, -math.inf, math.nan])
ENDS = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT]
both = pytest.mark.parametrize("dialect", [ChatRequest, CompletionRequest])


def token_bytes(token_id: int) -> bytes:
    """Ids 0 to 255 are bytes, the rest is text."""
    return bytes([token_id]) if token_id < 256 else f"t{token_id}".encode()


def request(dialect: type[ChatRequest | CompletionRequest], **fields: Any) -> ParsedRequest:
    """A streaming request of this dialect."""
    body = {"messages": MESSAGES, "prompt": "hi", "stream": True, **fields}
    if dialect is ChatRequest and fields.get("logprobs") is not None:
        body |= {"logprobs": True, "top_logprobs": 2}
    return parse_body(dialect, json.dumps(body).encode())


def context(choices: int) -> AnswerContext:
    return AnswerContext("r1", 1_700_000_000, "m", prompt_tokens=7, choices=choices, token_bytes=token_bytes)


@dataclass
class Scripted:
    """Output steps of all choices, in an order in which they may come."""

    choices: int
    steps: list[OutputStep]

    @property
    def usage(self) -> Usage:
        last = {step.index: step.completion_tokens for step in self.steps}
        return Usage(7, sum(last.values()), 3)

    def result(self) -> AnswerResult:
        result = AnswerResult(self.choices)
        for step in self.steps:
            result.fold(step)
        return result


@st.composite
def answers(draw: st.DrawFn) -> list[Part]:
    """What a parser may make of an answer: reasoning, then content and calls, of which the last may be cut off."""
    parts: list[Part] = [ReasoningText(text) for text in draw(st.lists(st.text(min_size=1, max_size=4), max_size=2))]
    for index in range(draw(st.integers(0, 3))):
        parts += [ContentText(text) for text in draw(st.lists(st.text(min_size=1, max_size=3), max_size=1))]
        parts.append(ToolCallBegin(index, f"f{index}", draw(st.none() | st.just(f"own-{index}"))))
        parts += [ToolCallArguments(index, text) for text in draw(st.lists(st.text(min_size=1), max_size=3))]
        parts.append(ToolCallEnd(index))
    cut_off = bool(parts) and draw(st.booleans())
    return parts[:-1] if cut_off else parts


@st.composite
def scripts(draw: st.DrawFn, *, parses: bool = False) -> Scripted:
    """Up to three choices, their steps interleaved at random; texts of any characters, held or empty steps too."""
    choices = draw(st.integers(1, 3))
    order = draw(st.lists(st.integers(0, choices - 1), max_size=12))
    counts = [0] * choices
    said = [draw(answers() if parses else st.just([])) for _ in range(choices)]
    steps = [_step(draw, index, counts, said[index]) for index in order]
    for index in draw(st.permutations(range(choices))):
        step = _step(draw, index, counts, said[index])
        step.parts += said[index]
        step.finished = Finished(draw(st.sampled_from(ENDS)))
        steps.append(step)
    return Scripted(choices, steps)


def _step(draw: st.DrawFn, index: int, counts: list[int], said: list[Part]) -> OutputStep:
    """With what comes next of what the choice says, or else with any text."""
    ids = draw(st.lists(st.integers(0, 300), max_size=3))
    counts[index] += len(ids)
    records = [_record(draw, token_id, start) for start, token_id in enumerate(ids)]
    parts = [said.pop(0) for _ in range(min(len(said), draw(st.integers(0, 3))))]
    if not said and not parts and (text := draw(st.text(max_size=5))):
        parts = [ContentText(text)]
    empty = draw(st.booleans())
    told = records if parts or empty else None
    return OutputStep(index, parts, told, completion_tokens=counts[index])


def _record(draw: st.DrawFn, token_id: int, start: int) -> TokenRecord:
    top = tuple(draw(st.lists(st.tuples(st.integers(0, 300), LOGPROBS), max_size=2)))
    return TokenRecord(token_id, token_bytes(token_id), start, start + 1, TokenLogprobs(draw(LOGPROBS), top))


def stream(encoder: StreamEncoder, script: Scripted, cuts: set[int]) -> bytes:
    """The stream's bytes, its steps handed over in groups that end at these places."""
    data = encoder.start()
    group: list[OutputStep] = []
    for place, step in enumerate(script.steps):
        group.append(step)
        if place in cuts:
            data += encoder.encode(group)
            group = []
    return data + encoder.encode(group) + encoder.finish(script.usage)


@both
@given(script=scripts(), cuts=st.sets(st.integers(0, 15)), logprobs=st.sampled_from([None, 0, 2]))
def test_the_stream_folds_to_the_whole(
    dialect: type[ChatRequest | CompletionRequest], script: Scripted, cuts: set[int], logprobs: int | None
) -> None:
    """Text, finish reasons, log probabilities and usage: the same, however the steps are grouped."""
    asked = request(dialect, logprobs=logprobs, stream_options={"include_usage": True})
    about = context(script.choices)
    streamed = folded(chunks_of(stream(asked.encoder(about), script, cuts)))
    body = asked.whole(about, script.result(), script.usage)
    assert body.isascii()
    whole = folded([json.loads(body)])
    if logprobs is not None:
        fill_empty(whole, streamed)
    assert streamed == whole


@given(script=scripts(parses=True), cuts=st.sets(st.integers(0, 20)))
def test_calls_and_reasoning_fold_to_the_whole(script: Scripted, cuts: set[int]) -> None:
    """Ids, names, arguments, reasoning and content: the same in stream and whole; no delta has two kinds of text.

    `tool_calls` is the reason exactly where a call was delivered and the model ended by itself.
    """
    asked, about = request(ChatRequest), replace(context(script.choices), parses_tools=True)
    streamed = folded(chunks_of(stream(asked.encoder(about), script, cuts)))
    whole = folded([json.loads(asked.whole(about, script.result(), script.usage))])
    assert streamed.choices == whole.choices
    ids = [call["id"] for choice in whole.choices.values() for call in choice.calls if call["id"][:4] != "own-"]
    assert len(set(ids)) == len(ids)
    for result in script.result().choices:
        stopped = result.finished is not None and result.finished.reason is FinishReason.STOP
        assert (whole.choices[result.index].finish_reason == "tool_calls") == (stopped and bool(result.tool_calls))


def fill_empty(*replies: Reply) -> None:
    """A choice without tokens has empty lists in the whole answer, and no list at all in a stream."""
    for reply in replies:
        for choice in reply.choices.values():
            choice.logprobs = {name: entries for name, entries in choice.logprobs.items() if entries}


@both
@given(script=scripts())
def test_usage_is_told_as_asked(dialect: type[ChatRequest | CompletionRequest], script: Scripted) -> None:
    """Absent without `include_usage`; else null but in the last chunk; continuous: totals that never fall."""
    about = context(script.choices)
    for options in (None, {}, {"include_usage": False}):
        silent = chunks_of(stream(request(dialect, stream_options=options).encoder(about), script, set()))
        assert not any("usage" in chunk or not chunk["choices"] for chunk in silent)
    asked = request(dialect, stream_options={"include_usage": True})
    *chunks, last = chunks_of(stream(asked.encoder(about), script, set()))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    counted = request(dialect, stream_options={"include_usage": True, "continuous_usage_stats": True})
    *chunks, final = chunks_of(stream(counted.encoder(about), script, set()))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == final["usage"]["completion_tokens"] == script.usage.completion_tokens
    assert final["usage"] == last["usage"]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


@both
@given(script=scripts())
def test_one_finish_chunk_a_choice(dialect: type[ChatRequest | CompletionRequest], script: Scripted) -> None:
    """A choice's finish reason comes once, in its last chunk; a chat's role once, first."""
    chunks = chunks_of(stream(request(dialect).encoder(context(script.choices)), script, set()))
    for index in range(script.choices):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [choice["finish_reason"] is not None for choice in own] == [False] * (len(own) - 1) + [True]
        roles = [choice["delta"].get("role") for choice in own if "delta" in choice]
        assert roles == ["assistant"] + [None] * (len(roles) - 1) if dialect is ChatRequest else roles == []


@both
@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (GenerationFailedError("the GPU left"), "server_error", "the GPU left"),
        (EngineUnavailableError("going down"), "service_unavailable_error", "going down"),
        (KeyError("/secret/path"), "server_error", "request id"),
    ],
)
def test_an_error_ends_a_stream(
    dialect: type[ChatRequest | CompletionRequest], error: Exception, kind: str, words: str
) -> None:
    """One event in OpenAI's shape and no `[DONE]`; of an unforeseen fault a client learns only where to ask."""
    (frame,) = frames_of(request(dialect).encoder(context(1)).error(facts_of(error)))
    told = parsed(frame)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert told["type"] == kind
    assert words in told["message"]
    assert "secret" not in told["message"]


@both
def test_a_failed_choice_has_no_finish_chunk(dialect: type[ChatRequest | CompletionRequest]) -> None:
    """A failure is the error event's to tell: its text still leaves, a finish reason does not."""
    step = OutputStep(0, [ContentText("left")], None, Finished(FinishReason.ERROR, message="it broke"), 1)
    (frame,) = frames_of(request(dialect).encoder(context(1)).encode([step]))
    (choice,) = parsed(frame)["choices"]
    assert choice["finish_reason"] is None
    assert b"left" in frame


def test_tokens_that_are_no_text_look_like_no_other() -> None:
    """A partial character is shown by its bytes, and no infinity or NaN is written for its log probability."""
    record = TokenRecord(0xF0, b"\xf0", 0, 1, TokenLogprobs(-math.inf, ((0x9F, math.nan),)))
    step = OutputStep(0, [], [record], None, 1)
    (frame,) = frames_of(request(CompletionRequest, logprobs=1).encoder(context(1)).encode([step]))
    (choice,) = parsed(frame)["choices"]
    assert choice["logprobs"]["tokens"] == [r"bytes:\xf0"]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert choice["logprobs"]["top_logprobs"] == [{r"bytes:\x9f": -9999.0, r"bytes:\xf0": -9999.0}]
