"""What the tests of vLLM's backend share: one engine at a time. A run without `-m vllm` leaves them all out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.backends.vllm_engines import VLLM_MARKS, SharedEngine

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder runs vLLM; the hook sees those of other folders too."""
    for item in items:
        if item.path.is_relative_to(HERE):
            for mark in VLLM_MARKS:
                item.add_marker(mark)


@pytest.fixture(scope="module")
async def shared(demo_model: Path) -> AsyncIterator[SharedEngine]:
    """The engine that the tests of one file use in turn."""
    engine = SharedEngine(demo_model)
    yield engine
    await engine.close()
