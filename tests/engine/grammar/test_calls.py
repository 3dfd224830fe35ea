"""Structures of tool calls: only calls that a client can execute are sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.errors import InvalidRequestError
from engine.grammar import CallForm, GrammarCompiler, call_structure
from engine.types import Grammar
from tests.engine.grammar.byte_tokens import BYTE_TOKENS, is_beginning, is_sentence

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"],
        "$defs": {"city": {"type": "string"}},
    },
    'a "quoted" é': {"properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "now": {},
}
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
QUOTED = '<tool_call>\n{"name": "a \\"quoted\\" é", "arguments": {"n": 1}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRONG = [
    '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "weather", "arguments": {"city": 1}}\n</tool_call>',
]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(BYTE_TOKENS)
    yield compiler
    compiler.close()


def grammar(compiler: GrammarCompiler, *, parallel: bool = True, text_allowed: bool = False) -> Grammar:
    return compiler.compile(call_structure(TOOLS, CallForm(parallel=parallel, text_allowed=text_allowed)))


def test_required_calls_are_all_there_is(compiler: GrammarCompiler) -> None:
    """At least one call, several one after the other, each with its own tool's arguments, and no text around them."""
    calls = grammar(compiler)
    for sentence in (WEATHER, QUOTED, NOW, f"{WEATHER}\n{NOW}\n{WEATHER}"):
        assert is_sentence(calls, sentence)
    for other in ("", "Sure.", f"Sure.{NOW}", f"{NOW} ", f"{NOW}{NOW}", *WRONG):
        assert not is_sentence(calls, other)


def test_one_call_is_one_where_calls_are_not_parallel(compiler: GrammarCompiler) -> None:
    """Nothing follows it."""
    assert is_sentence(grammar(compiler, parallel=False), WEATHER)
    assert not is_beginning(grammar(compiler, parallel=False), f"{WEATHER}\n")


def test_strict_tools_leave_text_free(compiler: GrammarCompiler) -> None:
    """Any text may come, but once a call begins it is held to its schema to its end."""
    calls = grammar(compiler, text_allowed=True)
    for sentence in ("", "Hello <tool_ call>", f"Sure.\n{WEATHER}", f"{NOW}\nand {QUOTED} done", "{}"):
        assert is_sentence(calls, sentence)
    for other in WRONG:
        assert not is_beginning(calls, f"Sure. {other}")
    single = grammar(compiler, text_allowed=True, parallel=False)
    assert is_sentence(single, "only text")
    assert is_sentence(single, f"one {NOW}")
    assert not is_beginning(single, f"one {NOW}x")


def test_a_schema_that_cannot_be_held_to_is_refused_with_its_tool() -> None:
    """The client learns which of its tools it is."""
    with pytest.raises(InvalidRequestError, match="tool 'far'") as caught:
        call_structure({"near": {}, "far": {"properties": {"a": {"$ref": "http://example.com"}}}}, CallForm(), "tools")
    assert caught.value.param == "tools"
