"""What a validated request asks of the engine: every sampling and text field arrives, defaults are the hosted API's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.prompt.conversation import Conversation, Role
from engine.prompt.lowering import GenerateRequest
from engine.types import FinishReason, SamplingParams, Simulation, TextParams
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.door import parse_body
from tests.server.replies import MESSAGES


def chat(**fields: Any) -> GenerateRequest:
    """A chat request, lowered."""
    return parse_body(ChatRequest, json.dumps({"messages": MESSAGES, **fields}).encode()).lower("r")


def completion(**fields: Any) -> GenerateRequest:
    """A completions request, lowered."""
    return parse_body(CompletionRequest, json.dumps({"prompt": "hi", **fields}).encode()).lower("r")


def test_defaults() -> None:
    """Nothing asked for: temperature 1, every filter off, a chat takes what the context leaves, a completion 16."""
    for request in (chat(), completion()):
        assert request.sampling == SamplingParams(max_tokens=1)
        assert request.text == TextParams()
        assert (request.n, request.simulation) == (1, None)
    assert chat().max_tokens is None
    assert completion().max_tokens == 16


def test_every_sampling_field_arrives() -> None:
    """Each field of the request is the engine's parameter of that name."""
    fields: dict[str, Any] = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.25,
        "seed": -3,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.5,
        "min_tokens": 4,
        "ignore_eos": True,
    }
    expected = SamplingParams(
        max_tokens=1, **fields, logit_bias={5: -100.0, 9: 1.5}, stop_token_ids=frozenset({3}), logprobs=2
    )
    shared = fields | {"logit_bias": {"5": -100, "9": 1.5}, "stop_token_ids": [3, 3]}
    assert chat(**shared, logprobs=True, top_logprobs=2).sampling == expected
    assert completion(**shared, logprobs=2).sampling == expected


def test_every_text_field_arrives() -> None:
    """Stop strings, one or several, and what is shown of special tokens."""
    assert chat(stop="x").text == TextParams(stop=("x",))
    fields = {"include_stop_str_in_output": True, "skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert completion(stop=["a", "b"], **fields).text == TextParams(("a", "b"), True, False, False)


def test_temperature_zero_is_greedy() -> None:
    """Zero is a value, not an absence."""
    assert chat(temperature=0).sampling.temperature == 0
    assert chat(temperature=None).sampling.temperature == 1
    assert chat(top_k=-1).sampling.top_k == 0


@pytest.mark.parametrize(
    ("fields", "field", "most"),
    [
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"max_completion_tokens": 6}, "max_completion_tokens", 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", 6),
    ],
)
def test_max_tokens_has_two_names(fields: dict[str, int], field: str, most: int) -> None:
    """The newer name wins, and errors speak of the one that was used."""
    request = chat(**fields)
    assert (request.max_tokens_field, request.max_tokens) == (field, most)


def test_simulate() -> None:
    """The script arrives as it was sent."""
    request = chat(simulate={"token_ids": [1, -2, 3], "steps": [2, 1], "then": "length"})
    assert request.simulation == Simulation((1, -2, 3), (2, 1), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_prompts(prompt: Any, prompts: tuple[Any, ...]) -> None:
    """A list of ids is one prompt, a list of anything else is several."""
    assert completion(prompt=prompt).prompts == prompts


def conversation(messages: list[dict[str, Any]], **fields: Any) -> Conversation:
    """A chat request's one prompt."""
    (prompt,) = chat(messages=messages, **fields).prompts
    assert isinstance(prompt, Conversation)
    return prompt


def test_messages() -> None:
    """Every role, parts as lines, names and tool calls."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = conversation(
        [
            {"role": "developer", "content": "be"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "N"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "ok", "tool_call_id": "c"},
        ]
    ).messages
    assert [turn.role for turn in turns] == [Role.DEVELOPER, Role.USER, Role.ASSISTANT, Role.TOOL]
    assert [turn.text for turn in turns] == ["be", "a\nb", "", "ok"]
    assert turns[1].name == "N"
    assert turns[2].tool_calls[0].parsed_arguments() == {}
    assert turns[3].tool_call_id == "c"


@pytest.mark.parametrize("arguments", ["", "null", "{}"])
def test_empty_arguments_are_an_object(arguments: str) -> None:
    """A call without arguments is a call with none."""
    call = {"function": {"name": "f", "arguments": arguments}}
    (turn,) = conversation([{"role": "assistant", "tool_calls": [call]}]).messages
    assert turn.tool_calls[0].parsed_arguments() == {}


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool", "assistant"])
def test_content_is_never_null(role: str) -> None:
    """Only an assistant that called tools may say nothing."""
    with pytest.raises(InvalidRequestError, match="content"):
        chat(messages=[{"role": role, "content": None}])


def test_template_switches() -> None:
    """They reach the conversation."""
    prompt = conversation(
        [{"role": "assistant", "content": "so"}], continue_final_message=True, chat_template_kwargs={"a": [1]}
    )
    assert prompt.continue_final_message
    assert not prompt.add_generation_prompt
    assert prompt.chat_template_kwargs == {"a": [1]}


@pytest.mark.parametrize("name", sorted(ChatRequest.refused))
def test_a_known_field_is_never_ignored(name: str) -> None:
    """What can't be honoured is refused by name when it asks for something, and passes when it does not."""
    with pytest.raises(UnsupportedParameterError) as raised:
        chat(**{name: [{"some": "thing"}]})
    assert raised.value.param == name
    for nothing in (None, False, ChatRequest.neutral.get(name)):
        chat(**{name: nothing})


def test_unknown_fields_are_remembered() -> None:
    """A field that this API does not know is no error, and the log can name it."""
    request = parse_body(ChatRequest, json.dumps({"messages": MESSAGES, "made_up": 1, "echo": None}).encode())
    assert request.ignored_fields == ("made_up",)
