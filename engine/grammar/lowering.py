"""From each kind of structure to llguidance's own grammar language.

Never compiles: that what comes out is a grammar at all, the rehearsal finds out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from engine.grammar.schema import StructureError, read_json, read_schema
from engine.types import StructureKind

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, the model still chooses how it is tokenized; long fixed texts cost nothing so."""
JSON_OPTIONS = {
    "whitespace_flexible": False,  # a small model may go on with blanks until it is cut
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "coerce_one_of": False,
    "lenient": False,
}
"""JSON on one line, with or without a blank after commas and colons. In place of the client's own `x-guidance`."""
_ESCAPES_AND_CLASSES = re.compile(r"\\[pPxu]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_QUANTIFIED_TWICE = re.compile(r"(?:[*+]|\{\d+(?:,\d*)?\})[*+{]|(?<!\()\?[*+{]|(?:[*+?]|\})\?[*+?{]")


def lower(kind: StructureKind, text: str) -> str:
    """The grammar, as text. `StructureError` for what is refused here."""
    if not text and kind is not StructureKind.JSON_OBJECT:
        raise StructureError("it is empty")
    try:
        return NO_FORCING + LOWERINGS[kind](text)
    except UnicodeEncodeError as error:
        raise StructureError("it has a lone surrogate, which is no character") from error


def json_rule(text: str) -> str:
    """What stands for a schema's JSON in a rule; `text` is the schema. `StructureError`."""
    return _json(read_schema(text))


def _json(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def _regex(pattern: str) -> str:
    """The whole answer matches: anchors change nothing. Rust's syntax, so without look-around and back-references."""
    pattern.encode()
    if _QUANTIFIED_TWICE.search(_ESCAPES_AND_CLASSES.sub("x", pattern)):
        raise StructureError("it repeats a repetition ('**'); put the inner one in a group")
    return f"start: /{regex_to_lark(pattern, '')}/"


def _choice(text: str) -> str:
    choices = read_json(text)
    if not isinstance(choices, list) or not choices:
        raise StructureError("choices are a JSON array of at least one string")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise StructureError("each choice is a string that is not empty")
        choice.encode()
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _grammar(text: str) -> str:
    """GBNF (`root ::= ...`, as llama.cpp and xgrammar) or llguidance's Lark (`start: ...`)."""
    text.encode()
    try:
        return str(any_to_lark(text))
    except Exception as error:  # the converter raises bare Exception
        raise StructureError(f"it is no EBNF: {error}") from error


LOWERINGS: dict[StructureKind, Callable[[str], str]] = {
    StructureKind.JSON_OBJECT: lambda _: "start: " + _json({"type": "object"}),
    StructureKind.JSON_SCHEMA: lambda text: "start: " + json_rule(text),
    StructureKind.REGEX: _regex,
    StructureKind.CHOICE: _choice,
    StructureKind.GRAMMAR: _grammar,
}
