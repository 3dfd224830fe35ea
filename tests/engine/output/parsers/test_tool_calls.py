"""What a call is and is not: the reported faults, calls that are cut or broken, and text between and after calls."""

from __future__ import annotations

from typing import Any

import pytest

from engine.output.parsers import (
    ContentText,
    Part,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    tool_family,
    tool_schemas,
)
from tests.engine.output.parsers.streamed import after_each_character, assert_independent_of_the_cut, calls, content

C = ContentText


def call(name: str, arguments: str, index: int = 0, call_id: str | None = None) -> list[Part]:
    return [ToolCallBegin(index, name, call_id), ToolCallArguments(index, arguments), ToolCallEnd(index)]


def cut_call(name: str, arguments: str) -> list[Part]:
    return call(name, arguments)[:-1]


HERMES: list[tuple[str, list[Part]]] = [
    # TOOL-01: the last braces, and "[{" at the beginning of a list
    ('<tool_call>\n{"name": "get", "arguments": {"id": 42}}\n</tool_call>', call("get", '{"id": 42}')),
    (
        '<tool_call>\n{"name": "calc", "arguments": {"xs": [{"a": 1}]}}\n</tool_call>',
        call("calc", '{"xs": [{"a": 1}]}'),
    ),
    # TOOL-03: two calls
    (
        (
            '<tool_call>\n{"name": "get", "arguments": {"id": 42}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
        ),
        [*call("get", '{"id": 42}'), *call("now", "{}", 1)],
    ),
    # TOOL-06: what only begins like a marker
    ("<tool_cal", [C("<tool_cal")]),
    ("1 <", [C("1 <")]),
    # whitespace before, between and after calls is dropped; with other text it stays
    ('\n \n<tool_call>{"name": "f"}</tool_call>\n\n', call("f", "{}")),
    ('So.\n<tool_call>{"name": "f"}</tool_call>', [C("So.\n"), *call("f", "{}")]),
    ('<tool_call>{"name": "f"}</tool_call>\n\nDone. ', [*call("f", "{}"), C("\n\nDone. ")]),
    # no call: text as it was, up to the character that shows it, where reading goes on
    (" <tool_call>no</tool_call>", [C(" <tool_call>no</tool_call>")]),
    ('<tool_call>{"arguments": {}}</tool_call>', [C('<tool_call>{"arguments": {}}</tool_call>')]),
    ('<tool_call>{"name": 1}</tool_call>', [C('<tool_call>{"name": 1}</tool_call>')]),
    ('<tool_call>{"name": ""}', [C('<tool_call>{"name": ""}')]),
    ('<tool_call>{"name": "\\ud800"}', [C('<tool_call>{"name": "\\ud800"}')]),
    ("<tool_call>{}", [C("<tool_call>{}")]),
    ('<tool_call><tool_call>{"name": "f"}</tool_call>', [C("<tool_call>"), *call("f", "{}")]),
    ('<tool_call>{"arguments": {"a": 1', [C('<tool_call>{"arguments": {"a": 1')]),
    # cut: as far as it went, without an end
    ('<tool_call>{"name": "f"', [ToolCallBegin(0, "f")]),
    ('<tool_call>{"name": "f", "argu', [ToolCallBegin(0, "f")]),
    ('<tool_call>{"name": "f", "arguments": {"a": "x\\', cut_call("f", '{"a": "x\\')),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}', cut_call("f", '{"a": 1}')),
    ('<tool_call>{"name": "f", "arguments": {"a": <', cut_call("f", '{"a": <')),
    ('<tool_call>{"name": "f", "arguments": {}}\n</tool_ca', call("f", "{}")),
    # broken: the closing marker ends a call wherever it is no text of a string, and whatever else is text
    ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>!', [*call("f", '{"a": 1}'), C("!")]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>!', [*call("f", '{"a": 1'), C("!")]),
    ('<tool_call>{"name": "f"} and so on', [*call("f", "{}"), C(" and so on")]),
    ('<tool_call>{"name": "f" and so on', [*call("f", "{}"), C("and so on")]),
    # whatever is written as arguments, to the character; only the first count; other members are dropped
    ('<tool_call>{"name": "f", "arguments": {\'a\': True}}</tool_call>', call("f", "{'a': True}")),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call("f", '"{\\"a\\": 1}"')),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', call("f", "null")),
    ('<tool_call>{"name": "f", "parameters": {}, "arguments": {"a": 1}, "id": [2]}</tool_call>', call("f", "{}")),
    ('<tool_call>{"n\\u0061me": "\\u0066", "arguments": {}}</tool_call>', call("f", "{}")),
]


@pytest.mark.parametrize(("text", "expected"), HERMES)
def test_hermes(text: str, expected: list[Part]) -> None:
    """Calls, what is none, and what is cut or broken, from any cut of the text."""
    for size in (1, 2, 3, 5, 8):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert assert_independent_of_the_cut(tool_family("hermes").parser, text, pieces) == expected


