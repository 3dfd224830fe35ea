"""Tool calls of the real demo model with the official SDK: forced ones keep to their schema, streamed and whole.

Never a judgement of the arguments: a model of 135M parameters calls a function because the grammar makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator

from tests.running_server import RunningServer

pytestmark = pytest.mark.real_model
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
NUMBER: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": PLACE, "square": NUMBER}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris, in C?"}]
CHOICES: Any = ["required", {"type": "function", "function": {"name": "square"}}]


@pytest.fixture
def client(model_server: RunningServer) -> Iterator[openai.OpenAI]:
    """Afterwards nothing runs."""
    with openai.OpenAI(base_url=f"{model_server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
    model_server.wait_idle()


@pytest.fixture
def fields(client: openai.OpenAI) -> dict[str, Any]:
    """Of every request: the model that is served, greedily."""
    return {"model": client.models.list().data[0].id, "tools": TOOLS, "temperature": 0, "max_tokens": 200}


@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named"])
def test_forced_calls_keep_to_their_schema(client: openai.OpenAI, fields: Any, choice: Any) -> None:
    """Greedily the streamed calls are those of the whole answer; each is of a tool that may be called, and valid."""
    fields |= {"messages": QUESTION, "tool_choice": choice, "parallel_tool_calls": False}
    whole = client.chat.completions.create(**fields).choices[0]
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"
    (call,), (again,) = whole.message.tool_calls or [], streamed.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == (again.function.name, again.function.arguments)
    assert call.function.name == ("square" if choice != "required" else call.function.name)
    Draft202012Validator(SCHEMAS[call.function.name]).validate(json.loads(call.function.arguments))


def test_a_conversation_with_a_tool_goes_on(client: openai.OpenAI, fields: Any) -> None:
    """Call, result, answer: what the model called and was told is in the next prompt, which it answers in words."""
    first = client.chat.completions.create(messages=QUESTION, tool_choice=CHOICES[1], **fields).choices[0].message
    (call,) = first.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is 17 degrees in Paris."}
    turns: Any = [*QUESTION, first.model_dump(exclude_none=True), result]
    last = client.chat.completions.create(messages=turns, tool_choice="none", **fields).choices[0]
    assert last.message.content
    assert not last.message.tool_calls
    assert last.finish_reason in ("stop", "length")
