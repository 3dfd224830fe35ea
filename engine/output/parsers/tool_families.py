"""How models write tool calls, as a literal table; which name means which is `registry`'s.

Never code of one family: each is a record over the grammar that it shares with others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from engine.output.parsers.harmony import MARKERS, tool_grammar
from engine.output.parsers.json_calls import JsonFormat
from engine.output.parsers.named_calls import MistralFormat, NamedFormat, deepseek_header, kimi_header
from engine.output.parsers.parser import Grammar, OutputParser
from engine.output.parsers.python_calls import PythonFormat
from engine.output.parsers.xml_calls import XmlFormat
from engine.output.parsers.xml_values import ANY, STRING

ToolSchemas: TypeAlias = Mapping[str, Any]
"""The JSON schema of each tool's parameters, by the tool's name."""


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> ToolSchemas:
    """The schemas of tools in OpenAI's shape, `{"type": "function", "function": {...}}`; none of what has no name."""
    functions = [tool.get("function") for tool in tools]
    return {
        f["name"]: f.get("parameters") for f in functions if isinstance(f, Mapping) and isinstance(f.get("name"), str)
    }


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """How some models write tool calls."""

    name: str
    markers: tuple[str, ...]
    """What must be seen in the text: where one of these is a special token, it has to be shown."""
    grammar: Callable[[ToolSchemas], Grammar]

    def parser(self, tools: ToolSchemas | None = None) -> OutputParser:
        """A parser for one choice. `tools` gives XML parameters their types, and bare calls the names they may have."""
        return OutputParser(self.grammar(tools or {}))


def _json(name: str, opens: tuple[str, ...], closes: tuple[str, ...] = (), *, bare: bool = False) -> ToolFamily:
    return ToolFamily(name, opens + closes, JsonFormat(opens, closes, bare).grammar)


def _python(name: str, opens: tuple[str, ...], closes: tuple[str, ...], *, bare: bool = False) -> ToolFamily:
    return ToolFamily(name, opens + closes, PythonFormat(opens, closes, bare).grammar)


def _named(name: str, tags: NamedFormat, separator: str) -> ToolFamily:
    return ToolFamily(name, (tags.section, tags.section_end, tags.call, separator, tags.call_end), tags.grammar)


def _xml(name: str, tags: XmlFormat) -> ToolFamily:
    return ToolFamily(name, tags.markers, tags.grammar)


def _function_tags(name: str, section: str, *, trimmed: bool = True) -> ToolFamily:
    tags = XmlFormat(
        section=f"<{section}>",
        call="<function=",
        call_head_end=">",
        parameter="<parameter=",
        parameter_head_ends={">": None},
        parameter_end="</parameter>",
        call_end="</function>",
        section_end=f"</{section}>",
        trimmed=trimmed,
    )
    return _xml(name, tags)


def _invoke_tags(name: str, section: str, prefix: str, heads: Mapping[str, frozenset[str] | None]) -> ToolFamily:
    tags = XmlFormat(
        section=f"<{section}>",
        call=f'<{prefix}invoke name="',
        call_head_end='">',
        parameter=f'<{prefix}parameter name="',
        parameter_head_ends=heads,
        parameter_end=f"</{prefix}parameter>",
        call_end=f"</{prefix}invoke>",
        section_end=f"</{section}>",
    )
    return _xml(name, tags)


_GLM: Final = XmlFormat(
    section="<tool_call>",
    call="",
    call_head_end="",
    parameter="<arg_key>",
    parameter_head_ends={"<arg_value>": None},
    parameter_end="</arg_value>",
    call_end="",
    section_end="</tool_call>",
    key_end="</arg_key>",
)
_DEEPSEEK: Final = NamedFormat(
    section="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    header=deepseek_header,
)
_KIMI: Final = NamedFormat(
    section="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
    header=kimi_header,
)
_DSML: Final = "｜DSML｜"
_SAID_TYPES: Final = {'" string="true">': STRING, '" string="false">': ANY - STRING, '">': None}
TOOL_FAMILIES: Final = (
    _json("hermes", ("<tool_call>",), ("</tool_call>",)),
    _json("llama3_json", ("<|python_tag|>",), bare=True),
    _json("granite", ("<|tool_call|>", "<tool_call>"), ("</tool_call>",)),
    _json("granite_20b_fc", ("<function_call>",)),
    _json("internlm", ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"), ("<|action_end|>",)),
    _json("jamba", ("<tool_calls>",), ("</tool_calls>",)),
    _json("longcat", ("<longcat_tool_call>",), ("</longcat_tool_call>",)),
    _json("phi4_mini_json", ("functools",)),
    _json("nemotron_json", ("<TOOLCALL>",), ("</TOOLCALL>",)),
    _python("pythonic", ("<|python_start|>",), ("<|python_end|>",), bare=True),
    _python("olmo3", ("<function_calls>",), ("</function_calls>",)),
    _python("lfm2", ("<|tool_call_start|>",), ("<|tool_call_end|>",)),
    ToolFamily("mistral", ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), MistralFormat("[TOOL_CALLS]").grammar),
    _named("deepseek_v3", _DEEPSEEK, "<｜tool▁sep｜>"),
    _named("kimi_k2", _KIMI, "<|tool_call_argument_begin|>"),
    _function_tags("qwen3_coder", "tool_call"),
    _function_tags("seed_oss", "seed:tool_call", trimmed=False),
    _invoke_tags("minimax_m2", "minimax:tool_call", "", {'">': None}),
    _invoke_tags("deepseek_v32", f"{_DSML}function_calls", _DSML, _SAID_TYPES),
    _invoke_tags("deepseek_v4", f"{_DSML}tool_calls", _DSML, _SAID_TYPES),
    _xml("glm45", _GLM),
    ToolFamily("gpt_oss", MARKERS, tool_grammar),
)
