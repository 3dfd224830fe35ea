"""Every family's calls, with nasty arguments and text around them: what was written is what comes out, however cut."""

from __future__ import annotations

import ast
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.output.parsers import tool_family
from tests.engine.output.parsers.streamed import assert_independent_of_the_cut, calls, content
from tests.engine.output.parsers.written_calls import (
    JSON_FORMATS,
    PYTHON_FORMATS,
    SIZES,
    XML_FORMATS,
    Arguments,
    cut,
    json_texts,
    keys,
    names,
    plain_text,
    python_call,
    quick,
    texts,
    values,
)

objects = st.dictionaries(texts, values, max_size=3)
keyed = st.dictionaries(keys, values, max_size=3)


@pytest.mark.parametrize("case", JSON_FORMATS)
@quick
@given(data=st.data(), before=plain_text, after=plain_text, sizes=SIZES)
def test_json_arguments_are_what_was_written(
    case: str, data: st.DataObject, before: str, after: str, sizes: list[int]
) -> None:
    """Joined arguments are exactly the JSON text of the model, to the character; text around calls stays as it was."""
    family, write, opening, between, closing = JSON_FORMATS[case]
    written = [
        (data.draw(names), data.draw(json_texts(data.draw(objects)))) for _ in range(data.draw(st.integers(1, 3)))
    ]
    text = before + opening + between.join(write(name, arguments) for name, arguments in written) + closing + after
    parts = assert_independent_of_the_cut(tool_family(family).parser, text, cut(text, sizes))
    assert [(call.name, call.arguments, call.complete) for call in calls(parts)] == [(*call, True) for call in written]
    assert content(parts) == before + after


@quick
@given(data=st.data(), sizes=SIZES)
def test_hermes_against_a_search(data: st.DataObject, sizes: list[int]) -> None:
    """As a regular expression and a JSON decoder find the calls in the whole text."""
    written = data.draw(st.lists(st.tuples(names, objects), min_size=1, max_size=3))
    marked = [json.dumps({"name": name, "arguments": value}) for name, value in written]
    text = " ".join(f"<tool_call>{call.replace('<', chr(92) + 'u003c')}</tool_call>" for call in marked)
    found = [json.loads(match) for match in re.findall("<tool_call>(.*?)</tool_call>", text)]
    parts = assert_independent_of_the_cut(tool_family("hermes").parser, text, cut(text, sizes))
    assert [{"name": call.name, "arguments": call.value} for call in calls(parts)] == found


@quick
@given(data=st.data(), sizes=SIZES)
def test_bare_json(data: st.DataObject, sizes: list[int]) -> None:
    """An answer that begins with JSON calls of known tools, without a marker, is these calls."""
    written = [(data.draw(names), data.draw(json_texts(data.draw(objects)))) for _ in range(2)]
    text = "\n" + ";".join(f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in written)
    schemas = dict.fromkeys((name for name, _ in written), None)
    parts = assert_independent_of_the_cut(lambda: tool_family("llama3_json").parser(schemas), text, cut(text, sizes))
    assert [(call.name, call.arguments) for call in calls(parts)] == written
    assert content(parts) == ""


def schema_of(arguments: Arguments) -> dict[str, object]:
    """The types that the values have, as a tool would declare them."""
    types = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return {"properties": {key: {"type": types.get(type(value), "null")} for key, value in arguments.items()}}


@pytest.mark.parametrize("case", XML_FORMATS)
@quick
@given(name=names, arguments=keyed, around=st.tuples(plain_text, plain_text), sizes=SIZES)
def test_xml_parameters_are_json(
    case: str, name: str, arguments: Arguments, around: tuple[str, str], sizes: list[int]
) -> None:
    """Parameters become JSON of the types that the schema gives them; strings are kept to the character."""
    family, write = XML_FORMATS[case]
    text = around[0] + write(name, arguments) + "\n" + write(name, {}) + around[1]
    schemas = {name: schema_of(arguments)}
    parts = assert_independent_of_the_cut(lambda: tool_family(family).parser(schemas), text, cut(text, sizes))
    assert [(call.name, call.value, call.complete) for call in calls(parts)] == [
        (name, arguments, True),
        (name, {}, True),
    ]
    assert content(parts) == "".join(around)


@pytest.mark.parametrize("case", PYTHON_FORMATS)
@quick
@given(data=st.data(), after=plain_text, sizes=SIZES)
def test_python_literals_are_json(case: str, data: st.DataObject, after: str, sizes: list[int]) -> None:
    """Arguments are the JSON of what Python's own parser reads in the literals."""
    family, opening, between, closing = PYTHON_FORMATS[case]
    written = [
        (data.draw(st.sampled_from(["f", "ns.g"])), data.draw(keyed)) for _ in range(data.draw(st.integers(1, 3)))
    ]
    text = opening + between.join(python_call(*call) for call in written) + closing + after
    parts = assert_independent_of_the_cut(tool_family(family).parser, text, cut(text, sizes))
    expected = [
        (name, {key: ast.literal_eval(repr(value)) for key, value in arguments.items()}) for name, arguments in written
    ]
    assert [(call.name, call.value) for call in calls(parts)] == expected
    assert content(parts) == after
