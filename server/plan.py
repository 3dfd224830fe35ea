"""What is known of a request when its answer begins. Never a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import EngineRequest, TextParams
from server.auth import ApiKey
from server.wire.dialect import AnswerContext, ParsedRequest


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Everything that was decided before the engine is asked."""

    parsed: ParsedRequest
    requests: Sequence[EngineRequest]
    text: TextParams
    context: AnswerContext
    key: ApiKey | None
    """Whose request it is, where keys are asked for."""
    body: bytes
    """As it came, for the audit log."""
