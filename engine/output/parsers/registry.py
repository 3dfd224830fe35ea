"""Which parser a name means: our families' names, and those that vLLM, SGLang and LMDeploy users know.

Never a guess at an unknown name: that is an error which lists the known ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.output.parsers.reasoning_families import REASONING_FAMILIES, ReasoningFamily
from engine.output.parsers.tool_families import TOOL_FAMILIES, ToolFamily

DEFAULT_TOOL_FAMILY: Final = "hermes"
"""For models whose chat template knows no tools: they are shown Hermes's format in the system prompt."""

TOOL_ALIASES: Final[Mapping[str, str]] = {
    "deepseek_v31": "deepseek_v3",
    "deepseek-v32": "deepseek_v32",
    "deepseek-v4": "deepseek_v4",
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v3",
    "ernie45": "hermes",
    "glm": "glm45",
    "glm47": "glm45",
    "gpt-oss": "gpt_oss",
    "granite-20b-fc": "granite_20b_fc",
    "granite4": "hermes",
    "hunyuan_a13b": "jamba",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "mimo": "hermes",
    "minimax_m1": "jamba",
    "openai": "gpt_oss",
    "poolside_v1": "glm45",
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen2d5": "hermes",
    "qwen3": "hermes",
    "qwen3_json": "hermes",
    "qwen3_xml": "qwen3_coder",
    "qwen3coder": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "xlam": "hermes",
}
REASONING_ALIASES: Final[Mapping[str, str]] = {
    "cohere_command4": "cohere_command3",
    "deepseek-r1": "deepseek_r1",
    "deepseek-v3": "qwen3",
    "deepseek_v3": "qwen3",
    "deepseek_v4": "qwen3",
    "glm45": "qwen3",
    "glm47": "qwen3",
    "gpt-oss": "gpt_oss",
    "granite_thinking_parser": "qwen3",
    "holo2": "qwen3",
    "hunyuan_a13b": "qwen3",
    "kimi": "kimi_k2",
    "mimo": "qwen3",
    "minicpmv": "qwen3",
    "minimax_m2": "deepseek_r1",
    "nemotron_v3": "qwen3",
    "olmo3": "deepseek_r1",
    "openai_gptoss": "gpt_oss",
    "poolside_v1": "qwen3",
    "qwen3-thinking": "deepseek_r1",
    "step3": "deepseek_r1",
    "step3p5": "deepseek_r1",
}
_TOOLS: Final = {family.name: family for family in TOOL_FAMILIES}
_REASONING: Final = {family.name: family for family in REASONING_FAMILIES}


class UnknownParserError(ValueError):
    """No parser of that name. The message lists the known ones."""


def tool_family(name: str) -> ToolFamily:
    """The family of a tool parser's name; `UnknownParserError` for any other name."""
    family = _TOOLS.get(TOOL_ALIASES.get(name, name))
    if family is None:
        raise UnknownParserError(_unknown("tool", name, {*_TOOLS, *TOOL_ALIASES}))
    return family


def reasoning_family(name: str) -> ReasoningFamily:
    """The family of a reasoning parser's name; `UnknownParserError` for any other name."""
    family = _REASONING.get(REASONING_ALIASES.get(name, name))
    if family is None:
        raise UnknownParserError(_unknown("reasoning", name, {*_REASONING, *REASONING_ALIASES}))
    return family


def _unknown(kind: str, name: str, known: set[str]) -> str:
    return f"unknown {kind} parser {name[:64]!r}; known are {', '.join(sorted(known))}"
