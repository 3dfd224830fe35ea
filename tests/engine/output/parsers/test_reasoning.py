"""Reasoning and content told apart: where it starts, what is dropped around markers, and the composed pipeline."""

from __future__ import annotations

from itertools import product

import pytest

from engine.output.parsers import (
    ContentText,
    Part,
    ReasoningStart,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    reasoning_family,
    tool_family,
)
from tests.engine.output.parsers.streamed import Pipeline, assert_independent_of_the_cut, parse

BEFORE, INSIDE, AFTER = ReasoningStart.BEFORE, ReasoningStart.INSIDE, ReasoningStart.AFTER
R, C = ReasoningText, ContentText


@pytest.mark.parametrize(
    ("family", "start", "text", "expected"),
    [
        ("qwen3", BEFORE, "<think>\nplan\n</think>\n\nanswer", [R("plan"), C("answer")]),
        ("qwen3", BEFORE, "\n<think>a</think>b", [R("a"), C("b")]),
        ("qwen3", BEFORE, "<think>\n\n</think>\n\n answer\n", [C(" answer\n")]),
        ("qwen3", BEFORE, "<think>a\nb\n\n\n</think>c", [R("a\nb\n"), C("c")]),
        ("qwen3", BEFORE, "<think>I was cut \n</thi", [R("I was cut \n</thi")]),
        ("qwen3", BEFORE, "plain <think>a</think>", [C("plain <think>a</think>")]),
        ("qwen3", BEFORE, " \n plain", [C(" \n plain")]),
        ("qwen3", BEFORE, "a</think>b", [C("a</think>b")]),
        ("qwen3", BEFORE, "<think>a</think>b<think>c</think>", [R("a"), C("b<think>c</think>")]),
        ("qwen3", BEFORE, "<think>a <think> b</think>c", [R("a <think> b"), C("c")]),
        ("qwen3", INSIDE, "\nplan\n</think>\nanswer", [R("plan"), C("answer")]),
        ("qwen3", INSIDE, "<think>plan</think>answer", [R("plan"), C("answer")]),
        ("qwen3", INSIDE, " plan", [R(" plan")]),
        ("qwen3", AFTER, "<think>text</think>", [C("<think>text</think>")]),
        ("mistral", BEFORE, "[THINK]a[/THINK]b", [R("a"), C("b")]),
        ("seed_oss", BEFORE, "<seed:think>a</seed:think>b", [R("a"), C("b")]),
        ("granite", BEFORE, "Here's my thought process:\na\nHere is my response:\nb", [R("a"), C("b")]),
        (
            "kimi_k2",
            INSIDE,
            "plan<|tool_calls_section_begin|>x",
            [R("plan"), C("<|tool_calls_section_begin|>x")],
        ),
        (
            "gpt_oss",
            BEFORE,
            "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>",
            [R("plan"), C("answer")],
        ),
        ("gpt_oss", INSIDE, "plan<|end|><|start|>assistant<|channel|>final<|message|>a", [R("plan"), C("a")]),
        ("gpt_oss", AFTER, "answer<|return|>", [C("answer")]),
        ("gpt_oss", BEFORE, "<|channel|>commentary<|message|>I look.<|end|>", [C("I look.")]),
        ("gpt_oss", BEFORE, "<|channel|>analysis<|message|>a<|channel|>final<|message|>b", [R("a"), C("b")]),
        ("gpt_oss", BEFORE, "text <|channel|> text", [C("text <|channel|> text")]),
        ("gpt_oss", BEFORE, "<|channel|>analysis", [C("<|channel|>analysis")]),
    ],
)
def test_what_is_reasoning(family: str, start: ReasoningStart, text: str, expected: list[Part]) -> None:
    """Only what an answer begins with is reasoning; the newlines around markers are dropped, nothing else."""
    for size in (1, 2, 3, 5, 8):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        parts = assert_independent_of_the_cut(lambda: reasoning_family(family).parser(start), text, pieces)
        assert parts == expected


