"""Which families a model's chat template tells of, by the markers that it writes.

Never runs the template: a marker counts where it stands in the source, in whatever branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

Rules: TypeAlias = Sequence[tuple[tuple[str, ...], str | None]]
"""Texts that a template must all have, and the family that it then is of (None: one not known here); the first fits."""

TOOL_RULES: Final[Rules] = (
    (("<|channel|>", "commentary", "functions"), "gpt_oss"),
    (("<｜tool▁call▁begin｜>",), "deepseek_v3"),
    (("DSML", "function_calls>", "invoke name"), "deepseek_v32"),
    (("DSML", "tool_calls>", "invoke name"), "deepseek_v4"),
    (("<|tool_call_argument_begin|>",), "kimi_k2"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<arg_key>", "<tool_call>"), "glm45"),
    (("<function=", "<parameter=", "<tool_call>"), "qwen3_coder"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<function_calls>",), "olmo3"),
    (("<longcat_tool_call>",), "longcat"),
    (("<TOOLCALL>",), "nemotron_json"),
    (("<|python_start|>",), "pythonic"),
    (("<|action_start|>", "<|plugin|>"), "internlm"),
    (("<|tool_call|>",), "granite"),
    (("<tool_calls>",), "jamba"),
    (("<tool_call>", '"name"'), "hermes"),
    (("<tool_call>", '"name\\"'), "hermes"),
    (("functools[",), "phi4_mini_json"),
    (("<function=", "</function>"), None),
    (("<|python_tag|>",), "llama3_json"),
    (('{"name": function name, "parameters":',), "llama3_json"),
)
REASONING_RULES: Final[Rules] = (
    (("<|channel|>", "analysis"), "gpt_oss"),
    (("[THINK]",), "mistral"),
    (("<seed:think>",), "seed_oss"),
    (("<mm:think>",), "minimax_m3"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("<think>", "<|tool_calls_section_begin|>"), "kimi_k2"),
    (("</think>",), "qwen3"),
    (("Here is my thought process:",), "granite"),
)


def detect(chat_template: str) -> tuple[str | None, str | None]:
    """The names of the reasoning family and of the tool family; None where the template tells of none."""
    return _first(REASONING_RULES, chat_template), _first(TOOL_RULES, chat_template)


def _first(rules: Rules, chat_template: str) -> str | None:
    return next((name for markers, name in rules if all(marker in chat_template for marker in markers)), None)
