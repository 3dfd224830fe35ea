"""vLLM engines for tests: each takes half a minute to load, so that tests with the same settings share one.

Never more than one at a time, and never one that a test left anything in. Importing this never imports vLLM.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.backends.vllm import VllmBackend
from engine.config import EngineConfig

VLLM_MARKS = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),  # seconds: an engine loads for half a minute, longer while others compute
    pytest.mark.filterwarnings("ignore"),  # vLLM's imports, and those of what it imports, are not ours to mend
]
SMALL: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
    "num_kv_blocks": 1024,
    "block_size": 32,
    "max_model_len": 2048,
}
"""A prompt of more than 64 tokens is prefilled in several steps."""


def vllm_backend(folder: Path, vllm: dict[str, Any] | None = None, **settings: Any) -> VllmBackend:
    """Not started; `vllm` are arguments of its own."""
    return VllmBackend(EngineConfig(kind="vllm", vllm=vllm or {}, **SMALL | settings), folder)


class SharedEngine:
    """The engine of the latest settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings: dict[str, Any] | None = None
        self._backend: VllmBackend | None = None

    @asynccontextmanager
    async def started(self, **settings: Any) -> AsyncIterator[VllmBackend]:
        if self._backend is None or self._settings != settings:
            await self.close()
            self._backend, self._settings = vllm_backend(self._folder, **settings), settings
            await self._backend.start()
        backend, usable = self._backend, False
        try:
            yield backend
            usable = backend._mailbox.ended is None and not backend.request_ids()
        finally:
            if (
                not usable
            ):  # also after a test that failed, whatever it left: the next one has a fault of its own or none
                await self.close()

    async def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()
