"""Which families a model's answers are read with: named in the config, or told by its chat template.

Never a request's business: it is settled once, when the model is loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from engine.output.parsers.detection import detect
from engine.output.parsers.reasoning_families import ReasoningFamily
from engine.output.parsers.registry import DEFAULT_TOOL_FAMILY, reasoning_family, tool_family
from engine.output.parsers.tool_families import ToolFamily

OFF: Final = "none"
"""The name that turns a parser off."""
_TOOLS: Final = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class OutputFamilies:
    """How one model sets its reasoning apart and writes its calls."""

    reasoning: ReasoningFamily | None = None
    tools: ToolFamily | None = None
    """None: tool calls are turned off, or the template writes them in a way that is not known here."""
    template_knows_tools: bool = False
    """Else tools are described in the system prompt (see `engine.prompt.tool_prompt`)."""


def output_families(template: str, tool_parser: str | None, reasoning_parser: str | None) -> OutputFamilies:
    """The families for a model with this chat template ("" for none); a name that is None is found in the template.

    `UnknownParserError` for a name that is not known.
    """
    reasoning, tools = detect(template)
    knows_tools = _TOOLS.search(template) is not None
    reasoning = reasoning if reasoning_parser is None else reasoning_parser
    tools = tool_parser or tools or (None if knows_tools else DEFAULT_TOOL_FAMILY)
    return OutputFamilies(
        None if reasoning in (None, OFF) else reasoning_family(reasoning),
        None if tools in (None, OFF) else tool_family(tools),
        knows_tools,
    )
