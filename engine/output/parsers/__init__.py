"""Reasoning and tool calls out of a choice's text, streamed: families by name, and a parser for each choice.

Never asyncio, never tokens. In order: detokenizer, reasoning parser, (content only) stop matcher, tool parser.

The rules, the same for a stream and for a whole answer, which is one push and `finish`:
- What is no call is content, exactly as it was, up to the character that showed it. Reading goes on there.
- A call begins when its name is certain. From then on, what does not go on as a call ends it, and is content.
- Arguments are the model's own text by position, valid or not. XML and Python become JSON as they come, which is closed
  where a call breaks off between two of them. A call that has none has `{}`.
- The end of the answer leaves a call as far as it came, without a `ToolCallEnd`.
- Whitespace around markers is dropped: between tags, before the first call, between calls, and after the last at the
  end. Next to other text it is kept. Around reasoning only newlines are dropped (see reasoning).
- At the end a marker that only began is text of whatever it was held in; a begun closing marker of a call is dropped.
"""

from engine.output.parsers.detection import detect
from engine.output.parsers.parser import OutputParser
from engine.output.parsers.parts import (
    ContentText,
    Part,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    fold,
)
from engine.output.parsers.reasoning import ReasoningStart
from engine.output.parsers.reasoning_families import ReasoningFamily
from engine.output.parsers.registry import DEFAULT_TOOL_FAMILY, UnknownParserError, reasoning_family, tool_family
from engine.output.parsers.tool_families import ToolFamily, ToolSchemas, tool_schemas

__all__ = [
    "DEFAULT_TOOL_FAMILY",
    "ContentText",
    "OutputParser",
    "Part",
    "ReasoningFamily",
    "ReasoningStart",
    "ReasoningText",
    "ToolCallArguments",
    "ToolCallBegin",
    "ToolCallEnd",
    "ToolFamily",
    "ToolSchemas",
    "UnknownParserError",
    "detect",
    "fold",
    "reasoning_family",
    "tool_family",
    "tool_schemas",
]