@pytest.mark.parametrize(
    ("family", "prompt", "continued", "expected"),
    [
        ("qwen3", "<|im_start|>assistant\n", "", BEFORE),
        ("qwen3", "<|im_start|>assistant\n<think>\n", "", INSIDE),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", AFTER),
        ("qwen3", "user: what is <think>?<|im_end|>\n<|im_start|>assistant\n", "", BEFORE),
        ("qwen3", "assistant\n<think>I was", "<think>I was", INSIDE),
        ("qwen3", "assistant\n<think>I</think>The", "<think>I</think>The", AFTER),
        ("qwen3", "assistant\nThe", "The", AFTER),
        ("deepseek_r1", "<｜Assistant｜>", "", INSIDE),
        ("deepseek_r1", "<｜Assistant｜><think>\n", "", INSIDE),
        ("deepseek_r1", "<｜Assistant｜></think>", "", AFTER),
        ("gpt_oss", "<|start|>assistant", "", BEFORE),
        ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>", "", INSIDE),
        ("gpt_oss", "<|start|>assistant<|channel|>final<|message|>", "", AFTER),
    ],
)
def test_where_the_prompt_leaves_the_model(family: str, prompt: str, continued: str, expected: ReasoningStart) -> None:
    """A marker at the prompt's end says; the client's own text does not."""
    assert reasoning_family(family).start(prompt, continued) is expected


CALL = '<tool_call>\n{"name": "get", "arguments": {"id": 42}}\n</tool_call>'
GET: list[Part] = [ToolCallBegin(0, "get"), ToolCallArguments(0, '{"id": 42}'), ToolCallEnd(0)]


def test_reasoning_then_call_in_one_piece() -> None:
    """TOOL-04: a piece is split at every marker and each part goes to its channel; no marker appears."""
    pipeline = Pipeline(reasoning_family("qwen3"), tool_family("hermes"))
    text = f"<think>\nplan</think>\n{CALL}"
    for size in (1, 3, 4, 5, 6, 24, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert pipeline.parse(pieces) == [R("plan"), *GET]
    assert pipeline.parse(["<think>\nplan</think>\n\nAnswer: 4"]) == [R("plan"), C("Answer: 4")]


def test_reasoning_with_held_text() -> None:
    """STOP-11: the text alone decides, so no tail of the reasoning and no tag shows up in content."""
    pipeline = Pipeline(reasoning_family("qwen3"), tool_family("hermes"))
    text = "<think>I should look\nthis up</think>Answer"
    for pieces in ([text], list(text), ["<think>I should look\nthis", " up</think>Answer"]):
        assert pipeline.parse(pieces) == [R("I should look\nthis up"), C("Answer")]


def test_harmony_pipeline() -> None:
    """gpt-oss: analysis is reasoning, a message to a function is a call, and other channels are content."""
    pipeline = Pipeline(reasoning_family("gpt_oss"), tool_family("gpt_oss"))
    text = (
        "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"id": 42}<|call|>'
    )
    for size in (1, 2, 7, 30, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert pipeline.parse(pieces) == [R("plan"), C("I look."), *GET]


ALPHABET = (
    "<think>",
    "</think>",
    "<",
    "a",
    "</thi",
    "\n",
    "<tool_call>",
    "</tool_call>",
    '{"name":"f","arguments":{}}',
)


def chunkings(pieces: tuple[str, ...]) -> set[tuple[str, ...]]:
    """All ways to join neighbours, and the single characters."""
    ways = {tuple("".join(pieces))}
    for joins in product((False, True), repeat=max(len(pieces) - 1, 0)):
        way = list(pieces[:1])
        for piece, joined in zip(pieces[1:], joins, strict=True):
            way[-1:] = [way[-1] + piece] if joined else [way[-1], piece]
        ways.add(tuple(way))
    return ways


@pytest.mark.parametrize("length", range(5))
def test_streamed_equals_whole_for_all_short_texts(length: int) -> None:
    """TOOL-06: for all strings of up to four pieces, each cut of them gives what the whole gives."""
    pipeline = Pipeline(reasoning_family("qwen3"), tool_family("hermes"))
    for pieces in product(ALPHABET, repeat=length):
        whole = pipeline.parse(["".join(pieces)])
        assert all(pipeline.parse(way) == whole for way in chunkings(pieces)), pieces


@pytest.mark.parametrize(("text", "pieces"), [("1 <", ["1", " <"]), ("<tool_cal", ["<", "tool", "_cal"])])
def test_a_begun_marker_is_text_at_the_end(text: str, pieces: list[str]) -> None:
    """TOOL-06: at the end a held fragment goes to the channel that it was held in."""
    assert Pipeline(reasoning_family("qwen3"), tool_family("hermes")).parse(pieces) == [C(text)]
    assert parse(reasoning_family("qwen3").parser(INSIDE), pieces) == [R(text)]
