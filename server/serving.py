"""Runs the application under uvicorn: says when it can answer, drains when it is told to stop.

Never a request's business.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import sys
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from engine.core import EngineCore
from engine.errors import ConfigError
from engine.types import AbortReason, FinishReason
from server import garbage
from server.config import ServerConfig
from server.connection import Connection, connection_class
from server.handler import Handler

TIDY_TICKS = 20
"""Tenths of a second between two looks at whether the server is idle and can collect garbage at leisure."""
LAST_WORDS_SECONDS = 3.0
"""After the drain: how long the error events of what was still running may take to leave."""
CUT_SECONDS = 2
"""After that: how long requests may take to end whose connection was cut."""


class DrainingServer(uvicorn.Server):
    """uvicorn, with a ready line and a drain before its own shutdown."""

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                ssl_certfile=config.tls_certificate,
                ssl_keyfile=config.tls_key,
                loop="uvloop",
                http=connection_class(config.slow_client_timeout_seconds),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(LAST_WORDS_SECONDS) + CUT_SECONDS,
            )
        )
        self._app = app
        self._drain_timeout = config.drain_timeout_seconds
        self._hurry = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            garbage.settle()
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            scheme = "https" if self.config.is_ssl else "http"
            sys.stdout.write(f"tailrace ready on {scheme}://{shown}:{port}\n")
            sys.stdout.flush()

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's, ten times a second."""
        handler: Handler = self._app.state.handler
        if counter % TIDY_TICKS == 0 and not handler.engine.core.live_sequences:
            garbage.tidy()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new work, running requests may finish, the rest end with an error event; then the sockets close."""
        handler: Handler = self._app.state.handler
        handler.admission.draining = True
        core = handler.engine.core
        await self._finish(core)
        core.end_all(FinishReason.ABORT, "the server is shutting down", AbortReason.SHUTDOWN)
        # Who does not read its last words, or never ends its request, would else be uvicorn's to cancel.
        cut = asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._cut_connections)
        await super().shutdown(sockets)
        cut.cancel()
        if self.force_exit:
            await self._end_now()

    def _cut_connections(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.shut_down()

    async def _end_now(self) -> None:
        """What uvicorn leaves to the loop's end when it is hurried: there each would end with a traceback."""
        self._cut_connections()
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=CUT_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(CUT_SECONDS):
                await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the drain, a second one ends it. The process then exits with status 0."""
        self.force_exit = self.should_exit
        if self.force_exit:
            self._hurry.set()
        self.should_exit = True

    async def _finish(self, core: EngineCore) -> None:
        """Until what was accepted is answered to its last byte, the drain's time is up, or the operator can't wait."""
        waits = {asyncio.ensure_future(self._answered(core)), asyncio.ensure_future(self._hurry.wait())}
        await asyncio.wait(waits, timeout=self._drain_timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _answered(self, core: EngineCore) -> None:
        """The requests of this moment; later ones are refused, and an endless row of those is nothing to wait for."""
        tasks = set(self.server_state.tasks)
        await core.wait_idle()
        if tasks:
            await asyncio.wait(tasks)


def check_certificate(config: ServerConfig) -> None:
    """`ConfigError` when TLS is asked for with files that can't be used; an encrypted key is not asked about."""
    if config.tls_certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_certificate, config.tls_key, password="")
    except ssl.SSLError as error:
        raise ConfigError(f"{_tls_files(config)} are no PEM certificate and its private key, not encrypted") from error
    except OSError as error:
        raise ConfigError(f"{_tls_files(config)} can't be read: {error.strerror}") from error


def _tls_files(config: ServerConfig) -> str:
    return f"server.tls_certificate ({config.tls_certificate}) and server.tls_key ({config.tls_key})"
