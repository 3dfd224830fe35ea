"""Reasoning, stops and tool calls behind one processor: the same answer however the engine cuts it into steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.output.events import Finished, OutputStep
from engine.output.parsers import ReasoningStart, fold, reasoning_family, tool_family
from engine.output.parsers.parts import Part
from engine.output.parsers.plan import ParsingPlan
from engine.output.processor import SequenceProcessor
from engine.output.result import ChoiceResult
from engine.types import EngineRequest, FinishReason, SamplingParams, SequenceOutput, TextParams, TokenLogprobs
from tests.engine.output.parsers.streamed import Pipeline
from tests.vocabularies import tokenizer, vocabulary

CASES = Path(__file__).parents[2] / "cases" / "tools.jsonl"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
PIECES = ["<think>", "</think>", "<", "a", "</thi", "\n", "\n\n", " 🌶 ", "<tool_call>", "</tool_call>", CALL, "สส"]
QWEN = ParsingPlan(reasoning_family("qwen3"), tools=tool_family("hermes"))


def answer(
    plan: ParsingPlan | None, ids: Sequence[int], sizes: Iterable[int], stop: tuple[str, ...] = (), **sampling: Any
) -> tuple[ChoiceResult, list[OutputStep]]:
    """These ids in steps of these sizes (the last goes on), and the end of the sequence; with log probabilities."""
    params = SamplingParams(**({"max_tokens": 10_000, "logprobs": 0} | sampling))
    name = "gptoss" if plan is not None and plan.tools is tool_family("gpt_oss") else "qwen3"
    processor = SequenceProcessor(vocabulary(name), EngineRequest("r", [0], params), TextParams(stop, parsing=plan), 0)
    result, steps, rest, size = ChoiceResult(0), list[OutputStep](), list(ids), 1
    sizes = iter(sizes)
    while rest and processor.finished is None:
        size = next(sizes, size)
        now, rest = rest[:size], rest[size:]
        steps.append(processor.feed(SequenceOutput("r", now, logprobs=[TokenLogprobs(0.0) for _ in now])))
    if processor.finished is None:
        steps.append(processor.feed(SequenceOutput("r", [], FinishReason.STOP)))
    for step in steps:
        result.fold(step)
    return result, steps


def ids_of(text: str, name: str = "qwen3") -> list[int]:
    ids: list[int] = tokenizer(name).encode(text, add_special_tokens=False).ids
    return ids


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=7),
    sizes=st.lists(st.integers(1, 6), max_size=8),
    stop=st.lists(st.sampled_from(["a", "é", "</", "\n<", "🌶 สส"]), max_size=2),
    start=st.sampled_from(list(ReasoningStart)),
)
@settings(max_examples=300, deadline=None)
def test_the_answer_does_not_depend_on_the_steps(
    pieces: list[str], sizes: list[int], stop: list[str], start: ReasoningStart
) -> None:
    """Parts, records, end and every count are those of one token a step; each counted token is released once."""
    plan = ParsingPlan(QWEN.reasoning, start, tools=QWEN.tools)
    ids = ids_of("".join(pieces))
    single, _ = answer(plan, ids, [1], tuple(stop))
    other, steps = answer(plan, ids, sizes, tuple(stop))
    assert other == single
    assert other.parts == single.parts
    assert sum(step.released_tokens for step in steps) == other.completion_tokens
    assert all(fold(step.parts) == step.parts for step in steps)
    uncounted, _ = answer(plan, ids, sizes, tuple(stop), logprobs=None)
    assert (uncounted.parts, uncounted.reasoning_tokens) == (other.parts, other.reasoning_tokens)


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=7), start=st.sampled_from(list(ReasoningStart)))
@settings(max_examples=200, deadline=None)
def test_the_parts_are_the_parsers(pieces: list[str], start: ReasoningStart) -> None:
    """Tokens add nothing: the processor's parts are what the two parsers make of the whole text."""
    assert QWEN.reasoning is not None
    assert QWEN.tools is not None
    plan = ParsingPlan(QWEN.reasoning, start, tools=QWEN.tools)
    expected = Pipeline(QWEN.reasoning, QWEN.tools, start).parse(["".join(pieces)])
    assert answer(plan, ids_of("".join(pieces)), [1])[0].parts == expected


def test_a_stop_string_is_looked_for_in_the_content_alone() -> None:
    """In reasoning it is text; in the content it ends the answer, and is in no part."""
    result, _ = answer(QWEN, ids_of("<think>\nsay stop\n</think>\n\nI say stop now"), [1], ("stop",))
    assert (result.reasoning, result.text) == ("say stop", "I say ")
    assert result.finished is not None
    assert result.finished.stop == "stop"


def test_records_are_of_content_and_counts_of_reasoning() -> None:
    """Tokens of reasoning are counted as such, those of markers and calls as neither, those of content are recorded."""
    ids = ids_of(f"<think>\none two\n</think>\n\nthree four{CALL}")
    result, _ = answer(QWEN, ids, [3])
    assert b"".join(record.data for record in result.records).decode() == result.text == "three four"
    assert result.reasoning_tokens == len(ids_of("one two"))
    assert result.completion_tokens == len(ids)


