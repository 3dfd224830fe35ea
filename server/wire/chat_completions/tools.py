"""Chat Completions' tools and tool_choice: validated, and lowered to what may or must be called.

Never how a model writes a call. Source: the Chat Completions reference of the OpenAI API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from engine.errors import InvalidRequestError
from engine.prompt.tool_choice import ToolChoice
from server.wire.door import SHOWN, items

MAX_TOOLS = 1_000
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
"""The hosted API's letters, and those of names with a namespace."""


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments are an object in every format of calls; a schema that says nothing of its type means one."""
    if schema.get("type", "object") != "object":
        raise ValueError('must be a JSON schema whose type is "object"')
    return schema


class Function(BaseModel):
    """A function that can be called."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_of_an_object)] | None = None
    """A JSON schema; none: any object."""
    strict: bool | None = None


class Tool(BaseModel):
    """The one kind of tool that a server of open models has."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["function"]
    function: Function
    _sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, sent: Any, validated: ModelWrapValidatorHandler[Self]) -> Self:
        tool = validated(sent)
        tool._sent = sent  # noqa: SLF001 - its own
        return tool

    @property
    def as_sent(self) -> dict[str, Any]:
        """What the model is shown: every key, in the client's order."""
        return self._sent


class NamedFunction(BaseModel):
    """A function by its name."""

    model_config = ConfigDict(frozen=True)

    name: str


class NamedTool(BaseModel):
    """A tool by its name."""

    model_config = ConfigDict(frozen=True)

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(BaseModel):
    """Some of the tools."""

    model_config = ConfigDict(frozen=True)

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], items(MAX_TOOLS, least=1)]


class AllowedToolsChoice(BaseModel):
    """A choice among some of the tools."""

    model_config = ConfigDict(frozen=True)

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Tools = Annotated[list[Tool], items(MAX_TOOLS)]
Choice = (
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")] | None
)


def lower_choice(tools: Sequence[Tool], choice: Choice, *, parallel: bool) -> ToolChoice | None:
    """What may or must be called; None: nothing. `InvalidRequestError` naming `tools` or `tool_choice`."""
    _check_unique(tools)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice asks for a call, and there are no tools", param="tool_choice")
        return None
    if choice == "none":
        return None
    names = _named(choice, tools)
    schemas = {tool.function.name: tool.function.parameters or {} for tool in tools if tool.function.name in names}
    forced = choice == "required" or isinstance(choice, NamedTool)
    forced = forced or (isinstance(choice, AllowedToolsChoice) and choice.allowed_tools.mode == "required")
    strict = frozenset(tool.function.name for tool in tools if tool.function.strict) & schemas.keys()
    return ToolChoice(schemas, forced, strict, parallel and not isinstance(choice, NamedTool))


def _check_unique(tools: Sequence[Tool]) -> None:
    counts = Counter(tool.function.name for tool in tools)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"tools: there are two functions named {twice!r}", param="tools")


def _named(choice: Choice, tools: Sequence[Tool]) -> set[str]:
    """The names that may be called: all, or those that the choice names, which must be there."""
    known = {tool.function.name for tool in tools}
    names = set(_names(choice))
    absent = sorted(names - known)
    if absent:
        message = f"tool_choice names {absent[0][:SHOWN]!r}, which is not among the tools"
        raise InvalidRequestError(message, param="tool_choice")
    return names or known


def _names(choice: Choice) -> Iterator[str]:
    if isinstance(choice, NamedTool):
        yield choice.function.name
    elif isinstance(choice, AllowedToolsChoice):
        yield from (tool.function.name for tool in choice.allowed_tools.tools)
