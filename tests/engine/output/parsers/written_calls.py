"""How each family writes a list of calls, written down once more for the tests, and strategies for such calls.

Never the parsers' own tables: the formats here are text that models were seen to write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

quick = settings(deadline=None, max_examples=25)
Arguments = dict[str, Any]
Written = Sequence[tuple[str, Arguments]]

# Beginnings of every marker, and what JSON, XML and Python give a meaning to.
FRAGMENTS = (
    "<", "</", "<tool", "<tool_call>", "</tool_call>", "<function=f>", "</parameter", "</arg_value", "<think>", "[",
    "[TOOL_CALLS", "[ARGS]", "<|", "<|tool_call_end|>", "<｜tool▁call▁end｜", "<|call|>", "```", "{", "}", "]",
    '"', "'", "\\", "\\n", "\n", " ", ";", ",", "é", "日本", "🌶", "\u2028", "a", "0", "true", '{"name": "x"}',
)  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["f", "get_weather", "a-b", "ns.tool_2"])
keys = st.sampled_from(["s", "n", "city", "x_1"])
plain_text = st.sampled_from(["", "Let me see. ", "1 < 2, [a] {b}\n", "<tool", "日本 🌶\n\n"])
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    """The text in pieces of these sizes, in turn, over and over."""
    pieces: list[str] = []
    start = 0
    while start < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[start : start + size])
        start += size
    return pieces


@st.composite
def json_texts(draw: st.DrawFn, value: Arguments) -> str:
    """An object as JSON in one of the ways that it can be written."""
    indent = draw(st.sampled_from([None, None, 2]))
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " : ")]))
    return json.dumps(value, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def arguments_first(name: str, arguments: str) -> str:
    return f'<tool_call>{{"id": [1, "]}}"], "arguments":{arguments} ,"name":{json.dumps(name)}}}</tool_call>'


def deepseek_v3_call(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def deepseek_v31_call(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def kimi_call(name: str, arguments: str) -> str:
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def harmony_call(name: str, arguments: str) -> str:
    return (
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    )


def harmony_role_call(name: str, arguments: str) -> str:
    return f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|end|>"


def object_call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": {json.dumps(name)}, "{key}": {arguments}}}'


def parameters_call(name: str, arguments: str) -> str:
    return object_call(name, arguments, "parameters")


Write = Callable[[str, str], str]
JSON_FORMATS: dict[str, tuple[str, Write, str, str, str]] = {
    "hermes": ("hermes", hermes, "", "\n", ""),
    "hermes, arguments first": ("hermes", arguments_first, "", "", ""),
    "hermes, several in one": ("hermes", object_call, "<tool_call>", "\n", "</tool_call>"),
    "llama, marker": ("llama3_json", parameters_call, "<|python_tag|>", "; ", ""),
    "mistral array": ("mistral", object_call, "[TOOL_CALLS] [", ", ", "]"),
    "mistral names": ("mistral", "[TOOL_CALLS]{}[ARGS]{}".format, "", "", ""),
    "mistral ids": ("mistral", "[TOOL_CALLS]{}[CALL_ID]a1b2c3[ARGS]{}".format, "", "", ""),
    "mistral without": ("mistral", "[TOOL_CALLS]{}{}".format, "", "", ""),
    "deepseek v3": ("deepseek_v3", deepseek_v3_call, "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    "deepseek v3.1": ("deepseek_v31", deepseek_v31_call, "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    "kimi": ("kimi_k2", kimi_call, "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "gpt-oss": ("gpt_oss", harmony_call, "", "", ""),
    "gpt-oss, recipient of the role": ("gpt_oss", harmony_role_call, "", "", ""),
    "granite": ("granite", object_call, "<|tool_call|>[", ", ", "]"),
    "jamba": ("jamba", object_call, "<tool_calls>[", ",\n", "]</tool_calls>"),
    "internlm": ("internlm", parameters_call, "<|action_start|><|plugin|>\n", "", "<|action_end|>"),
    "functools": ("phi4_mini_json", object_call, "functools[", ", ", "]"),
}
"""What a case is called: the family, one call, and what stands before, between and after calls."""


def qwen3_coder(name: str, arguments: Arguments) -> str:
    parameters = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def glm45(name: str, arguments: Arguments) -> str:
    pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def glm47(name: str, arguments: Arguments) -> str:
    pairs = (f"<arg_key>{key}</arg_key><arg_value>{bare(value)}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{''.join(pairs)}</tool_call>"


def minimax(name: str, arguments: Arguments) -> str:
    parameters = "".join(f'<parameter name="{key}">{bare(value)}</parameter>\n' for key, value in arguments.items())
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{parameters}</invoke>\n</minimax:tool_call>'


def seed(name: str, arguments: Arguments) -> str:
    parameters = "".join(f"<parameter={key}>{bare(value)}</parameter>\n" for key, value in arguments.items())
    return f"<seed:tool_call>\n<function={name}>\n{parameters}</function>\n</seed:tool_call>"


def dsml(name: str, arguments: Arguments) -> str:
    parameters = "".join(
        f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">{bare(value)}'
        "</｜DSML｜parameter>\n"
        for key, value in arguments.items()
    )
    call = f'<｜DSML｜invoke name="{name}">\n{parameters}</｜DSML｜invoke>\n'
    return f"<｜DSML｜function_calls>\n{call}</｜DSML｜function_calls>"


def bare(value: object) -> str:
    """A value as such formats write it: a string as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


XML_FORMATS: dict[str, tuple[str, Callable[[str, Arguments], str]]] = {
    "qwen3_coder": ("qwen3_coder", qwen3_coder),
    "glm45": ("glm45", glm45),
    "glm47": ("glm47", glm47),
    "minimax": ("minimax_m2", minimax),
    "seed": ("seed_oss", seed),
    "dsml": ("deepseek_v32", dsml),
}


def python_call(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


PYTHON_FORMATS: dict[str, tuple[str, str, str, str]] = {
    "pythonic": ("pythonic", "[", ", ", "]"),
    "pythonic, marked": ("pythonic", "<|python_start|>[", ", ", "]<|python_end|>"),
    "olmo3": ("olmo3", "<function_calls>\n", "\n", "\n</function_calls>"),
    "lfm2": ("lfm2", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
}
"""What a case is called: the family, and what stands before, between and after calls."""
