"""Names of parsers, and the families that chat templates tell of."""

from __future__ import annotations

import pytest

from engine.output.parsers import (
    DEFAULT_TOOL_FAMILY,
    UnknownParserError,
    detect,
    reasoning_family,
    tool_family,
)
from engine.output.parsers.detection import REASONING_RULES, TOOL_RULES
from engine.output.parsers.reasoning_families import REASONING_FAMILIES
from engine.output.parsers.registry import REASONING_ALIASES, TOOL_ALIASES
from engine.output.parsers.tool_families import TOOL_FAMILIES


def test_every_name_leads_to_a_family() -> None:
    """Each family is found by its name, each alias leads to a family, and no alias hides one."""
    for family in TOOL_FAMILIES:
        assert tool_family(family.name) is family
    for reasoning in REASONING_FAMILIES:
        assert reasoning_family(reasoning.name) is reasoning
    tools, reasonings = {f.name for f in TOOL_FAMILIES}, {f.name for f in REASONING_FAMILIES}
    assert set(TOOL_ALIASES.values()) <= tools
    assert set(REASONING_ALIASES.values()) <= reasonings
    assert not set(TOOL_ALIASES) & tools
    assert not set(REASONING_ALIASES) & reasonings
    assert DEFAULT_TOOL_FAMILY in tools


@pytest.mark.parametrize(
    "name",
    [
        "hermes",
        "qwen25",
        "llama3_json",
        "llama4_pythonic",
        "mistral",
        "deepseekv31",
        "kimi_k2",
        "glm47",
        "openai",
        "gpt-oss",
    ],
)
def test_names_of_other_servers(name: str) -> None:
    """What vLLM and SGLang call a tool parser is understood."""
    assert tool_family(name).parser() is not None


def test_unknown_names_are_refused() -> None:
    """An unknown name is an error that lists the known ones, and does not repeat a long name."""
    with pytest.raises(UnknownParserError, match=r"unknown tool parser 'x+'; known are .*hermes.*qwen25"):
        tool_family("x" * 10_000)
    with pytest.raises(UnknownParserError, match=r"unknown reasoning parser 'hermes'; known are .*deepseek-r1.*qwen3"):
        reasoning_family("hermes")


def test_rules_name_families() -> None:
    """Whatever a template is detected as can be looked up."""
    for _, name in TOOL_RULES:
        assert name is None or tool_family(name).name == name
    for _, name in REASONING_RULES:
        assert name is None or reasoning_family(name).name == name


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ message.content }}", (None, None)),
        ('<tools></tools> <tool_call>\\n{"name": <name>, "arguments": <args>}\\n</tool_call>', (None, "hermes")),
        ("{{- '<tool_call>\\n{\"name\": \"' + call.name }} '<think>\\n\\n</think>\\n\\n'", ("qwen3", "hermes")),
        ("<tool_call>\\n<function=name>\\n<parameter=key>\\nvalue", (None, "qwen3_coder")),
        ("<think></think><tool_call>{name}\\n<arg_key>{key}</arg_key>", ("qwen3", "glm45")),
        ("'<minimax:tool_call>' '<invoke name=\"' <think> </think>", ("qwen3", "minimax_m2")),
        ("{{ '<seed:tool_call>' }} <seed:think>", ("seed_oss", "seed_oss")),
        ("'[TOOL_CALLS]' + name + '[ARGS]' [THINK]", ("mistral", "mistral")),
        ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' content.split('</think>')", ("qwen3", "deepseek_v3")),
        ("'<｜DSML｜' 'invoke name=' 'function_calls>'", (None, "deepseek_v32")),
        ("<|tool_calls_section_begin|> <|tool_call_argument_begin|> <think>", ("kimi_k2", "kimi_k2")),
        ("<|channel|>analysis<|message|> 'functions.' + name + '<|channel|>commentary '", ("gpt_oss", "gpt_oss")),
        (
            "'<|python_tag|>' 'Respond in the format {\"name\": function name, \"parameters\": {}}'",
            (None, "llama3_json"),
        ),
        ("<|python_start|> {{ calls }}", (None, "pythonic")),
        ("<function_calls>", (None, "olmo3")),
        ("<|python_tag|> <function=name>{}</function>", (None, None)),
    ],
)
def test_detection(template: str, expected: tuple[str | None, str | None]) -> None:
    """A template's own markers tell how its model writes reasoning and calls."""
    assert detect(template) == expected


def test_markers_are_what_must_be_shown() -> None:
    """A family names all texts that may be special tokens, so that they are not hidden from its parser."""
    assert {"<tool_call>", "</tool_call>"} <= set(tool_family("hermes").markers)
    assert {"<|channel|>", "<|message|>", "<|call|>"} <= set(tool_family("gpt-oss").markers)
    assert {"[TOOL_CALLS]", "[ARGS]"} <= set(tool_family("mistral").markers)
    assert {"<think>", "</think>"} <= set(reasoning_family("qwen3").markers)
    for family in (*TOOL_FAMILIES, *REASONING_FAMILIES):
        assert all(family.markers)
