"""A reported fault of cancellation, CAN-02: however a request is left, the engine hears of it exactly once.

The application with all its middleware in this process, under hand-made `receive` and `send`.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from engine.config import EngineConfig
from engine.loading import Engine, load_engine
from server.app import create_app
from server.config import ApiKeyConfig, ServerConfig
from tests.server.replies import CHAT, MESSAGES, frames_of, parsed
from tests.server.reported_cases import KEY
from tests.server.served_socket import eventually

PAGE = "https://chat.example.org"
LONG: dict[str, Any] = {"messages": MESSAGES, "ignore_eos": True}


class LostError(Exception):
    """What a broken connection's `send` raises."""


class Left:
    """One request in the application, and how often the engine was told to abort a sequence."""

    def __init__(self, app: FastAPI, engine: Engine) -> None:
        self.app, self.engine = app, engine
        self.aborted: list[str] = []
        self.gone = asyncio.Event()
        self.events = 0
        self.last_body = b""
        self.breaks_at = 0
        """The event whose `send` fails; 0: none."""
        self._abort = engine.core.backend.abort
        self._body = b""

    def abort(self, request_ids: Iterable[str]) -> None:
        ids = list(request_ids)
        self.aborted += ids
        self._abort(ids)

    async def __call__(self, **fields: Any) -> None:
        """The request, until the application has answered or given up."""
        self._body = json.dumps(LONG | fields).encode()
        headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"origin", PAGE.encode())]
        scope = {"type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b""}
        scope |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http"}
        await self.app(scope | {"http_version": "1.1", "root_path": "", "state": {}}, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message.get("body"):
            self.events += 1
            self.last_body = message["body"]
            if self.events == self.breaks_at:
                raise LostError


@pytest.fixture
async def left(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Left]:
    """Afterwards the engine holds nothing, and no task's exception was lost."""
    engine = load_engine(EngineConfig(kind="simulated", model=str(demo_model), step_interval_ms=1))
    app = create_app(engine, ServerConfig(api_keys=(ApiKeyConfig(key=KEY),), cors_origins=(PAGE,)))
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    async with app.router.lifespan_context(app):
        request = Left(app, engine)
        monkeypatch.setattr(engine.core.backend, "abort", request.abort)
        yield request
        await eventually(lambda: not engine.core.backend.request_ids())
    gc.collect()
    await asyncio.sleep(0)
    assert lost == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choices", [1, 3])
async def test_can_02_the_client_leaves(left: Left, stream: bool, choices: int) -> None:
    """Midway: each of its sequences is aborted once."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(left(stream=stream, n=choices, max_tokens=4_000))
        await eventually(lambda: left.events > 3 or (not stream and left.engine.core.backend.stats().running > 0))
        left.gone.set()
    await eventually(lambda: not left.engine.core.backend.request_ids())
    assert len(left.aborted) == len(set(left.aborted)) == choices


async def test_can_02_the_handler_raises(left: Left) -> None:
    """A `send` that fails is not what ends the generation later: it ends with it."""
    left.breaks_at = 3
    with pytest.raises(LostError):
        await left(stream=True, max_tokens=4_000)
    assert len(left.aborted) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_can_02_the_server_cancels_the_task(left: Left, stream: bool) -> None:
    """As at a shutdown that waits for nobody."""
    task = asyncio.create_task(left(stream=stream, max_tokens=4_000))
    await eventually(lambda: left.events > 3 or (not stream and left.engine.core.backend.stats().running > 0))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert len(left.aborted) == 1


async def test_can_02_the_server_shuts_down(left: Left) -> None:
    """The engine is closed under a stream: it ends with an error event, and its sequence is aborted once."""
    task = asyncio.create_task(left(stream=True, max_tokens=4_000))
    await eventually(lambda: left.events > 3)
    await left.engine.core.close()
    await task
    assert len(left.aborted) == 1
    assert set(parsed(frames_of(left.last_body)[-1])) == {"error"}


@pytest.mark.parametrize("stream", [True, False])
async def test_can_02_a_normal_end(left: Left, stream: bool) -> None:
    """What ended by itself is not aborted."""
    await left(stream=stream, max_tokens=5)
    assert left.events > 0
    left.gone.set()
    assert left.aborted == []
