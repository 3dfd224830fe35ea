"""Parameters written as bare text to JSON, by the types that the tool's schema gives them.

Never invalid JSON of a whole parameter, whatever the model wrote: what can't be its type is a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from engine.output.parsers.json_text import escaped
from engine.output.parsers.python_values import json_of_literal

ANY: Final = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING: Final = frozenset({"string"})
_TYPES: Final[Mapping[type, frozenset[str]]] = {
    str: STRING,
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    type(None): frozenset({"null"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
}


def parameter_types(schema: Any, name: str) -> frozenset[str]:
    """The JSON types that a tool's schema allows a parameter; all where it does not say."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return _allowed(properties.get(name)) if isinstance(properties, Mapping) else ANY


def json_of(raw: str, types: frozenset[str]) -> str:
    """A whole parameter: as it is where it is JSON of one of `types`, else as a string.

    One that can't be a string may also be written in Python, and is JSON of whatever type if it is of none of its own.
    """
    text = raw.strip()
    found = _json_types(text) - STRING
    if found & types or (found and "string" not in types):
        return text
    written = json_of_literal(text) if "string" not in types else None
    return written if written and _json_types(written) & types else f'"{escaped(raw)}"'


def _allowed(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return ANY
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & ANY or ANY
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str)) & ANY or ANY
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return frozenset().union(*(_TYPES.get(type(value), ANY) for value in values))
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        if isinstance(choices, list) and choices:
            return frozenset().union(*map(_allowed, choices))
    return ANY


def _json_types(text: str) -> frozenset[str]:
    """The types that a JSON text is of; none where it is no JSON."""
    try:
        return _TYPES[type(json.loads(text, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        return frozenset()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
