"""The processor: any cut of the same ids gives the same answer, and the aligned list counts what the text says."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer import Vocabulary
from engine.output.events import OutputStep
from engine.output.processor import SequenceProcessor
from engine.output.result import ChoiceResult
from engine.types import EngineRequest, FinishReason, SamplingParams, SequenceOutput, TextParams, TokenLogprobs
from tests.vocabularies import tokenizer_file

CASES = Path(__file__).parents[2] / "cases"


def shared_cases() -> Iterable[Any]:
    """The `ids` cases of the shared reports, each with its number within its report."""
    for name in ("detok", "stop"):
        for line in (CASES / f"{name}.jsonl").read_text().splitlines():
            report = json.loads(line)
            whole = report["case"]
            parts = whole["cases"] if whole["kind"] == "multi" else [whole]
            for number, case in enumerate(parts):
                if case["kind"] == "ids" and "reasoning_parser" not in case.get("params", {}):
                    yield pytest.param(case, id=f"{report['id']}-{number}")


class Run:
    """One sequence through a processor, in steps of given sizes."""

    def __init__(self, vocabulary: Vocabulary, request: EngineRequest, text: TextParams) -> None:
        self.processor = SequenceProcessor(vocabulary, request, text, 0)
        self.result = ChoiceResult(0)
        self.steps: list[OutputStep] = []

    def take(self, step: OutputStep) -> None:
        self.steps.append(step)
        self.result.fold(step)

    def feed(
        self, ids: Sequence[int], sizes: Iterable[int], end: FinishReason, *, end_apart: bool = True
    ) -> ChoiceResult:
        """Feeds the ids in steps of these sizes (the last size goes on); the end comes in a step of its own or not."""
        rest = list(ids)
        size = 1
        sizes = iter(sizes)
        while rest and self.processor.finished is None:
            size = next(sizes, size)
            now, rest = rest[:size], rest[size:]
            logprobs = [TokenLogprobs(-float(token_id)) for token_id in now]
            ended = None if rest or end_apart else end
            self.take(self.processor.feed(SequenceOutput("r", now, ended, logprobs=logprobs)))
        if self.processor.finished is None:
            self.take(self.processor.feed(SequenceOutput("r", [], end)))
        return self.result


def run_case(vocabulary: Vocabulary, case: dict[str, Any], sizes: Iterable[int]) -> Run:
    params = case.get("params", {})
    stop = params.get("stop", ())
    sampling = SamplingParams(
        max_tokens=params.get("max_tokens", 1_000_000), min_tokens=params.get("min_tokens", 0), logprobs=0
    )
    text = TextParams(
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        include_stop=params.get("include_stop_str_in_output", False),
        skip_special_tokens=params.get("skip_special_tokens", True),
    )
    run = Run(vocabulary, EngineRequest("r", case.get("prompt_ids", []), sampling), text)
    run.feed(case["ids"], sizes, FinishReason.LENGTH if case["then"] == "max_tokens" else FinishReason.STOP)
    return run


@functools.cache
def vocabulary_of(file: Path) -> Vocabulary:
    return Vocabulary.from_tokenizer_file(file)


@pytest.fixture(scope="module")
def vocabulary(demo_model: Path) -> Vocabulary:
    return vocabulary_of(demo_model / "tokenizer.json")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("case", list(shared_cases()))
def test_reported_faults_stay_mended(case: dict[str, Any], size: int, demo_model: Path) -> None:
    """Every reported case gives its right text, end, stop and usage, whatever the size of the engine's steps."""
    file = demo_model / "tokenizer.json" if case["tokenizer"] == "smollm2" else tokenizer_file(case["tokenizer"])
    result = run_case(vocabulary_of(file), case, [size]).result
    expect = case["expect"]
    assert result.text in expect.get("text_any_of", [expect.get("text", result.text)])
    assert not any(part in result.text for part in expect.get("never_contains", ()))
    assert result.finished is not None
    assert result.finished.reason.value == expect.get("finish_reason", result.finished.reason.value)
    if "matched_stop" in expect:
        assert result.finished.stop == expect["matched_stop"]
    for field in ("completion_tokens", "logprobs_len", "token_ids_len"):
        if field in expect:
            counts = (result.completion_tokens, len(result.records))
            assert counts == (expect[field],) * 2


@pytest.mark.parametrize("case", [case for case in shared_cases() if "deltas_at_most" in case.values[0]["expect"]])
def test_nothing_of_a_possible_stop_leaves_early(case: dict[str, Any], demo_model: Path) -> None:
    """With one id a step, no more has left after each step than the report allows."""
    file = demo_model / "tokenizer.json" if case["tokenizer"] == "smollm2" else tokenizer_file(case["tokenizer"])
    run = run_case(vocabulary_of(file), case, [1])
    sent = list(itertools.accumulate(step.text for step in run.steps))
    allowed = list(itertools.accumulate(case["expect"]["deltas_at_most"]))
    assert all(limit.startswith(text) for text, limit in zip(sent, allowed, strict=False))


TOKENS = [19556, 905, 15107, 230, 131, 187, 249, 1, 2, 0, 33, 198, 216, 10283, 120, 183, 239, 226, 49151]


