"""The engine's processes when things go wrong: killed, hung, still loading, or left behind by a killed server."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.backends.vllm import VllmBackend
from engine.errors import EngineError, EngineUnavailableError
from engine.types import FinishReason
from tests.engine.backends.vllm_engines import SharedEngine, vllm_backend
from tests.running_server import poll_until
from tests.vllm.answers_of_a_backend import ask, greedy, next_step

CLOSE_SECONDS = 40
ORPHAN_SECONDS = 40


def processes() -> list[Any]:
    """The engine's, and then its workers'."""
    from engine.backends.vllm.processes import engine_processes

    engines = engine_processes()
    return [*engines, *(worker for engine in engines for worker in engine.children(recursive=True))]


def shared_memory() -> set[str]:
    return {file.name for file in Path("/dev/shm").glob("psm_*")}  # noqa: S108 - where Linux shows it


async def until_unavailable(backend: VllmBackend) -> tuple[list[str], str]:
    """The errors of the sequences that were live, and the reason that every further wait gives."""
    errors: list[str] = []

    async def listen() -> None:
        while True:
            outputs = (await next_step(backend)).outputs
            errors.extend(output.error or "" for output in outputs if output.finish_reason is FinishReason.ERROR)

    with pytest.raises(EngineUnavailableError) as dead:
        await listen()
    with pytest.raises(EngineUnavailableError, match=re.escape(dead.value.message)):
        await next_step(backend)
    return errors, dead.value.message


async def closed(backend: VllmBackend, alive: list[Any]) -> None:
    """In bounded time, with nothing left."""
    async with asyncio.timeout(CLOSE_SECONDS):
        await backend.close()
    assert not [process for process in alive if process.is_running()]


@pytest.mark.parametrize("victim", ["engine", "worker"])
async def test_a_killed_engine_starts_again(shared: SharedEngine, victim: str) -> None:
    """Its sequences end with the reason, nothing is taken any more, and after a restart all is as it was."""
    before = shared_memory()
    async with shared.started() as backend:
        (expected,) = await ask(backend, greedy("before"))
        for number in range(3):
            backend.submit(greedy(f"lost {number}", max_tokens=500))
        while not (await next_step(backend)).outputs:
            pass
        alive = processes()
        alive[0 if victim == "engine" else 1].send_signal(signal.SIGKILL)
        errors, reason = await until_unavailable(backend)
        assert len(errors) == 3
        assert set(errors) == {reason}
        assert "vLLM engine" in reason
        assert not backend.request_ids()
        assert backend.stats().kv_blocks_used == 0
        with pytest.raises(EngineUnavailableError):
            backend.submit(greedy("refused"))
        backend.abort(["lost 0"])
        await closed(backend, alive)
        assert shared_memory() <= before
        await backend.start()
        (again,) = await ask(backend, greedy("after"))
        assert again.token_ids == expected.token_ids


async def test_a_ctrl_c_is_the_servers_to_handle(shared: SharedEngine) -> None:
    """A terminal sends it to the engine's processes too; they go on, so that the server can drain."""
    async with shared.started() as backend:
        (expected,) = await ask(backend, greedy("before"))
        for process in processes():
            process.send_signal(signal.SIGINT)
        (after,) = await ask(backend, greedy("after"))
        assert after.token_ids == expected.token_ids


@pytest.mark.parametrize("victim", ["engine", "worker"])
async def test_a_hung_engine_is_closed(shared: SharedEngine, victim: str) -> None:
    """A stopped process is killed in bounded time, with its sequences live, and a fresh engine can be started."""
    async with shared.started() as backend:
        backend.submit(greedy("lost", max_tokens=500))
        while not (await next_step(backend)).outputs:
            pass
        alive = processes()
        alive[0 if victim == "engine" else 1].send_signal(signal.SIGSTOP)
        await closed(backend, alive)
        errors, _ = await until_unavailable(backend)
        assert errors == ["the engine was stopped"]


async def test_a_close_while_loading_ends_the_loading(demo_model: Path) -> None:
    """Whoever waits for the start hears that it came to nothing, and no process is left."""
    backend = vllm_backend(demo_model)
    starting = asyncio.ensure_future(backend.start())
    while not processes():  # noqa: ASYNC110 - nobody tells when a process is there
        await asyncio.sleep(0.05)
    alive = processes()
    await closed(backend, alive)
    with pytest.raises(EngineError):
        await starting
    assert not processes()
    del starting, backend
    gc.collect()  # vLLM's half-made client forgets its ZeroMQ context, which Python warns of: here, not in another test


def test_an_engine_ends_with_its_server(demo_model: Path) -> None:
    """However that ended: after a SIGKILL of the process that holds it, no process and no shared memory is left."""
    import psutil

    before = shared_memory()
    command = [sys.executable, "-m", "tests.vllm.engine_holder", str(demo_model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pids = json.loads(holder.stdout.readline())
        assert len(pids) == 2
        holder.kill()
    poll_until(lambda: not any(map(psutil.pid_exists, pids)), ORPHAN_SECONDS, lambda: f"left: {pids}")
    poll_until(lambda: shared_memory() <= before, ORPHAN_SECONDS, lambda: f"left: {shared_memory() - before}")