OTHERS: list[tuple[str, str, list[Part]]] = [
    # bare calls name a tool and have arguments; anything else an answer begins with is text
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', call("f", '{"a": 1}')),
    ("llama3_json", '[{"name": "f", "parameters": {}}]', call("f", "{}")),
    ("llama3_json", '{"parameters": {"a": 1}, "name": "f"}', call("f", '{"a": 1}')),
    ("llama3_json", '{"name": "Ada", "parameters": {}}', [C('{"name": "Ada", "parameters": {}}')]),
    ("llama3_json", ' {"name": "f"}', [C(' {"name": "f"}')]),
    ("llama3_json", 'So {"name": "f", "parameters": {}}', [C('So {"name": "f", "parameters": {}}')]),
    ("llama3_json", 'So <|python_tag|>{"name": "x", "parameters": {}}', [C("So "), *call("x", "{}")]),
    ("llama3_json", '<|python_tag|>f.call(q="x")', [C('<|python_tag|>f.call(q="x")')]),
    ("pythonic", "[f(a=1)]", call("f", '{"a": 1}')),
    ("pythonic", "[g(a=1)]", [C("[g(a=1)]")]),
    ("pythonic", "[1, 2]", [C("[1, 2]")]),
    ("pythonic", "[f(1)]", [C("[f(1)]")]),
    ("pythonic", "[f]", [C("[f]")]),
    ("pythonic", "[f(a=1, b='x", cut_call("f", '{"a": 1, "b": "x')),
    ("pythonic", "[f(a=1 b=2)]", [*call("f", '{"a": 1}'), C("b=2)]")]),
    ("pythonic", "[f(a=1,)] text", [*call("f", '{"a": 1}'), C(" text")]),
    ("mistral", "[TOOL_CALLS]f{}", call("f", "{}")),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]x1[ARGS]{}", call("f", "{}", call_id="x1")),
    ("mistral", "[TOOL_CALLS]f text", [C("[TOOL_CALLS]f text")]),
    ("mistral", '[TOOL_CALLS][{"name": "f"}, 1]', [*call("f", "{}"), C(", 1]")]),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>text", [C("<｜tool▁calls▁begin｜>text")]),
    ("deepseek_v3", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a', cut_call("f", '{"a')),
    ("deepseek_v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>", call("f", "{}")),
    (
        "kimi_k2",
        "<|tool_call_begin|>functions.f:12<|tool_call_argument_begin|>{}<|tool_call_end|>",
        call("f", "{}", call_id="functions.f:12"),
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=s>\na\nb",
        cut_call("f", '{"s": "a\nb'.replace("\n", "\\n")),
    ),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\n12", cut_call("f", '{"n": 12')),
    ("qwen3_coder", "<tool_call>\n<function=f>\n</function> text", [*call("f", "{}"), C(" text")]),
    ("qwen3_coder", "<function=f></function></tool_call>", call("f", "{}")),
    ("qwen3_coder", "<tool_call>\n<function=f>\noops", [*call("f", "{}"), C("oops")]),
    ("qwen3_coder", "<function=f>\n<parameter=n>\n1\n</parameter>\noops", [*call("f", '{"n": 1}'), C("oops")]),
    ("qwen3_coder", "<tool_call>text", [C("<tool_call>text")]),
    ("glm45", "<tool_call>f text", [C("<tool_call>f text")]),
    ("glm45", "<tool_call>f\n", [C("<tool_call>f\n")]),
    ("gpt_oss", " to=functions.f<|channel|>commentary json<|message|>{}", call("f", "{}")),
    ("gpt_oss", "<|channel|>commentary to=python<|message|>1", [C("<|channel|>commentary to=python<|message|>1")]),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{", cut_call("f", "{")),
]
SCHEMAS = {"f": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}


@pytest.mark.parametrize(("family", "text", "expected"), OTHERS)
def test_other_families(family: str, text: str, expected: list[Part]) -> None:
    """As for Hermes, where a family has rules of its own."""
    for size in (1, 2, 3, 5, 8):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert assert_independent_of_the_cut(lambda: tool_family(family).parser(SCHEMAS), text, pieces) == expected


GROWING = [
    ("hermes", '<tool_call>{"name": "f", "arguments": ', '{"s": "some text", "n": [1, {"a": 2.5}]}'),
    ("mistral", "[TOOL_CALLS]f[ARGS]", '{"s": "some text", "n": [1, {"a": 2.5}]}'),
    ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", '{"s": "some text"}'),
    ("gpt-oss", "<|channel|>commentary to=functions.f<|message|>", '{"s": "some text"}'),
    ("pythonic", '[f(s="', "some text"),
    ("qwen3_coder", "<function=f>\n<parameter=s>\n", "some text"),
    ("glm45", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>", "some text"),
]


@pytest.mark.parametrize(("family", "before", "growing"), GROWING)
def test_arguments_leave_as_they_grow(family: str, before: str, growing: str) -> None:
    """Once the name is known, each character of the arguments leaves with the push that brought it."""
    states = list(after_each_character(lambda: tool_family(family).parser(SCHEMAS), before + growing))
    for length, (parts, held) in enumerate(states[len(before) :], 1):
        (found,) = calls(parts)
        assert found.arguments.endswith(growing[:length])
        assert held == 0


def test_the_name_leaves_as_soon_as_it_is_known() -> None:
    """A call begins with the quote that ends its name, long before its arguments."""
    parser = tool_family("hermes").parser()
    assert not parser.push('<tool_call>{"name": "f')
    assert parser.held == len('<tool_call>{"name": "f')
    assert parser.push('"') == [ToolCallBegin(0, "f")]
    assert parser.held == 0


def test_schemas_of_tools() -> None:
    """Schemas come by name from tools in OpenAI's shape; what is no such tool is left out."""
    function = {"name": "f", "parameters": {"type": "object"}}
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": function},
        {"type": "x"},
        {"function": {"name": 1}},
        {"function": {"name": "g"}},
    ]
    assert tool_schemas(tools) == {"f": {"type": "object"}, "g": None}


def test_text_without_tools_is_content() -> None:
    """Text in which nothing begins like a marker leaves at once and as it is."""
    parser = tool_family("hermes").parser()
    assert [content(parser.push(piece)) for piece in ("Some ", "text,\n", " {and} so")] == [
        "Some ",
        "text,\n",
        " {and} so",
    ]
    assert not parser.finish()
