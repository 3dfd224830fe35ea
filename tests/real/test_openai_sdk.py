"""The official OpenAI SDK against real weights, on each engine that has some."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.running_server import RunningServer

pytestmark = pytest.mark.real_model

QUESTION: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(model_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{model_server.url}/v1", api_key="none", max_retries=0, timeout=120) as sdk:
        yield sdk


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    """Text, end and usage, with log probabilities that spell the text."""
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    assert whole.choices[0].message.content is not None
    assert "Paris" in whole.choices[0].message.content
    with client.chat.completions.stream(
        model=model,
        messages=QUESTION,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        stream_options={"include_usage": True},
    ) as stream:
        final = stream.until_done().get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens
    logprobs = final.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    spelled = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert spelled.decode() == whole.choices[0].message.content


def test_a_refusal_is_the_sdks(client: openai.OpenAI) -> None:
    """What does not fit the model's context is a 400 that names the field, before any engine work."""
    model = client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1_000_000)
    assert refused.value.code == "context_length_exceeded"


def test_a_stream_that_is_left_ends(client: openai.OpenAI, model_server: RunningServer) -> None:
    """Leaving the SDK's stream ends the generation within a second."""
    model = client.models.list().data[0].id
    with client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=2_000, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    model_server.wait_idle(2)
