"""Structured output of the real demo model over HTTP: both APIs, streamed and whole, with the official SDK.

Never a judgement of what the model says: a model of 135M parameters keeps to the shape because it has to.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from engine.grammar import GrammarLimits
from tests.running_server import RunningServer
from tests.server.replies import CHAT, COMPLETIONS, streamed, whole

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.parametrize("model_flags", ["transformers"], indirect=True, scope="session"),
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "rank": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["old", "new", "größer 😀"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "rank", "tags"],
    "additionalProperties": False,
}
EBNF = 'root ::= sum "!"\nsum ::= [1-9] (" + " [1-9]){1,3}\n'
PATHS = [CHAT, COMPLETIONS]
BURST = 12
MOST_GAP_SECONDS = 1.5
"""Between two tokens of a stream beside a burst; a slow structure that was compiled on the loop would make one of two
seconds."""


class Place(BaseModel):
    """What the SDK is asked to parse an answer into."""

    name: str = Field(max_length=30)
    kind: Literal["city", "river"]
    bridges: int | None = Field(ge=0, le=99)


@pytest.fixture
def model(model_server: RunningServer) -> Iterator[httpx.Client]:
    """Afterwards nothing runs and no block is held."""
    with httpx.Client(base_url=model_server.url, timeout=120) as client:
        yield client
    model_server.wait_idle()


def asking(path: str, question: str = "Describe a city in JSON.", **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": question}]} if path == CHAT else {"prompt": question}
    return {**prompt, "max_tokens": 200, "seed": 7, **fields}


def format_of(schema: object, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@pytest.mark.parametrize(("path", "strict"), [(CHAT, True), (CHAT, False), (COMPLETIONS, True)])
def test_a_schema_streamed_and_whole(model: httpx.Client, path: str, strict: bool) -> None:
    """Both say the same, every choice is valid by the schema, and each ends by itself."""
    body = asking(path, response_format=format_of(SCHEMA, strict=strict), n=2, temperature=1)
    reply = whole(model, path, body)
    assert streamed(model, path, body).choices == reply.choices
    assert len(reply.choices) == 2
    for choice in reply.choices.values():
        assert choice.finish_reason == "stop"
        Draft202012Validator(SCHEMA).validate(json.loads(choice.text))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["positive", "très négatif 😀"]}}, "positive|très négatif 😀"),
        ({"structured_outputs": {"regex": r"[A-Z][a-z]{2,9}, \d{4}"}}, r"[A-Z][a-z]{2,9}, \d{4}"),
        ({"structured_outputs": {"grammar": EBNF}}, r"[1-9]( \+ [1-9]){1,3}!"),
        ({"structured_outputs": {"json": {"const": {"a": [1, None]}}}}, r'\{"a": ?\[1, ?null\]\}'),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
    ],
    ids=str,
)
def test_every_language(model: httpx.Client, path: str, fields: dict[str, Any], pattern: str) -> None:
    """The whole answer matches, however it is asked for and sent."""
    body = asking(path, "Say something.", temperature=1, **fields)
    reply = whole(model, path, body)
    assert re.fullmatch(pattern, reply.text), reply.text
    assert reply.finish_reason == "stop"
    assert streamed(model, path, body).choices == reply.choices


@pytest.mark.parametrize("path", PATHS)
def test_any_object(model: httpx.Client, path: str) -> None:
    """An answer that is not cut is an object; one that is cut begins one."""
    reply = whole(model, path, asking(path, response_format={"type": "json_object"}, temperature=0))
    assert reply.text.startswith("{")
    assert reply.finish_reason == "length" or isinstance(json.loads(reply.text), dict)


def test_the_sdk_parses_into_a_model(model_server: RunningServer) -> None:
    """`.parse()` and the stream's parsed event, from a pydantic class."""
    question: Any = [{"role": "user", "content": "Describe Paris."}]
    with openai.OpenAI(base_url=f"{model_server.url}/v1", api_key="none", max_retries=0, timeout=120) as sdk:
        name = sdk.models.list().data[0].id
        parsed = sdk.chat.completions.parse(
            model=name, messages=question, response_format=Place, max_tokens=200, seed=1
        )
        with sdk.chat.completions.stream(
            model=name, messages=question, response_format=Place, max_tokens=200, seed=1
        ) as stream:
            final = stream.until_done().get_final_completion()
    assert isinstance(parsed.choices[0].message.parsed, Place)
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": format_of({"type": "nope"})}, "response_format.json_schema.schema"),
        ({"response_format": format_of({"not": {}})}, "response_format.json_schema.schema"),
        ({"response_format": format_of({"$ref": "https://example.org/s"})}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= missing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"guided_regex": "a" * 200_000}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "simulate": {"token_ids": [1]}}, "guided_regex"),
    ],
    ids=[f"{rank}" for rank in range(10)],
)
def test_what_cannot_be_held_to(
    model: httpx.Client, path: str, stream: bool, fields: dict[str, Any], param: str
) -> None:
    """A 400 before the headers that names the client's own field, for a stream as for a whole answer."""
    response = model.post(path, json=asking(path, stream=stream, **fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]


async def gaps_of(client: httpx.AsyncClient, started: asyncio.Event, done: asyncio.Event) -> list[float]:
    """Seconds between the events of one long stream, read until the burst is over."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    body = asking(COMPLETIONS, "Once upon a time", max_tokens=4_000, ignore_eos=True, stream=True)
    async with client.stream("POST", COMPLETIONS, json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                times.append(loop.time())
            if len(times) == 3:
                started.set()
            if done.is_set():
                break
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def slow_schema(rank: int) -> dict[str, Any]:
    """Takes minutes to compile, and so is refused after the seconds that one structure may take."""
    return {"allOf": [{"type": "string", "pattern": f"a.{{{n}}}b.*{rank}"} for n in range(1, 300)]}


@pytest.mark.anyio
async def test_a_burst_of_structures_beside_a_stream(model_server: RunningServer) -> None:
    """Structures that are new are compiled, and slow ones refused, while a stream runs on: none of them is a gap."""
    started, done = asyncio.Event(), asyncio.Event()
    quick = [{"type": "object", "properties": {f"{rank}-{key}": SCHEMA for key in range(60)}} for rank in range(BURST)]
    schemas = [slow_schema(1), *quick, slow_schema(2)]
    async with httpx.AsyncClient(base_url=model_server.url, timeout=120) as client:
        reading = asyncio.create_task(gaps_of(client, started, done))
        await asyncio.wait_for(started.wait(), 60)
        bodies = [asking(CHAT, response_format=format_of(schema), max_tokens=1) for schema in schemas]
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))
        done.set()
        gaps = await reading
    assert [answer.status_code for answer in answers] == [400, *[200] * BURST, 400]
    assert "to compile" in answers[0].json()["error"]["message"]
    assert max(gaps) < MOST_GAP_SECONDS < GrammarLimits().compile_seconds < sum(gaps)
    model_server.wait_idle()