@given(
    ids=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=24),
    sizes=st.lists(st.integers(1, 6), max_size=8),
    stops=st.lists(st.sampled_from([" world", "Hello", "o w", "\n", "🌶", "สส", "llo wor"]), max_size=3),
    max_tokens=st.integers(1, 30),
    min_tokens=st.integers(0, 6),
    end_apart=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_answer_does_not_depend_on_the_steps(  # noqa: PLR0913, PLR0917 - one argument for each thing that is drawn
    vocabulary: Vocabulary,
    ids: list[int],
    sizes: list[int],
    stops: list[str],
    max_tokens: int,
    min_tokens: int,
    end_apart: bool,
) -> None:
    """Text, tokens, records, usage and end are the same for one id a step and for any other steps.

    Every token that usage counts is released exactly once; spans lie in order within the text.
    """
    sampling = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, logprobs=0)
    request = EngineRequest("r", [1], sampling)
    text = TextParams(stop=tuple(stops))
    single = Run(vocabulary, request, text)
    single.feed(ids, [1], FinishReason.STOP)
    other = Run(vocabulary, request, text)
    other.feed(ids, sizes, FinishReason.STOP, end_apart=end_apart)
    assert other.result == single.result
    assert other.result.parts == single.result.parts
    assert sum(step.released_tokens for step in other.steps) == other.result.completion_tokens
    spans = [(record.start, record.end) for record in other.result.records]
    assert all(0 <= start <= end <= len(other.result.text) for start, end in spans)
    assert spans == sorted(spans)


def test_records_hold_the_bytes_and_logprobs_of_their_own_token(vocabulary: Vocabulary) -> None:
    """A record is its token's: id, raw bytes and log probability stay together, also inside a character."""
    case = {"ids": [19556, 15107, 230, 131], "then": "eos", "prompt_ids": []}
    result = run_case(vocabulary, case, [3]).result
    assert [record.data for record in result.records] == [b"Hello", b" \xf0\x9f", b"\x8c", b"\xb6"]
    assert [record.logprobs.chosen for record in result.records if record.logprobs] == [-19556, -15107, -230, -131]
    assert [(record.start, record.end) for record in result.records] == [(0, 5), (5, 7), (6, 7), (6, 7)]


def test_a_stop_token_counts_and_shows_in_nothing_else(vocabulary: Vocabulary) -> None:
    """The end-of-sequence token is in usage, but in neither text nor records; the client's own stop token is named."""
    sampling = SamplingParams(max_tokens=9, logprobs=0, stop_token_ids=frozenset({905}))
    for stop_id, named in ((2, None), (905, 905)):
        run = Run(vocabulary, EngineRequest("r", [1], sampling), TextParams())
        logprobs = [TokenLogprobs(-1.0), TokenLogprobs(-2.0)]
        output = SequenceOutput("r", [19556, stop_id], FinishReason.STOP, stop_token_id=stop_id, logprobs=logprobs)
        run.take(run.processor.feed(output))
        assert run.result.text == "Hello"
        assert run.result.completion_tokens == 2
        assert [record.token_id for record in run.result.records] == [19556]
        assert run.steps[-1].released_tokens == 2
        assert run.result.finished is not None
        assert run.result.finished.stop == named


def test_what_comes_after_the_end_is_generated_but_not_counted(vocabulary: Vocabulary) -> None:
    """Tokens that a step holds beyond a stop are in the engine's count alone."""
    run = Run(vocabulary, EngineRequest("r", [1], SamplingParams(max_tokens=99)), TextParams(stop=(" world",)))
    run.take(run.processor.feed(SequenceOutput("r", [19556, 905, 19556, 905])))
    run.processor.feed(SequenceOutput("r", [19556]))
    assert run.result.text == "Hello"
    assert (run.processor.generated_tokens, run.processor.completion_tokens) == (5, 2)


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_an_end_from_outside_releases_what_was_held(vocabulary: Vocabulary, reason: FinishReason) -> None:
    """An abort or a fault loses no text: held-back stop prefixes and incomplete characters leave with the end."""
    run = Run(vocabulary, EngineRequest("r", [1], SamplingParams(max_tokens=99)), TextParams(stop=("Hello!",)))
    run.take(run.processor.feed(SequenceOutput("r", [19556, 187])))
    run.take(run.processor.end(reason, "because"))
    assert run.result.text == "Hello\ufffd"
    assert run.processor.end(reason).finished is None


@pytest.mark.parametrize("size", [1, 3])
def test_an_echo_is_the_joint_decoding_and_no_stop_is_looked_for_in_it(vocabulary: Vocabulary, size: int) -> None:
    """With echo the answer is prompt and completion decoded as one, spans and stops counting from the completion on."""
    prompt, output = [19556, 905, 15107, 230], [131, 905, 19556]
    request = EngineRequest("r", prompt, SamplingParams(max_tokens=9, logprobs=0))
    run = Run(vocabulary, request, TextParams(stop=("world", "lo"), echo=True))
    result = run.feed(output, [size], FinishReason.STOP)
    assert result.text == "Hello world \U0001f336 "
    assert [(record.token_id, record.start, record.end) for record in result.records] == [(131, 12, 13), (905, 13, 14)]
    assert result.finished is not None
    assert result.finished.stop == "world"
    assert result.completion_tokens == 2


@given(
    ids=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=24),
    sizes=st.lists(st.integers(1, 6), max_size=8),
    max_tokens=st.integers(1, 30),
    echo=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_counting_tokens_says_what_aligning_them_says(
    vocabulary: Vocabulary, ids: list[int], sizes: list[int], max_tokens: int, echo: bool
) -> None:
    """Without stops and log probabilities tokens are only counted: each step's text and counts are the same."""
    runs = []
    for logprobs in (None, 0):
        sampling = SamplingParams(max_tokens=max_tokens, logprobs=logprobs)
        run = Run(vocabulary, EngineRequest("r", [19556, 15107], sampling), TextParams(echo=echo))
        run.feed(ids, sizes, FinishReason.STOP)
        runs.append([(s.text, s.completion_tokens, s.released_tokens) for s in run.steps])
    assert runs[0] == runs[1]
