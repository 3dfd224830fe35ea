"""Schemas at the door: what is refused, by name, and what is closed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammar.schema import MAX_DEPTH, StructureError, read_json, read_schema


def nested(depth: int) -> dict[str, Any]:
    """A schema whose text nests that deep."""
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"items": [{"type": "integer"}]}, "prefixItems"),
        ({"additionalItems": False}, "additionalItems"),
        ({"properties": {"a": {"divisibleBy": 3}}}, "divisibleBy"),
        ({"anyOf": [{"type": "null"}, {"$ref": "https://example.com/schema.json"}]}, "example.com"),
        ({"$defs": {"a": {"$ref": "file:///etc/passwd"}}}, "passwd"),
        ({"additionalProperties": {"$ref": "other.json#/a"}}, "other.json"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ([], "JSON object"),
        (False, "JSON object"),
        ("text", "JSON object"),
    ],
)
def test_what_no_grammar_could_hold_to_is_refused_by_name(schema: object, named: str) -> None:
    """Wherever it stands in the schema, the message says which keyword or reference it is."""
    with pytest.raises(StructureError, match=named):
        read_schema(json.dumps(schema))


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", '{"minimum": NaN}', '{"maximum": Infinity}', "[" * 100_000])
def test_only_json_is_read(text: str) -> None:
    """Also what Python's own parser would take, and what it would recurse over for too long, is refused."""
    with pytest.raises(StructureError):
        read_json(text)


def test_depth_is_bounded_exactly() -> None:
    """As many levels as are allowed, and not one more."""
    assert read_schema(json.dumps(nested(MAX_DEPTH)))
    with pytest.raises(StructureError, match=f"{MAX_DEPTH} levels"):
        read_schema(json.dumps(nested(MAX_DEPTH + 1)))


def test_only_subschemas_are_schemas() -> None:
    """Names of properties and values that look like keywords are none."""
    harmless: list[dict[str, Any]] = [
        {"properties": {"divisibleBy": {}, "$ref": {"type": "string"}, "items": {}}},
        {"enum": [{"divisibleBy": 2}], "default": {"$ref": "x"}, "examples": [{"items": []}]},
    ]
    for schema in harmless:
        read_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"properties": {"a": {}}}, True),
        ({"properties": {"a": {}}, "additionalProperties": True}, False),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, False),
        ({"type": "object"}, False),
        ({"properties": {"a": {}}, "$ref": "#/$defs/more", "$defs": {"more": {}}}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}, {"required": ["c"]}]}, False),
    ],
)
def test_named_properties_close_an_object_that_does_not_say(schema: dict[str, Any], closed: bool) -> None:
    """Narrower, never wider: and not where another schema may name further properties of the same object."""
    assert (read_schema(json.dumps(schema)).get("additionalProperties") is False) is closed


def test_nothing_is_closed_in_a_document_that_combines() -> None:
    """A part that looks alone may be reached from the place that combines."""
    inner: dict[str, Any] = {"properties": {"a": {}}}
    schema = {"$defs": {"base": inner}, "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {}}}]}
    assert read_schema(json.dumps(schema)) == schema
    assert read_schema(json.dumps({"anyOf": [inner, {"type": "null"}]}))["anyOf"][0]["additionalProperties"] is False
