"""The whole answer is the folded stream: one choice's output steps, taken in, are its result.

Never a second path: whatever a stream says, this says, since it is made of the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.output.events import Finished, OutputStep, TokenRecord
from engine.output.parsers.parts import (
    ContentText,
    Part,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    fold,
)


@dataclass(slots=True)
class ToolCallResult:
    """One call, as far as it came."""

    index: int
    name: str
    id: str | None
    """The model's own, if it gave one."""
    arguments: str = ""
    complete: bool = False
    """Its end came: it was not cut off."""


@dataclass(slots=True)
class ChoiceResult:
    """One choice, as far as its steps were folded in."""

    index: int
    records: list[TokenRecord] = field(default_factory=list)
    finished: Finished | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    _parts: list[Part] = field(default_factory=list, repr=False, compare=False)

    def fold(self, step: OutputStep) -> None:
        """Takes in the choice's next step."""
        self._parts += step.parts  # joined when asked for: at each step it would be quadratic
        self.records += step.records or ()
        self.completion_tokens = step.completion_tokens
        self.reasoning_tokens = step.reasoning_tokens
        if step.finished is not None:
            self.finished = step.finished

    @property
    def parts(self) -> list[Part]:
        """All of it in the order of the text, as far as it came; neighbours of one kind as one."""
        self._parts = fold(self._parts)
        return self._parts

    @property
    def text(self) -> str:
        """The content."""
        return "".join([part.text for part in self._parts if isinstance(part, ContentText)])

    @property
    def reasoning(self) -> str:
        """What was thought before it."""
        return "".join([part.text for part in self._parts if isinstance(part, ReasoningText)])

    @property
    def tool_calls(self) -> list[ToolCallResult]:
        """The calls, in order."""
        calls: list[ToolCallResult] = []
        for part in self.parts:
            if isinstance(part, ToolCallBegin):
                calls.append(ToolCallResult(part.index, part.name, part.id))
            elif isinstance(part, ToolCallArguments):
                calls[part.index].arguments += part.text
            elif isinstance(part, ToolCallEnd):
                calls[part.index].complete = True
        return calls


class AnswerResult:
    """All choices of one request."""

    def __init__(self, choices: int) -> None:
        self.choices = [ChoiceResult(index) for index in range(choices)]

    def fold(self, step: OutputStep) -> None:
        self.choices[step.index].fold(step)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.choices)
