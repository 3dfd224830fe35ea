"""What a client says of an answer's shape arrives as one structure that names the client's own field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.types import Structure, StructureKind
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.door import parse_body
from tests.server.replies import MESSAGES

SCHEMA = {"type": "object", "properties": {"zß": {"type": "string"}, "a": {"const": 1.0}}}
TEXT = json.dumps(SCHEMA, ensure_ascii=False)
VALUES: list[tuple[str, Any, StructureKind, str]] = [
    ("json", SCHEMA, StructureKind.JSON_SCHEMA, TEXT),
    ("json", TEXT, StructureKind.JSON_SCHEMA, TEXT),
    ("json_object", True, StructureKind.JSON_OBJECT, ""),
    ("regex", "a+", StructureKind.REGEX, "a+"),
    ("choice", ["é", "b"], StructureKind.CHOICE, '["é", "b"]'),
    ("grammar", 'root ::= "a"', StructureKind.GRAMMAR, 'root ::= "a"'),
]


def structure(**fields: Any) -> Structure | None:
    """Of a request with these fields, which both APIs read alike."""
    of_chat = parse_body(ChatRequest, json.dumps({"messages": MESSAGES, **fields}).encode()).lower("r").structure
    of_text = parse_body(CompletionRequest, json.dumps({"prompt": "hi", **fields}).encode()).lower("r").structure
    assert of_chat == of_text
    assert (of_chat and of_chat.param) == (of_text and of_text.param)
    return of_chat


def refusal(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        structure(**fields)
    return refused.value


@pytest.mark.parametrize(("name", "value", "kind", "text"), VALUES)
def test_vllms_fields(name: str, value: Any, kind: StructureKind, text: str) -> None:
    """The newer and the older way to say the same thing are the same structure, under the field that was used."""
    newer, older = structure(structured_outputs={name: value}), structure(**{f"guided_{name}": value})
    assert newer == older == Structure(kind, text)
    assert newer is not None
    assert older is not None
    assert (newer.param, older.param) == (f"structured_outputs.{name}", f"guided_{name}")


@pytest.mark.parametrize("more", [{}, {"strict": True}, {"strict": False}, {"description": "d", "strict": None}])
def test_a_schema_as_response_format(more: dict[str, Any]) -> None:
    """Strict or not, the answer keeps to it: the properties in the client's order."""
    asked = structure(
        response_format={"type": "json_schema", "json_schema": {"name": "a-Z_9", "schema": SCHEMA, **more}}
    )
    assert asked == Structure(StructureKind.JSON_SCHEMA, TEXT)
    assert asked is not None
    assert asked.param == "response_format.json_schema.schema"


def test_an_object_as_response_format() -> None:
    """Any JSON object."""
    asked = structure(response_format={"type": "json_object"})
    assert asked == Structure(StructureKind.JSON_OBJECT)
    assert asked is not None
    assert asked.param == "response_format"


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"guided_json_object": False}, {"guided_regex": None}],
    ids=str,
)
def test_nothing_asked_for(fields: dict[str, Any]) -> None:
    """Text is text."""
    assert structure(**fields) is None


def test_what_vllms_own_client_sends_besides() -> None:
    """Its record with all fields, the unset ones too, is one structure; options that change nothing pass."""
    unset = dict.fromkeys(("json", "choice", "grammar", "json_object", "whitespace_pattern", "structural_tag"))
    idle = {"disable_any_whitespace": True, "disable_fallback": True, "disable_additional_properties": False}
    assert structure(structured_outputs={**unset, **idle, "regex": "a"}) == Structure(StructureKind.REGEX, "a")


@pytest.mark.parametrize("name", ["whitespace_pattern", "structural_tag", "disable_additional_properties", "regexp"])
def test_an_option_is_never_ignored(name: str) -> None:
    """One that would change the answer, or is not known, is refused by its name."""
    refused = refusal(structured_outputs={"json": {}, name: "x"})
    assert isinstance(refused, UnsupportedParameterError)
    assert refused.param == f"structured_outputs.{name}"


def test_exactly_one() -> None:
    """Two structures at once are refused, within a field and across fields, and with a script; the second is named."""
    assert refusal(structured_outputs={"regex": "a", "json": {}}).param == "structured_outputs"
    assert refusal(structured_outputs={}).param == "structured_outputs"
    ways = {
        "response_format": {"type": "json_object"},
        "structured_outputs": {"regex": "a"},
        "guided_json": {},
        "guided_grammar": "g",
    }
    params = ["response_format", "structured_outputs.regex", "guided_json", "guided_grammar"]
    for rank, name in enumerate(ways):
        for later, other in list(enumerate(ways))[rank + 1 :]:
            assert refusal(**{other: ways[other], name: ways[name]}).param == params[later]
        assert refusal(**{name: ways[name]}, simulate={"token_ids": [1]}).param == params[rank]


def test_a_schema_of_any_depth() -> None:
    """It is read, or the client's fault: whichever of JSON's reader and writer has enough of it first."""
    outcomes = set()
    for depth in range(600, 1_100):
        schema = '{"not":' * depth + "{}" + "}" * depth
        body = f'{{"prompt": "hi", "guided_json": {schema}}}'.encode()
        try:
            outcomes.add(parse_body(CompletionRequest, body).lower("r").structure is not None)
        except InvalidRequestError:
            outcomes.add(False)
    assert outcomes == {True, False}
