"""`tailrace serve --engine vllm` when its engine process is killed, and what it writes into the log."""

from __future__ import annotations

import asyncio
import json
import signal

import httpx
import pytest

from client.sse import SSEDecoder
from tests.running_server import RunningServer, poll_until

pytestmark = pytest.mark.parametrize("model_flags", ["vllm"], indirect=True)

RESTART_SECONDS = 300
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
STORY = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 2_000, "ignore_eos": True}


async def events(
    model_server: RunningServer, count: int | None = None, begun: asyncio.Event | None = None
) -> list[str]:
    """The data of a stream's events, the first `count` or all; tells `begun` of the first."""
    decoder, seen = SSEDecoder(), list[str]()
    async with (
        httpx.AsyncClient(base_url=model_server.url, timeout=120) as client,
        client.stream("POST", "/v1/chat/completions", json=STORY | {"stream": True}) as response,
    ):
        async for data in response.aiter_bytes():
            seen += [event.data for event in decoder.feed(data)]
            if seen and begun is not None:
                begun.set()
            if count is not None and len(seen) >= count:
                break
    return seen


async def test_64_streams_that_are_dropped_leave_nothing(model_server: RunningServer) -> None:
    """Not in the engine, and no word of it in the log, where vLLM's records are JSON as all are."""
    at_start = len(model_server.log_records())
    await asyncio.gather(*(events(model_server, 1 + number % 4) for number in range(64)))
    await asyncio.to_thread(model_server.wait_idle)
    assert model_server.metrics()["tailrace_kv_blocks_used"] == 0
    records = model_server.log_records()[at_start:]
    assert len([record for record in records if record.get("event") == "request"]) == 64
    assert not [record for record in records if record["logger"].startswith(("vllm", "engine"))]
    assert not [line for line in model_server.log_file.read_text().splitlines() if "vllm" in line and line[0] != "{"]


async def test_a_killed_engine_process_comes_back(model_server: RunningServer) -> None:
    """Its streams end with an error event and no `[DONE]`, the server is not ready meanwhile, and then serves again."""
    begun = [asyncio.Event() for _ in range(4)]  # before it has begun, an answer fails with a status
    streams = [asyncio.ensure_future(events(model_server, begun=event)) for event in begun]
    async with asyncio.timeout(60):
        await asyncio.gather(*(event.wait() for event in begun))
    import psutil

    (engine,) = (child for child in psutil.Process(model_server.process.pid).children() if "EngineCore" in child.name())
    engine.send_signal(signal.SIGKILL)
    for ended in await asyncio.gather(*streams):
        assert ended[-1] != "[DONE]"
        assert "engine" in json.loads(ended[-1])["error"]["message"]
    assert model_server.get("/ready").status_code == 503
    assert model_server.get("/health").status_code == 200
    await asyncio.to_thread(
        poll_until,
        lambda: model_server.get("/ready").status_code == 200,
        RESTART_SECONDS,
        model_server.log_file.read_text,
    )
    answer = model_server.post("/v1/chat/completions", QUESTION).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]
    model_server.wait_idle()
