"""Ten schemas of the kinds that people use, each with a question that asks for such an answer; and how to judge one.

Never anything that the engine refuses: the refusals have tests of their own.
"""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from engine.tokenizer import Tokenizer
from engine.types import Structure, StructureKind

_NAME = {"type": "string", "minLength": 1, "maxLength": 40}
_SMALL = {"type": "integer", "minimum": 0, "maximum": 120}


def _object(properties: dict[str, Any], *optional: str, **more: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


_NODE = _object({"value": _SMALL, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "next")

SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "nested": (
        "Describe a person and their address.",
        _object({"name": _NAME, "age": _SMALL, "address": _object({"city": _NAME, "geo": _object({"lat": _SMALL})})}),
    ),
    "enums": (
        "What is the mood, and how strong is it?",
        _object({"mood": {"enum": ["happy", "sad", "überrascht", None]}, "strength": {"enum": [1, 2.5, "high"]}}),
    ),
    "array": (
        "List three animals.",
        {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 2, "maxItems": 4},
    ),
    "optional": (
        "Describe a book.",
        # Says nothing of other properties.
        {"type": "object", "properties": {"title": _NAME, "pages": _SMALL, "isbn": _NAME}, "required": ["title"]},
    ),
    "one_of": (
        "Describe a circle or a square.",
        {
            "oneOf": [
                _object({"shape": {"type": "string", "const": "circle"}, "radius": {"type": "number"}}),
                _object({"shape": {"type": "string", "const": "square"}, "side": {"type": "number"}}),
                {"type": "null"},
            ]
        },
    ),
    "recursive": ("Give a linked list of two numbers.", {"$ref": "#/$defs/node", "$defs": {"node": _NODE}}),
    "strings": (
        "Give an id, a date, an address and a code.",
        _object(
            {
                "id": {"type": "string", "format": "uuid"},
                "day": {"type": "string", "pattern": r"^20\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])$"},
                "host": {"type": "string", "format": "ipv4"},
                "code": {"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]{3}$"},
            }
        ),
    ),
    "numbers": (
        "Give a measurement.",
        _object(
            {
                "celsius": {"type": "number", "minimum": -40, "maximum": 60.5},
                "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                "count": {"type": "integer", "minimum": 10, "multipleOf": 5, "maximum": 10_000},
            }
        ),
    ),
    "const": (
        "Answer yes.",
        {
            "anyOf": [
                _object(
                    {"version": {"const": 2}, "data": {"const": {"ok": [True, None, "é\n"]}}, "note": _NAME}, "note"
                ),
                {"const": "none"},
            ]
        },
    ),
    "empty_object": ("Say nothing.", {"type": "object", "properties": {}, "additionalProperties": False}),
}
"""By name: the question, and the schema."""


def structure(name: str) -> Structure:
    return Structure(StructureKind.JSON_SCHEMA, json.dumps(SCHEMAS[name][1]), "response_format")


def prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    """A chat of one question, in the demo model's own form."""
    return tokenizer.encode(
        f"<|im_start|>user\n{question} Answer in JSON.<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    )


def validates(name: str, text: str) -> bool:
    """Whether the text is JSON by the letter, and valid by the schema with its formats."""
    value = json.loads(text)
    text.encode()
    checker = Draft202012Validator.FORMAT_CHECKER
    return bool(Draft202012Validator(SCHEMAS[name][1], format_checker=checker).is_valid(value))
