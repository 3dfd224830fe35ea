"""What an operator is told when an engine is put together from settings that do not fit its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.loading import load_engine


@pytest.mark.parametrize(("parser", "warned"), [(None, False), ("hermes", False), ("none", False), ("mistral", True)])
def test_a_parser_of_another_format_than_the_model_is_told(
    demo_model: Path, caplog: pytest.LogCaptureFixture, parser: str | None, warned: bool
) -> None:
    """Where the template takes no tools they are described in Hermes's format: reading another is worth a word."""
    engine = load_engine(EngineConfig(kind="simulated", model=str(demo_model), tool_parser=parser))
    assert not engine.families.template_knows_tools
    assert ("calls are read as mistral" in caplog.text) == warned