CODER = ParsingPlan(tools=tool_family("qwen3_coder"), parallel_calls=False)
ONE_CALL = ParsingPlan(tools=QWEN.tools, parallel_calls=False)
CODER_CALL = "<tool_call><function=f></function></tool_call>"
CODER_BEGUN = "<tool_call><function=g><parameter=a>12"


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize(
    ("plan", "said", "stop"),
    [
        (CODER, f"{CODER_CALL}{CODER_BEGUN}!", (f"</function></tool_call>{CODER_BEGUN}Z", "!")),
        (ONE_CALL, f"{CALL}<tool!", ("}}\n</tool_call><toolZ", "!")),
        (ONE_CALL, f"{CALL}!", ("}}\n</tool_call>Z", "!")),
        (ONE_CALL, f"{CALL} and more", ()),
    ],
)
def test_the_only_call_is_the_end(plan: ParsingPlan, said: str, stop: tuple[str, ...], size: int) -> None:
    """Whatever a stop string held back around it: nothing follows it, no stop string ended it, no token is content."""
    result, _ = answer(plan, ids_of(said), [size], stop)
    assert [call.complete for call in result.tool_calls] == [True]
    assert (result.text, result.records) == ("", [])
    assert result.finished == Finished(FinishReason.STOP)


def test_a_stop_string_within_a_call_records_nothing() -> None:
    """Its tokens are the call's, and no content."""
    result, _ = answer(QWEN, ids_of('<tool_call>{"name": "f", "arguments": {"a": "xy STOP"}}'), [1], ("STOP",))
    assert (result.text, result.records) == ("", [])


def test_a_failure_stays_one() -> None:
    """Also where the text that it releases completes a stop string."""
    params = SamplingParams(max_tokens=9)
    processor = SequenceProcessor(vocabulary("qwen3"), EngineRequest("r", [0], params), TextParams(("\ufffd",)), 0)
    processor.feed(SequenceOutput("r", ids_of("🌶")[:1]))
    end = processor.end(FinishReason.ERROR, "it broke").finished
    assert end is not None
    assert end.failure is not None


def test_reasoning_can_be_left_out() -> None:
    """It is counted all the same, and nothing else changes."""
    ids = ids_of("<think>\none two\n</think>\n\nthree")
    told, _ = answer(ParsingPlan(QWEN.reasoning), ids, [2])
    silent, _ = answer(ParsingPlan(QWEN.reasoning, include_reasoning=False), ids, [2])
    assert (silent.reasoning, silent.text) == ("", told.text)
    assert silent == told


@given(sizes=st.lists(st.integers(1, 6), max_size=8))
@settings(deadline=None)
def test_after_the_reasoning_tokens_are_only_counted(sizes: list[int]) -> None:
    """The short way, which an answer takes once nothing is looked for, tells each step what the long way does."""
    ids = ids_of("<think>\nthink 🌶 on\n</think>\n\nAnd สส then </think> 🌶 said.")
    plan = ParsingPlan(QWEN.reasoning)
    ways = [answer(plan, ids, sizes, logprobs=logprobs)[1] for logprobs in (None, 0)]
    short, long = ([(s.parts, s.released_tokens, s.completion_tokens, s.reasoning_tokens) for s in way] for way in ways)
    assert short == long


def test_markers_that_are_special_tokens_are_seen() -> None:
    """gpt-oss's channels are special tokens: skipped as text, and yet what tells reasoning, answer and calls apart."""
    text = (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary to=functions.get "
        '<|constrain|>json<|message|>{"id": 1}<|call|>'
    )
    plan = ParsingPlan(reasoning_family("gpt_oss"), tools=tool_family("gpt_oss"))
    result, _ = answer(plan, ids_of(text, "gptoss"), [1])
    assert (result.reasoning, result.text) == ("Think.", "")
    assert [(call.name, call.arguments, call.complete) for call in result.tool_calls] == [("get", '{"id": 1}', True)]


def reported() -> Iterable[Any]:
    """The cases of token ids among the reports about tools."""
    for line in filter(None, CASES.read_text().splitlines()):
        report = json.loads(line)
        whole = report["case"]
        for number, case in enumerate(whole["cases"] if whole["kind"] == "multi" else [whole]):
            if case["kind"] == "ids":
                yield pytest.param(case, id=f"{report['id']}-{number}")


@pytest.mark.parametrize("case", list(reported()))
def test_reported_faults_stay_mended(case: dict[str, Any]) -> None:
    """Each reported sequence gives its right reasoning, content and calls, whatever the size of the engine's steps."""
    expect = case["expect"]
    plan = QWEN if "reasoning_parser" in case.get("params", {}) else ParsingPlan(tools=QWEN.tools)
    chunked = [[len(chunk) for chunk in case["chunks"]]] if "chunks" in case else []
    for sizes in [*([size] for size in (1, *expect.get("chunk_sizes", (2, 3)))), *chunked]:
        result, _ = answer(plan, case["ids"], sizes)
        assert result.text in expect.get("content_any_of", [expect.get("content", result.text)]) or not result.text
        assert result.text.strip() == expect.get("content_strip", result.text.strip())
        assert result.reasoning.strip() == expect.get("reasoning_strip", result.reasoning.strip())
        assert not any(marker in result.text + result.reasoning for marker in expect.get("never", ()))
        if "tool_calls" in expect:
            calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in result.tool_calls]
            assert calls == [{name: call[name] for name in ("name", "arguments")} for call in expect["tool_calls"]]


@pytest.mark.parametrize("cut", range(1, 12))
def test_reported_alphabet(cut: int) -> None:
    """TOOL-06: texts of markers and parts of markers, in steps of any size, are what they are as a whole."""
    parts: list[list[Part]] = []
    for text in ("<think>a</thi</think>\n<", "<tool_call>a", f"a\n{CALL}\n{CALL}<tool_", "</think><think>"):
        ids = ids_of(text)
        parts += [answer(QWEN, ids, [cut])[0].parts, answer(QWEN, ids, [len(ids)])[0].parts]
    assert parts[::2] == parts[1::2]
