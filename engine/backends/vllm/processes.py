"""The processes of one vLLM engine and their shared memory: seen while they live, cleared away when they are over.

Never another process's: what is ended here was started by this one, and is known by its start time too.
"""

from __future__ import annotations

import logging
import multiprocessing
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)
ENGINE_PROCESS = "EngineCore"
"""What the names of vLLM's engine processes begin with."""
_SHARED_MEMORY = re.compile(r"/shm/(psm_\w+)")
KILL_SECONDS = 5.0
"""How long a killed process may take to be gone."""


def engine_processes() -> list[psutil.Process]:
    """The engine processes that this one started and that live, without their own workers."""
    children = multiprocessing.active_children()
    return _alive([child.pid for child in children if child.name.startswith(ENGINE_PROCESS)])


def kill_engine_processes() -> None:
    """Ends engines that are starting, at once: whoever waits for them hears of it."""
    for process in engine_processes():
        kill_all([*process.children(recursive=True), process])


class EngineProcesses:
    """All processes of a running engine, as they are when this is made."""

    def __init__(self) -> None:
        engines = engine_processes()
        workers = [worker for engine in engines for worker in engine.children(recursive=True)]
        self._processes = [*engines, *workers]
        self._segments = {name for process in self._processes for name in _segments(process)}

    def clear(self, grace: float) -> None:
        """Waits `grace` seconds for them to end, kills what is left, and unlinks the shared memory that they left."""
        _, alive = psutil.wait_procs(self._processes, timeout=grace)
        if alive:
            logger.warning("%d processes of the engine did not end and are killed", len(alive))
            kill_all(alive)
        for name in self._segments:
            _unlink(name)


@contextmanager
def deaf_to_the_keyboard() -> Iterator[None]:
    """Processes that this thread starts meanwhile never see a Ctrl-C, which a terminal sends to all of them.

    They end when the server, having drained, says so. Their signal mask is this thread's at their start.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=KILL_SECONDS)


def _alive(pids: list[int | None]) -> list[psutil.Process]:
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return processes


def _segments(process: psutil.Process) -> set[str]:
    """The shared memory that a process has mapped, where the platform tells."""
    try:
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(_SHARED_MEMORY.findall(maps))


def _unlink(name: str) -> None:
    """Through the library, which tells its resource tracker too."""
    try:
        segment = SharedMemory(name)
    except (OSError, ValueError):  # it is gone already, as it should be
        return
    segment.close()
    segment.unlink()
