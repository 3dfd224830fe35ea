"""The door: JSON as RFC 8259 has it, nothing coerced, and every fault named by the client's own path to it."""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from engine.errors import InvalidRequestError
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.door import parse_body
from server.wire.tokenization import DetokenizeRequest
from tests.server.bad_requests import BODIES
from tests.server.replies import MESSAGES


class Cat(BaseModel):
    """One kind of pet."""

    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    """Another."""

    kind: Literal["dog"]
    tricks: list[str]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Home(BaseModel):
    """Something of every kind that requests are made of."""

    pet: Pet | None = None
    pets: list[Pet] = []
    address: str | list[str] | list[list[int]] | None = None
    rooms: dict[str, int] = {}
    size: float | None = Field(None, ge=0, allow_inf_nan=False)


def refusal(body: Any, model: type[BaseModel] = Home) -> InvalidRequestError:
    """What the door says of this body."""
    with pytest.raises(InvalidRequestError) as raised:
        parse_body(model, body if isinstance(body, bytes) else json.dumps(body).encode())
    return raised.value


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"pet": 3}, "pet", "object"),
        ({"pet": {}}, "pet.kind", ""),
        ({"pet": {"kind": "cow"}}, "pet.kind", "'cat', 'dog'"),
        ({"pet": {"kind": "cat"}}, "pet.lives", "required"),
        ({"pet": {"kind": "cat", "lives": 10}}, "pet.lives", "less than or equal to 9"),
        ({"pets": [{"kind": "cat", "lives": 1}, {"kind": "dog", "tricks": ["sit", 3]}]}, "pets[1].tricks[1]", "string"),
        ({"pets": {}}, "pets", "list"),
        ({"address": 3}, "address", "string or Input should be a valid list"),
        ({"address": {}}, "address", "string or Input should be a valid list"),
        ({"address": ["a", 3]}, "address[1]", "string"),
        ({"address": [[1], ["a"]]}, "address[1][0]", "integer"),
        ({"rooms": {"a.b": "x"}}, "rooms.a.b", "integer"),
        ({"rooms": []}, "rooms", "object"),
        ({"size": -1}, "size", "greater than or equal to 0"),
        ({"size": True}, "size", "number"),
        ({"size": "1"}, "size", "number"),
        ({"size": -1, "rooms": []}, "rooms", "object"),
    ],
)
def test_the_fault_is_named(body: Any, param: str, words: str) -> None:
    """`param` is the way into the client's input: no name of a class or of a union's member."""
    error = refusal(body)
    assert error.param == param
    assert error.message.startswith(f"{param}: ")
    assert words in error.message


@pytest.mark.parametrize("name", BODIES)
def test_what_is_no_json_object(name: str) -> None:
    """Bad UTF-8, NaN, depth, and JSON that is no object are refused with a sentence and no field."""
    error = refusal(BODIES[name])
    assert error.param is None
    assert "request" in error.message


@given(st.binary(max_size=200))
@example(b'{"size": NaN}')
@example(b'{"size": 1e999}')
@example(b'\xef\xbb\xbf{"size": 1}')
def test_any_bytes_are_a_request_or_a_refusal(body: bytes) -> None:
    """Nothing that a client sends raises anything else."""
    with suppress(InvalidRequestError):
        parse_body(Home, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *ChatRequest.refused, "made_up"})


@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_json_is_a_request_or_a_refusal(fields: dict[str, Any]) -> None:
    """Any value in any field of either request is served or refused by a name that begins with one of these fields."""
    body = json.dumps({"messages": MESSAGES, "prompt": "hi"} | fields).encode()
    assert refused_field(lambda: parse_body(ChatRequest, body).lower("x")) in {*fields, "messages", None}
    assert refused_field(lambda: parse_body(CompletionRequest, body).lower("x")) in {*fields, "prompt", None}


def refused_field(call: Callable[[], object]) -> str | None:
    """The first step of the path that a refusal names; None when it is no refusal. A refusal without a name is ""."""
    try:
        call()
    except InvalidRequestError as error:
        return (error.param or "").partition(".")[0].partition("[")[0]
    return None


MANY = 200_000
LONG_LISTS: list[tuple[type[BaseModel], dict[str, Any], str]] = [
    (CompletionRequest, {"prompt": [[1]] * MANY}, "prompt"),
    (CompletionRequest, {"prompt": [1] * MANY + ["a"]}, f"prompt[{MANY}]"),
    (CompletionRequest, {"prompt": "a", "simulate": {"token_ids": ["a"] * MANY}}, "simulate.token_ids[0]"),
    (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}, "messages[0].content[0].type"),
    (ChatRequest, {"messages": [{"role": "user", "content": 3}] * MANY}, "messages"),
    (ChatRequest, {"messages": MESSAGES, "tools": [1] * MANY}, "tools[0]"),
    (ChatRequest, {"messages": MESSAGES, "modalities": [1] * MANY}, "modalities[0]"),
    (ChatRequest, {"messages": MESSAGES, "stop": [1] * MANY}, "stop[0]"),
    (DetokenizeRequest, {"tokens": ["a"] * MANY}, "tokens[0]"),
]


@pytest.mark.parametrize(("model", "value", "param"), LONG_LISTS, ids=range(len(LONG_LISTS)))
def test_many_wrong_elements_cost_little(model: type[BaseModel], value: dict[str, Any], param: str) -> None:
    """A list is refused at its first fault, for little more than reading its JSON takes: no error for each element."""
    body = json.dumps(value).encode()
    reading = min(timeit.repeat(lambda: json.loads(body), number=1, repeat=5))
    refusing = min(timeit.repeat(lambda: refusal(body, model), number=1, repeat=5))
    assert refusing < 10 * reading  # an error for each element would be a hundred times
    assert (refusal(body, model).param or "").startswith(param.partition("[")[0])
