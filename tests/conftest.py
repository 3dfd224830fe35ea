"""What every test may ask for: the demo model's folder, and real servers on real ports, started here and ended here.

Never network beyond loopback at test time, once the downloads are in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from engine.model import demo_model_folder
from tests.engine.backends.vllm_engines import VLLM_MARKS
from tests.running_server import RunningServer, simulated

settings.register_profile("any machine", deadline=None)  # a busy one takes its time, and that is no fault of the code's
settings.load_profile("any machine")


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
    flags = simulated(demo_model, "engine.step_interval_ms=2")
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.fixture(scope="session", params=["transformers", pytest.param("vllm", marks=VLLM_MARKS)])
def model_flags(request: pytest.FixtureRequest, demo_model: Path) -> tuple[str, ...]:
    """The flags that serve the real demo model, on each engine that can."""
    return ("--engine", request.param, "--model", str(demo_model))


@pytest.fixture(scope="session")
def model_server(model_flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The real demo model."""
    with RunningServer(*model_flags, log_folder=tmp_path_factory.mktemp("model")) as server:
        yield server
