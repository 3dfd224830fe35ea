"""Faults that users of other servers reported, as cases of token ids: detokenizer and stop matcher give the right text.

Never the whole of a case: what it says of HTTP, parsers and usage is for the tests of those rooms.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.detokenizer import IncrementalDetokenizer, StopMatcher, Vocabulary
from tests import vocabularies
from tests.engine.detokenizer.strategies import cut

Case = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "cases"


def id_cases() -> Iterator[Any]:
    """Every case of kind `ids` whose text is the plain answer's."""
    text = "".join((FOLDER / file).read_text(encoding="utf-8") for file in ("detok.jsonl", "stop.jsonl"))
    for line in text.split("\n")[:-1]:
        fault = json.loads(line)
        case = fault["case"]
        for rank, part in enumerate(case["cases"] if case["kind"] == "multi" else [case]):
            if part["kind"] == "ids" and "reasoning_parser" not in part.get("params", {}):
                yield pytest.param(part, id=f"{fault['id']}-{rank}-{part['tokenizer']}")


every_case = pytest.mark.parametrize("case", list(id_cases()))


class Run:
    """One case's ids through both, in steps: the text sent at each step, and where it was stopped."""

    def __init__(self, case: Case, sizes: list[int]) -> None:
        params = case.get("params", {})
        skip = params.get("skip_special_tokens", True)
        vocabulary = vocabularies.vocabulary(case["tokenizer"])
        self.detokenizer = IncrementalDetokenizer(vocabulary, case.get("prompt_ids", ()), skip)
        self.matcher = StopMatcher(params.get("stop", []), params.get("include_stop_str_in_output", False))
        self.min_tokens = params.get("min_tokens", 0)
        self.deltas: list[str] = []
        self.matched: str | None = None
        self.used = 0
        for step in cut(case["ids"], sizes):
            self.deltas.append("".join(self._take(token_id) for token_id in step))
        if self.matched is None:
            tail = self.matcher.push(self.detokenizer.finish())
            self.matched = tail.matched
            self.deltas.append(tail.text + self.matcher.finish())

    def _take(self, token_id: int) -> str:
        if self.matched is not None:
            return ""
        self.used += 1
        outcome = self.matcher.push(self.detokenizer.push_token(token_id), armed=self.used > self.min_tokens)
        self.matched = outcome.matched
        return outcome.text

    @property
    def text(self) -> str:
        return "".join(self.deltas)


@every_case
def test_text(case: Case) -> None:
    """The answer's text is right in steps of any size, with no piece of the prompt and no broken character."""
    expect = case["expect"]
    sizes = [*expect.get("chunk_sizes", []), 1, 2, 3, len(case["ids"])]
    for size in sizes:
        run = Run(case, [size])
        assert run.text in expect.get("text_any_of", [expect.get("text")])
        assert all(words not in run.text for words in expect.get("never_contains", []))
        assert expect.get("no_char", "\x00") not in run.text
    if "codepoints" in expect:
        assert [hex(ord(character)) for character in Run(case, [1]).text] == expect["codepoints"]


@every_case
def test_deltas(case: Case) -> None:
    """Each step sends what is certain: not less than the case asks for, never more than is safe."""
    expect = case["expect"]
    run = Run(case, [1])
    if "first_delta_any_of" in expect:
        assert run.deltas[0] in expect["first_delta_any_of"]
    if "deltas" in expect:
        assert [*run.deltas, "", ""][: len(expect["deltas"])] == expect["deltas"]
    sent, allowed = "", ""
    for delta, most in zip(run.deltas, expect.get("deltas_at_most", []), strict=False):
        sent, allowed = sent + delta, allowed + most
        assert allowed.startswith(sent)
    for step, least in enumerate(expect.get("min_emitted_after_step", []), start=1):
        assert len("".join(run.deltas[:step])) >= least


@every_case
def test_stop(case: Case) -> None:
    """The stop string that matched, and how many ids it took, are right."""
    expect = case["expect"]
    run = Run(case, [1])
    assert run.matched == expect.get("matched_stop")
    assert run.used == expect.get("completion_tokens", run.used)


@every_case
def test_bytes(case: Case) -> None:
    """Each id stands for the bytes that the case says; a skipped token for none."""
    vocabulary = vocabularies.vocabulary(case["tokenizer"])
    skip = case.get("params", {}).get("skip_special_tokens", True)
    assert [_bytes_hex(vocabulary, token_id, skip) for token_id in case["ids"]] == case["token_bytes_hex"]


def _bytes_hex(vocabulary: Vocabulary, token_id: int, skip: bool) -> str:
    return "" if skip and token_id in vocabulary.special_ids else vocabulary.token_bytes(token_id).hex()
