"""A model's Jinja chat template, compiled once and run in a sandbox with the functions that templates expect.

Never trusts what it is given: whatever the client's values make a template do comes out as `InvalidRequestError`.
What templates may call, and the whitespace rules, are those of transformers' `apply_chat_template`
(https://huggingface.co/docs/transformers/chat_templating_writing).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from engine.errors import InvalidRequestError, ModelLoadError

MAX_PROMPT_CHARACTERS = 16 * 1024 * 1024
"""A rendering longer than this is cut off as a runaway: several times what the longest contexts hold."""


class ChatTemplate:
    """One template. Rendering is deterministic but for `strftime_now`, and keeps nothing between calls."""

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        self.source = source
        environment = _environment(now)
        self.reserved_names: frozenset[str] = frozenset(environment.globals)
        """Functions that a variable of the same name would hide."""
        try:
            parsed = environment.parse(source)
            self.variables: frozenset[str] = frozenset(meta.find_undeclared_variables(parsed))
            """What it reads and does not set itself."""
            self._template = environment.from_string(parsed)
        except (TemplateSyntaxError, RecursionError) as error:
            raise ModelLoadError(f"the chat template can't be compiled: {error}") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text. Raises `InvalidRequestError` (without `param`) if the template refuses or breaks."""
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_PROMPT_CHARACTERS:
                    _refuse_runaway()
        except TemplateError as error:
            raise InvalidRequestError(f"the model's chat template refuses this conversation: {error}") from error
        except Exception as error:  # whatever Python can raise, a template can, and this input made it
            message = f"the model's chat template can't render this conversation: {type(error).__name__}: {error}"
            raise InvalidRequestError(message) from error
        return "".join(pieces)


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: marks the assistant's text for training, and means nothing here."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the two operators that make much out of little held to `MAX_RANGE`, as it holds `range`."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _result_size(operator, left, right) > MAX_RANGE:
            _refuse_runaway()
        return super().call_binop(context, operator, left, right)


def _result_size(operator: str, left: Any, right: Any) -> int:
    """How many items or bits an operator's result has, at most; 0 where it can't be much."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
    if operator == "*" and isinstance(right, str | list | tuple):
        left, right = right, left
    return len(left) * right if isinstance(left, str | list | tuple) and isinstance(right, int) else 0


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML's characters, which a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _refuse_runaway() -> NoReturn:
    raise OverflowError("the result is too large")
