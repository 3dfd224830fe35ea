"""Structures of tool calls written as JSON between tags: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Never parses a call, and knows no model: the marks around a call come from whoever knows the family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequestError
from engine.grammar.lowering import json_rule
from engine.grammar.schema import StructureError
from engine.types import Structure, StructureKind


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a family writes a call, and how many the client takes."""

    begin: str = "<tool_call>\n"
    end: str = "\n</tool_call>"
    between: str = "\n"
    name_key: str = "name"
    arguments_key: str = "arguments"
    parallel: bool = True
    """More than one call in an answer."""
    text_allowed: bool = False
    """Text may come instead, and before: only what follows `begin` is bound (`tool_choice: auto` with `strict`)."""


def call_structure(schemas: Mapping[str, Mapping[str, Any]], form: CallForm, param: str = "tools") -> Structure:
    """Calls of these tools only, their arguments by their schemas: one at least, unless text is allowed.

    `InvalidRequestError` with the tool's name where a schema can't be held to; the rest the compiler finds out.
    """
    rules = [_start(form)]
    for number, (name, schema) in enumerate(schemas.items()):
        try:
            arguments = json_rule(json.dumps({"type": "object", **schema}))
        except StructureError as error:
            raise InvalidRequestError(f"{param}: tool {name!r}: {error}", param=param) from error
        named = json.dumps({form.name_key: name}, ensure_ascii=False).removesuffix("}")
        opening = f"{named}, {json.dumps(form.arguments_key)}: "
        rules.append(f'call_{number}: {_literal(opening)} arguments_{number} "}}"\narguments_{number}: {arguments}')
    rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(schemas))))
    return Structure(StructureKind.GRAMMAR, "\n".join(rules), param)


def _start(form: CallForm) -> str:
    begin, end, between = (_literal(text) for text in (form.begin, form.end, form.between))
    if form.text_allowed:
        begun = f"TEXT: /(.|\\n)*/\nbegun[lazy]: TEXT {begin}\ntext: TEXT\n"
        return begun + f"start: {'(begun call ' + end + ')* text' if form.parallel else 'text | begun call ' + end}"
    more = f" ({between} {begin} call {end})*" if form.parallel else ""
    return f"start: {begin} call {end}{more}"


def _literal(text: str) -> str:
    """Lark's strings are JSON's; an empty one is nothing at all."""
    return json.dumps(text, ensure_ascii=False) if text else ""
