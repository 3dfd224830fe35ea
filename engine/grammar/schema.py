"""JSON schemas at the door: what the grammar could not hold an answer to is refused by its keyword.

Never loads another document, and never widens a schema: every answer of the grammar validates. Two things are not in
its power. Where a schema names properties and allows others, a model that spells a named one with an escape passes as
another; and `format` is held to by its syntax (30 February is a date).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

NAMED_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
LISTED_SUBSCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
SUBSCHEMAS = ("items", "additionalProperties")
COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
UNSUPPORTED = frozenset({"additionalItems", "divisibleBy", "extends", "disallow", "$recursiveAnchor"})
"""Assertions that llguidance would pass over in silence. It refuses the others that it can't keep itself, by name:
`not`, `if`, `contains`, `uniqueItems`, `propertyNames`, `dependentRequired`, `unevaluatedProperties` and so on."""
MAX_DEPTH = 64
"""Objects and arrays within one another, in the schema's own text."""


class StructureError(ValueError):
    """Why a structure can't be kept to, in words for the client."""


class TooSlowError(StructureError):
    """It took too long this time; on a machine with less to do it may not."""


def read_json(text: str) -> Any:
    """A JSON value of bounded depth, by the letter: without NaN and Infinity."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StructureError(f"it is not JSON: {error}") from error
    _check_depth(value)
    return value


def read_schema(text: str) -> dict[str, Any]:
    """A schema that the grammar can hold an answer to, closed where it may be. `StructureError` with the keyword."""
    schema = read_json(text)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise StructureError("a schema is a JSON object")
    parts = list(_subschemas(schema))
    for part in parts:
        _check(part)
    if not any(_combines(part) for part in parts):
        for part in parts:
            _close(part)
    return schema


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise StructureError(f"it nests more than {MAX_DEPTH} levels deep")
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]


def _subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and all within it; what only looks like one (in `enum`, `const`, `default`) left alone."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield part
        named = [part[key] for key in NAMED_SUBSCHEMAS if isinstance(part.get(key), dict)]
        listed = [part[key] for key in LISTED_SUBSCHEMAS if isinstance(part.get(key), list)]
        waiting += [child for group in named for child in group.values()]
        waiting += [child for group in listed for child in group]
        waiting += [part[key] for key in SUBSCHEMAS if key in part]


def _check(schema: dict[str, Any]) -> None:
    if unsupported := sorted(UNSUPPORTED.intersection(schema)):
        raise StructureError(f"keyword {unsupported[0]!r} is not supported")
    if isinstance(schema.get("items"), list):
        raise StructureError("'items' as an array is not supported: use 'prefixItems'")
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise StructureError(f"$ref {reference!r} leads out of the document; only '#...' is followed")
    fewest, required = schema.get("minProperties", 0), schema.get("required", [])
    if isinstance(fewest, int) and isinstance(required, list) and fewest > max(1, len(required)):
        # A grammar counts names as they are written, the same one twice if it comes twice.
        raise StructureError("'minProperties' is supported up to 1 or the number of required properties")


def _combines(schema: dict[str, Any]) -> bool:
    """Properties said here may be added to by another schema for the same object."""
    used = [key for key in COMBINING if key in schema]
    return "allOf" in used or len(used) > 1 or bool(used and "properties" in schema)


def _close(schema: dict[str, Any]) -> None:
    """Allows no properties but the named ones where the schema does not say: narrower, and what people mean."""
    if isinstance(schema.get("properties"), dict) and "patternProperties" not in schema:
        schema.setdefault("additionalProperties", False)
