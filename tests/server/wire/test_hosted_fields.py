"""Every field that the official SDK can send is known: taken, or refused by name; none falls under the unknown ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat

from engine.errors import InvalidRequestError
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.door import parse_body
from server.wire.hosted_fields import MAX_LABELS, WITHOUT_EFFECT
from tests.server.replies import MESSAGES

APIS: list[tuple[type[ChatRequest | CompletionRequest], Any, dict[str, Any]]] = [
    (ChatRequest, chat, {"messages": MESSAGES}),
    (CompletionRequest, completions, {"prompt": "a"}),
]
HARMLESS: dict[str, list[Any]] = {
    "metadata": [{}, {"a": "b"}],
    "parallel_tool_calls": [True, False],
    "prompt_cache_key": ["k"],
    "prompt_cache_options": [{"mode": "implicit", "ttl": "30m"}],
    "prompt_cache_retention": ["24h", "in_memory"],
    "safety_identifier": ["someone"],
    "service_tier": ["auto", "default"],
    "store": [True, False],
    "user": ["u"],
    "verbosity": ["medium"],
}
"""What asks for nothing that an answer would show."""
WRONG: list[tuple[str, Any, str]] = [
    ("service_tier", "flex", "service_tier"),
    ("service_tier", "priority", "service_tier"),
    ("service_tier", 1, "service_tier"),
    ("verbosity", "low", "verbosity"),
    ("verbosity", ["high"], "verbosity"),
    ("store", "yes", "store"),
    ("metadata", "a", "metadata"),
    ("metadata", {"a": 1}, "metadata.a"),
    ("metadata", {str(label): "" for label in range(MAX_LABELS + 1)}, "metadata"),
    ("moderation", {"model": "omni-moderation-latest"}, "moderation"),
]


def known_to(request: type[ChatRequest | CompletionRequest]) -> set[str]:
    """The names of all fields that a request takes or refuses."""
    return {field.alias or name for name, field in request.model_fields.items()} | set(request.refused)


@pytest.mark.parametrize(("request_type", "params", "valid"), APIS)
def test_every_field_of_the_sdk_is_known(
    request_type: type[ChatRequest | CompletionRequest], params: Any, valid: dict[str, Any]
) -> None:
    """By the installed SDK's own list, so that a newer SDK's fields fail here before a user sends them."""
    kinds = (params.CompletionCreateParamsNonStreaming, params.CompletionCreateParamsStreaming)
    listed = {name for kind in kinds for name in kind.__annotations__} | set(
        params.CompletionCreateParamsBase.__annotations__
    )
    assert {"model", "stream", "temperature"} <= listed
    assert listed - known_to(request_type) == set()
    assert not parse_body(request_type, json.dumps(valid).encode()).ignored_fields


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_has_no_effect_changes_nothing(name: str) -> None:
    """The engine is asked for the same with the field as without it, and the log names no unknown field."""
    bare = ChatRequest.model_validate({"messages": MESSAGES})
    for value in [*HARMLESS[name], None]:
        sent = parse_body(ChatRequest, json.dumps({"messages": MESSAGES, name: value}).encode())
        assert sent.lower("r") == bare.lower("r")
        assert sent.ignored_fields == ()


@pytest.mark.parametrize(("name", "value", "param"), WRONG)
def test_what_would_mislead_is_refused_by_name(name: str, value: Any, param: str) -> None:
    """A tier, a verbosity or a check that is not to be had here, and values that are none."""
    with pytest.raises(InvalidRequestError) as refused:
        parse_body(ChatRequest, json.dumps({"messages": MESSAGES, name: value}).encode()).lower("r")
    assert refused.value.param == param


PARTS = ["image_url", "input_audio", "file", "video_url", "refusal"]


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_parts_that_are_no_text_are_named(kind: str, role: str) -> None:
    """Whatever else the part holds: the place of its type, and the word itself in the message."""
    for part in ({"type": kind}, {"type": kind, "text": "a"}, {"type": kind, kind: {"url": "http://127.0.0.1:9/x"}}):
        body = {"messages": [*MESSAGES, {"role": role, "content": [{"type": "text", "text": "a"}, part]}]}
        with pytest.raises(InvalidRequestError, match=kind) as refused:
            parse_body(ChatRequest, json.dumps(body).encode())
        assert refused.value.param == "messages[1].content[1].type"
