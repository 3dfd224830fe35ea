"""The whole path on the real model, through a real port: what a person who types two commands gets."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from client.sse import SSEDecoder
from tests.running_server import RunningServer, poll_until

pytestmark = pytest.mark.real_model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SUBJECTS = ("rivers", "bread", "Saturn", "chess", "the number seven", "whales", "glass", "Tuesday")
NEAR_TIE = 1e-3
"""Log probabilities nearer than this are a tie: batching changes the order of additions, and float32 rounds."""


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


async def deltas(client: httpx.AsyncClient, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of one stream as they come; the response is closed when the iteration is left."""
    decoder = SSEDecoder()
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        async for data in response.aiter_bytes():
            for event in decoder.feed(data):
                if event.data != "[DONE]":
                    yield json.loads(event.data)


async def tokens_of(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Every token of one streamed answer, with its log probability and the runner-up's."""
    tokens: list[dict[str, Any]] = []
    async for chunk in deltas(client, {**body, "logprobs": True, "top_logprobs": 2}):
        for choice in chunk["choices"]:
            tokens += (choice["logprobs"] or {"content": []})["content"]
    return tokens


def test_the_capital_of_france_is_paris(model_server: RunningServer) -> None:
    """At temperature 0 the demo model knows it."""
    answer = model_server.post("/v1/chat/completions", {"messages": QUESTION, "temperature": 0}).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 40},
        {"max_tokens": 40, "stop": [".", "and"]},
        {"max_tokens": 30, "frequency_penalty": 1.5, "logit_bias": {"260": -5}},
        {"max_tokens": 30, "temperature": 1.0, "seed": 11, "top_p": 0.9, "n": 2},
    ],
)
def test_streaming_says_what_the_whole_answer_says(model_server: RunningServer, fields: dict[str, Any]) -> None:
    """The same request, streamed and whole: the same text, end and usage, for every choice."""
    body = chat("Tell me about the sea.", **fields)
    whole = model_server.post("/v1/chat/completions", body).json()
    chunks = model_server.events("/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (
        whole["usage"]["prompt_tokens"],
        whole["usage"]["completion_tokens"],
    )


@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_32_streams_together_say_what_each_says_alone(model_server: RunningServer) -> None:
    """Greedy answers do not depend on the company; where they part, the two best tokens were all but equal."""
    bodies = [
        chat(f"Write about {SUBJECTS[number % 8]}. " + "Be brief. " * (number // 8), max_tokens=20)
        for number in range(32)
    ]
    async with httpx.AsyncClient(base_url=model_server.url, timeout=300) as client:
        together = await asyncio.gather(*(tokens_of(client, body) for body in bodies))
        for body, company in zip(bodies, together, strict=True):
            alone = await tokens_of(client, body)
            for one, other in zip(alone, company, strict=False):
                if one["token"] != other["token"]:
                    best, second = (top["logprob"] for top in one["top_logprobs"])
                    assert best - second < NEAR_TIE, f"{body}: {one} alone, {other} in company"
                    break
            else:
                assert len(alone) == len(company)
    model_server.wait_idle()


@pytest.mark.anyio
async def test_words_trickle(model_server: RunningServer) -> None:
    """The first words are there well before the last ones: the answer is streamed, not sent at the end."""
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        begin = loop.time()
        times = [loop.time() - begin async for _ in deltas(client, chat("Count.", max_tokens=40, ignore_eos=True))]
    assert times[2] < times[-1] / 2
    assert len({round(at, 2) for at in times}) > 20


async def left_when(server: RunningServer, body: dict[str, Any], metric: str, value: int) -> None:
    """Asks, waits until the server's metric has this value, and closes the connection without having read anything."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json={**body, "stream": True}))
        await asyncio.to_thread(
            poll_until, lambda: server.metrics()[metric] == value, 20, lambda: f"{metric} != {value}"
        )
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def dropped(client: httpx.AsyncClient, body: dict[str, Any], events: int) -> None:
    """Opens a stream, reads so many events, and leaves; with no events, 50 ms after asking."""
    if events == 0:
        with pytest.raises(httpx.TimeoutException):
            await client.post("/v1/chat/completions", json={**body, "stream": True}, timeout=0.05)
        return
    async for _ in deltas(client, body):
        events -= 1
        if events == 0:
            break


@pytest.mark.anyio
@pytest.mark.parametrize("whole", [False, True])
async def test_a_disconnect_while_decoding_frees_everything(model_server: RunningServer, whole: bool) -> None:
    """A client that leaves, from a stream or a whole answer, leaves no sequence and no block a second later."""
    body = chat("Tell me a very long story.", max_tokens=2_000, ignore_eos=True)
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        if whole:
            with pytest.raises(httpx.TimeoutException):
                await client.post("/v1/chat/completions", json=body, timeout=1.0)
        else:
            await dropped(client, body, 4)
    model_server.wait_idle(1.0)


@pytest.mark.anyio
async def test_a_disconnect_in_prefill_frees_everything(model_server: RunningServer) -> None:
    """A client that leaves during a long prompt's prefill frees its blocks within a second, and no token comes."""
    generated = model_server.metrics()["tailrace_tokens_generated_total"]
    body = chat("The sea is wide. " * 1_200, max_tokens=50)
    await left_when(model_server, body, "tailrace_sequences_running", 1)
    model_server.wait_idle(1.0)
    assert model_server.metrics()["tailrace_tokens_generated_total"] <= generated + 1


@pytest.mark.anyio
async def test_a_disconnect_while_queued_frees_everything(model_flags: tuple[str, ...], tmp_path: Path) -> None:
    """A request that waits behind a full batch and is left never runs; the one that runs goes on."""
    with RunningServer(*model_flags, "--set", "engine.max_num_seqs=1", log_folder=tmp_path) as server:
        body = chat("Tell me a long story.", max_tokens=400, ignore_eos=True)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            running = deltas(client, body)
            await anext(running)
            await left_when(server, chat("I wait.", max_tokens=50), "tailrace_sequences_waiting", 1)
            await anext(running)
            assert server.metrics()["tailrace_sequences_running"] == 1
            await running.aclose()
        server.wait_idle(1.0)
        ended = server.log_records(event="request", end_state="client_cancelled")
        waiting, running_one = sorted(ended, key=lambda record: record["generated_tokens"])
        assert waiting["generated_tokens"] == 0
        assert running_one["generated_tokens"] > 0


@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_200_streams_dropped_at_random_leave_nothing(model_server: RunningServer) -> None:
    """Opened and left at random moments, in waves: nothing runs, waits or holds a block, and each is accounted."""
    draw = random.Random(3)
    before = len(model_server.log_records(event="request"))
    async with httpx.AsyncClient(base_url=model_server.url, timeout=120) as client:
        for _ in range(10):
            moments = [draw.choice([0, 0, 1, 2, 3, 6]) for _ in range(20)]
            bodies = [chat(f"Story {draw.random()}", max_tokens=500, ignore_eos=True) for _ in moments]
            await asyncio.gather(*map(dropped, [client] * 20, bodies, moments))
    model_server.wait_idle(1.0)
    ended = model_server.log_records(event="request")[before:]
    assert len(ended) == 200
    assert {record["end_state"] for record in ended} == {"client_cancelled"}
    answer = model_server.post("/v1/chat/completions", {"messages": QUESTION, "temperature": 0}).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]
