"""The request fields that say what an answer has to look like: OpenAI's, vLLM's, and those that vLLM had before.

Never compiles: that a schema, a regular expression or a grammar can be held to is found out before the answer begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.types import Structure, StructureKind
from server.wire.door import SHOWN, items

MAX_ANSWERS = 10_000
"""Most choices of one `choice`."""
KINDS = {
    "json": StructureKind.JSON_SCHEMA,
    "json_object": StructureKind.JSON_OBJECT,
    "regex": StructureKind.REGEX,
    "choice": StructureKind.CHOICE,
    "grammar": StructureKind.GRAMMAR,
}
"""By vLLM's names."""
IDLE_OPTIONS = frozenset({"disable_any_whitespace", "disable_fallback"})
"""Of `structured_outputs`: JSON is on one line here anyway, and there is nothing to fall back on."""
REFUSED_OPTIONS = {
    "disable_additional_properties": "say additionalProperties in the schema",
    "structural_tag": "this server has no structural tags",
    "whitespace_pattern": "JSON answers are on one line",
}

Schema = dict[str, Any] | str
"""A JSON schema, or its text."""
Answers = Annotated[list[Annotated[str, Field(min_length=1)]], items(MAX_ANSWERS, least=1)]


class JsonSchemaField(BaseModel):
    """A schema and its name. Answers keep to it whether it is called strict or not."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The shape that the client wants of the answer."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaField | None = None

    def structures(self) -> Iterator[Structure]:
        """None or one."""
        if self.type == "json_object":
            yield Structure(StructureKind.JSON_OBJECT, param="response_format")
        elif self.type == "json_schema":
            param = "response_format.json_schema"
            if self.json_schema is None:
                raise InvalidRequestError(f"{param}: Field required with type 'json_schema'", param=param)
            param += ".schema"
            yield Structure(StructureKind.JSON_SCHEMA, _as_json(self.json_schema.schema_, param), param)


class StructuredOutputsField(BaseModel):
    """vLLM's: exactly one of these. What its own client sends besides, unset, is let pass."""

    model_config = ConfigDict(frozen=True, extra="allow")

    json_: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Answers | None = None
    grammar: str | None = None

    def structures(self) -> Iterator[Structure]:
        """Exactly one. `InvalidRequestError`, also for options that are set and not known here."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and value is not False and name not in IDLE_OPTIONS:
                reason = REFUSED_OPTIONS.get(name, "this server does not know it")
                raise UnsupportedParameterError(f"structured_outputs.{name[:SHOWN]}", reason)
        values = {
            "json": self.json_,
            "json_object": self.json_object,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
        }
        asked = list(_structures("structured_outputs.", values))
        if len(asked) != 1:
            message = f"structured_outputs has {len(asked)} of {', '.join(KINDS)}; it takes exactly one"
            raise InvalidRequestError(message, param="structured_outputs")
        yield from asked


class StructureFields(BaseModel):
    """Part of both requests."""

    model_config = ConfigDict(frozen=True, extra="allow")

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: Schema | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: Answers | None = None
    guided_grammar: str | None = None

    def structure(self) -> Structure | None:
        """What the answer has to look like, if the client says so. `InvalidRequestError` where it does so twice."""
        asked = list(self._structures())
        if len(asked) > 1:
            message = f"{asked[0].param} and {asked[1].param} both say what the answer looks like; only one can"
            raise InvalidRequestError(message, param=asked[1].param)
        return asked[0] if asked else None

    def _structures(self) -> Iterator[Structure]:
        if self.response_format is not None:
            yield from self.response_format.structures()
        if self.structured_outputs is not None:
            yield from self.structured_outputs.structures()
        values = {name: getattr(self, f"guided_{name}") for name in KINDS}
        yield from _structures("guided_", values)


def _structures(prefix: str, values: Mapping[str, Any]) -> Iterator[Structure]:
    """One for each value that asks for something."""
    for name, kind in KINDS.items():
        value = values[name]
        if value is True:
            yield Structure(kind, param=prefix + name)
        elif isinstance(value, str):
            yield Structure(kind, value, prefix + name)
        elif value is not None and value is not False:
            yield Structure(kind, _as_json(value, prefix + name), prefix + name)


def _as_json(value: object, param: str) -> str:
    """In the client's own order: properties are generated in the schema's."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequestError(f"{param}: it is nested too deeply", param=param) from None
