"""The official OpenAI Python SDK on a real port, warnings as errors: what it accumulates, and what it raises.

Never a mock transport: the bytes are the server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

from tests.running_server import RunningServer, simulated

HELLO = [19556, 15107, 230, 131]
"""`Hello`, then an emoji in three tokens."""
MODEL = "simulated-echo"
HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]


def script(*token_ids: int, then: str = "eos") -> dict[str, Any]:
    """What the SDK sends beside its own fields."""
    return {"simulate": {"token_ids": list(token_ids), "then": then}}


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Asks for a key, and fails each sequence with its tenth token."""
    settings = (
        "engine.step_interval_ms=1",
        "engine.faults.fail_after_tokens=10",
        f"engine.served_model_name={MODEL}",
        "server.api_keys=right",
        "server.keepalive_seconds=0.001",
    )
    flags = simulated(demo_model, *settings)
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("sdk")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """The synchronous client; a refusal is raised, not tried again."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="right", max_retries=0) as sdk:
        yield sdk


def test_models(client: openai.OpenAI) -> None:
    """The model is listed and can be retrieved."""
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL) == model


def test_a_whole_answer(client: openai.OpenAI) -> None:
    """Text, usage and the request's id come through."""
    answer = client.chat.completions.create(model=MODEL, messages=HI, extra_body=script(*HELLO))
    assert answer.choices[0].message.content == "Hello 🌶"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer._request_id
    assert answer._request_id in answer.id


def test_a_stream(client: openai.OpenAI) -> None:
    """Deltas join to the text, keep-alives notwithstanding; usage is in the last chunk."""
    with client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}, extra_body=script(*HELLO)
    ) as stream:
        chunks: list[ChatCompletionChunk] = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello 🌶"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 4


def test_the_stream_helper(client: openai.OpenAI) -> None:
    """`.stream()` accumulates the answer and tells of content and log probabilities, each done once."""
    with client.chat.completions.stream(
        model=MODEL, messages=HI, logprobs=True, top_logprobs=1, extra_body=script(*HELLO)
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello 🌶"
    kinds = [event.type for event in events]
    assert kinds.count("content.done") == kinds.count("logprobs.content.done") == 1
    assert "content.delta" in kinds
    logprobs = final.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode() == "Hello 🌶"


def test_the_stream_helper_with_two_choices(client: openai.OpenAI) -> None:
    """Both choices are accumulated, with usage summed over them."""
    with client.chat.completions.stream(
        model=MODEL, messages=HI, n=2, stream_options={"include_usage": True}, extra_body=script(*HELLO)
    ) as stream:
        final = stream.until_done().get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["Hello 🌶"] * 2
    assert final.usage is not None
    assert final.usage.completion_tokens == 8


def test_a_length_finish(client: openai.OpenAI) -> None:
    """An answer that `max_tokens` ended says `length`, which the helper raises with the answer so far."""
    with (
        client.chat.completions.stream(model=MODEL, messages=HI, max_tokens=1, extra_body=script(*HELLO)) as stream,
        pytest.raises(openai.LengthFinishReasonError) as ended,
    ):
        stream.get_final_completion()
    assert ended.value.completion.choices[0].message.content == "Hello"
    whole = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=1, extra_body=script(*HELLO))
    assert whole.choices[0].finish_reason == "length"


async def test_the_asynchronous_client(server: RunningServer) -> None:
    """Whole, streamed and helped, the asynchronous client gets the same."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="right", max_retries=0) as client:
        body = script(*HELLO)
        answer = await client.chat.completions.create(model=MODEL, messages=HI, extra_body=body)
        assert answer.choices[0].message.content == "Hello 🌶"
        parts = await client.chat.completions.create(model=MODEL, messages=HI, stream=True, extra_body=body)
        async with parts:
            texts = [chunk.choices[0].delta.content or "" async for chunk in parts]
        assert "".join(texts) == "Hello 🌶"
        async with client.chat.completions.stream(model=MODEL, messages=HI, extra_body=body) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello 🌶"
        assert (await client.models.list()).data[0].id == MODEL


def test_completions(client: openai.OpenAI) -> None:
    """The older API: text, ids, several prompts, log probabilities, streamed and whole."""
    whole = client.completions.create(model=MODEL, prompt=["Hello", " world"], logprobs=0)
    assert [choice.text for choice in whole.choices] == ["Hello", " world"]
    assert whole.choices[1].logprobs is not None
    assert whole.choices[1].logprobs.tokens == [" world"]
    with client.completions.create(model=MODEL, prompt=HELLO, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello 🌶"


def test_a_stream_that_is_left(client: openai.OpenAI, server: RunningServer) -> None:
    """Leaving the SDK's stream early closes its connection, and so ends the generation."""
    with client.chat.completions.create(model=MODEL, messages=HI, stream=True, extra_body=script(*[905] * 9)) as stream:
        next(iter(stream))
    server.wait_idle(1)


def test_an_error_within_a_stream(client: openai.OpenAI) -> None:
    """A failure after the first token is raised as `APIError` with the server's message."""
    chunks: list[ChatCompletionChunk] = []
    with (
        client.chat.completions.create(model=MODEL, messages=HI, stream=True, extra_body=script(*[905] * 20)) as stream,
        pytest.raises(openai.APIError, match="simulated fault after 10 tokens"),
    ):
        chunks.extend(stream)  # keeps what came before the error
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " world" * 10


def test_an_error_within_the_helper(client: openai.OpenAI) -> None:
    """`.stream()` raises it as well, instead of a final answer."""
    with (
        client.chat.completions.stream(model=MODEL, messages=HI, extra_body=script(*[905] * 20)) as stream,
        pytest.raises(openai.APIError, match="simulated fault"),
    ):
        stream.get_final_completion()


def test_a_failure_of_a_whole_answer(client: openai.OpenAI) -> None:
    """It is the SDK's server error."""
    with pytest.raises(openai.InternalServerError) as raised:
        client.chat.completions.create(model=MODEL, messages=HI, extra_body=script(*[905] * 20))
    assert raised.value.code == "generation_failed"


@pytest.mark.parametrize("stream", [True, False])
def test_refusals(client: openai.OpenAI, stream: bool) -> None:
    """The SDK's own kinds of error, with code and field."""
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=HI, temperature=9, stream=stream)
    assert (bad.value.status_code, bad.value.param, bad.value.type) == (400, "temperature", "invalid_request_error")
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=HI, stream=stream)
    assert missing.value.code == "model_not_found"
    stranger = client.with_options(api_key="wrong")  # shares the connections, which `client` closes
    with pytest.raises(openai.AuthenticationError) as unknown:
        stranger.chat.completions.create(model=MODEL, messages=HI, stream=stream)
    assert unknown.value.code == "invalid_api_key"
