"""What every test may ask for: the demo model's folder, and real servers on real ports, started here and ended here.

Never network beyond loopback at test time, once the downloads are in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model import demo_model_folder
from tests.running_server import RunningServer


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The engine and the server are asyncio's."""
    return "asyncio"


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, converted once into the cache."""
    return demo_model_folder()


@pytest.fixture(scope="session")
def echo_server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The simulated engine, echoing, at a step every 2 ms."""
    flags = ("--engine", "simulated", "--model", str(demo_model), "--set", "engine.step_interval_ms=2")
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.fixture(scope="session")
def model_server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The real demo model on the embedded engine."""
    with RunningServer("--model", str(demo_model), log_folder=tmp_path_factory.mktemp("model")) as server:
        yield server
