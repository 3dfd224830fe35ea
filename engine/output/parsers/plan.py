"""What is to be looked for in the answers of one request: its families, and where the prompt leaves their reasoning.

Never a parser's state: each choice is given fresh ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.output.parsers.parser import OutputParser
from engine.output.parsers.reasoning import ReasoningStart
from engine.output.parsers.reasoning_families import ReasoningFamily
from engine.output.parsers.tool_families import ToolFamily, ToolSchemas


@dataclass(frozen=True, slots=True)
class ParsingPlan:
    """For every choice of one request."""

    reasoning: ReasoningFamily | None = None
    reasoning_start: ReasoningStart = ReasoningStart.BEFORE
    include_reasoning: bool = True
    """Reasoning leaves with the answer; else it is counted and dropped."""
    tools: ToolFamily | None = None
    """None also where tools were offered and none is to be called: what looks like a call is content."""
    tool_schemas: ToolSchemas = field(default_factory=dict)
    parallel_calls: bool = True
    """Else the answer ends with its first call."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must be seen: a special token that is one of them is shown though others are skipped."""
        reasoning = self.reasoning.markers if self.reasoning is not None else ()
        return reasoning + (self.tools.markers if self.tools is not None else ())

    def reasoning_parser(self) -> OutputParser | None:
        """A fresh first stage."""
        return self.reasoning.parser(self.reasoning_start) if self.reasoning is not None else None

    def tool_parser(self) -> OutputParser | None:
        """A fresh last stage."""
        return self.tools.parser(self.tool_schemas) if self.tools is not None else None
