"""Python literals and bare parameters as JSON: each kind of value, and what is none."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.output.parsers import tool_family
from engine.output.parsers.python_values import MAX_NESTING, json_of_literal
from engine.output.parsers.scanner import LONGEST_PIECE
from engine.output.parsers.xml_values import ANY, json_of, parameter_types
from tests.engine.output.parsers.streamed import assert_independent_of_the_cut, calls
from tests.engine.output.parsers.written_calls import SIZES, cut, quick


def python_argument(literal: str, sizes: list[int]) -> str:
    """The arguments that a call with this one literal has."""
    text = f"[f(a={literal})]"
    parts = assert_independent_of_the_cut(tool_family("pythonic").parser, text, cut(text, sizes))
    (call,) = calls(parts)
    return call.arguments


@pytest.mark.parametrize(
    "literal",
    [
        "1", "-1", "1.5", "1e5", "-2.5E-3", ".5", "1.", "1_000", "0x1f", "0b11", "+7", "12345678901234567890123",
        "True", "False", "None", "''", '""', "'a'", '"\'"', "'\"'", r"'\''", r"'\\'",
        r"'\n\t\r\b\f\a\v\0\x41\u00e9\U0001f336'",
        r"'\101\7x'", "'''a'b\n''c'''", '"""\n"a" """', "'''''' ", "[]", "[ ]", "[1, 2, ]", "[[], [1]]", "{}",
        "{'a': 1, 'b': [None]}", "{ 'a' : {'b':1 , } }", "'é日本🌶'", "'a\\\nb'", "'<>[](){}=,'",
    ],
)  # fmt: skip
@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [100]])
def test_literals_are_what_python_reads(literal: str, sizes: list[int]) -> None:
    """The JSON value of a literal is the one that Python's own parser gives."""
    assert json.loads(python_argument(literal, sizes)) == {"a": ast.literal_eval(literal.strip())}


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("true", True), ("null", None), ("(1, 'b')", [1, "b"]), ("Paris", "Paris"), ("{1: 2, b: 3}", {"1": 2, "b": 3}),
        (r"'\d\N{DASH}\x4'", r"\d\N{DASH}\x4"), (r"'\ud83c\udf36'", "🌶"), ("nan", "nan"), ("01", 1),
        (r"'\U00110000'", r"\U00110000"), ("2024-05-01", "2024-05-01"),
    ],
)  # fmt: skip
def test_what_is_near_a_literal(literal: str, value: object) -> None:
    """JSON's own words, tuples, bare words, unknown escapes and halves of pairs have one documented reading."""
    assert json.loads(python_argument(literal, [2])) == {"a": value}


@pytest.mark.parametrize("size", [1, LONGEST_PIECE - 4, LONGEST_PIECE - 3, LONGEST_PIECE, 3 * LONGEST_PIECE])
def test_whole_literals(size: int) -> None:
    """A literal of any length is JSON as a whole; one with anything after it is none."""
    literal = f"['{'x' * size}']"
    assert json_of_literal(literal) == f'["{"x" * size}"]'
    assert json_of_literal(literal + "x") is None
    assert json_of_literal(literal[:-1]) is None
    assert json_of_literal("") is None


def test_deep_nesting_is_no_literal() -> None:
    """Brackets within brackets beyond the bound end the call instead of the process."""
    text = "[f(a=" + "[" * (MAX_NESTING * 50)
    parser = tool_family("pythonic").parser()
    (call,) = calls([*parser.push(text), *parser.finish()])
    assert call.arguments == '{"a": ' + "[" * MAX_NESTING


@quick
@given(text=st.text(st.characters(exclude_categories=["Cs"])), sizes=SIZES)
def test_any_string_survives(text: str, sizes: list[int]) -> None:
    """Any text that Python writes as a string is that text in the JSON."""
    assert json.loads(python_argument(repr(text), sizes)) == {"a": text}


STRING, INTEGER, OBJECT = frozenset({"string"}), frozenset({"integer"}), frozenset({"object"})


@pytest.mark.parametrize(
    ("raw", "types", "expected"),
    [
        ("12", STRING, '"12"'),
        ("12", INTEGER, "12"),
        (" 12\n", INTEGER, "12"),
        ("12", ANY, "12"),
        ("x", ANY, '"x"'),
        ('"x"', ANY, '"\\"x\\""'),
        ('{"a": 1}', OBJECT, '{"a": 1}'),
        ("{'a': 1}", OBJECT, '{"a": 1}'),
        ("True", frozenset({"boolean"}), "true"),
        ("True", ANY, '"True"'),
        ("None", frozenset({"null", "integer"}), "null"),
        ("null", frozenset({"string", "null"}), "null"),
        ("12", frozenset({"string", "null"}), '"12"'),
        ("NaN", ANY, '"NaN"'),
        ("1.5", INTEGER, "1.5"),
        ("x", INTEGER, '"x"'),
        ("", ANY, '""'),
        (" x ", ANY, '" x "'),
        ("[" * 100_000, ANY, None),
    ],
)
def test_bare_parameters(raw: str, types: frozenset[str], expected: str | None) -> None:
    """A parameter is as it is where it is JSON of a type that it may have, else a string, and always JSON."""
    found = json_of(raw, types)
    assert found == (expected if expected is not None else json.dumps(raw))
    json.loads(found)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1]}, None),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "string"}, {}]}, ANY),
        ({}, ANY),
        ({"$ref": "#/x"}, ANY),
        ({"type": "date"}, ANY),
        (7, ANY),
        ({"type": [1, None]}, ANY),
        ({"type": []}, ANY),
        ({"enum": []}, ANY),
        ({"enum": [{"a": 1}]}, {"object"}),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str] | None) -> None:
    """A schema's types, whatever way it says them; all where it says none, and for whatever is no schema."""
    expected = types if types is not None else {"string", "integer", "number"}
    assert parameter_types({"properties": {"p": schema}}, "p") == expected
    assert parameter_types({"properties": {"p": schema}}, "q") == ANY
    assert parameter_types(schema, "p") == ANY
