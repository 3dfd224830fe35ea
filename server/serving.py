"""Runs the application under uvicorn: says when it can answer, drains when it is told to stop.

Never a request's business.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from engine.core import EngineCore
from engine.types import AbortReason, FinishReason
from server.config import ServerConfig
from server.connection import Connection
from server.handler import Handler

LAST_WORDS_SECONDS = 5
"""After the drain: how long the error events of what was still running may take to leave."""


class DrainingServer(uvicorn.Server):
    """uvicorn, with a ready line and a drain before its own shutdown."""

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                loop="uvloop",
                http=Connection,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=LAST_WORDS_SECONDS,
            )
        )
        self._app = app
        self._drain_timeout = config.drain_timeout_seconds
        self._hurry = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            sys.stdout.write(f"tailrace ready on http://{shown}:{port}\n")
            sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new work, running streams may finish, the rest end with an error event; then the sockets close."""
        handler: Handler = self._app.state.handler
        handler.admission.draining = True
        core = handler.engine.core
        await self._wait(core)
        core.end_all(FinishReason.ABORT, "the server is shutting down", AbortReason.SHUTDOWN)
        await super().shutdown(sockets)
        if self.force_exit:
            await self._end_now()

    async def _end_now(self) -> None:
        """What uvicorn leaves to the loop's end when it is hurried: there each would end with a traceback."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.abort()
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=LAST_WORDS_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the drain, a second one ends it. The process then exits with status 0."""
        self.force_exit = self.should_exit
        if self.force_exit:
            self._hurry.set()
        self.should_exit = True

    async def _wait(self, core: EngineCore) -> None:
        waits = {asyncio.ensure_future(core.wait_idle()), asyncio.ensure_future(self._hurry.wait())}
        await asyncio.wait(waits, timeout=self._drain_timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
