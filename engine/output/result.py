"""The whole answer is the folded stream: one choice's output steps, taken in, are its result.

Never a second path: whatever a stream says, this says, since it is made of the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.output.events import Finished, OutputStep, TokenRecord


@dataclass(slots=True)
class ChoiceResult:
    """One choice, as far as its steps were folded in."""

    index: int
    records: list[TokenRecord] = field(default_factory=list)
    finished: Finished | None = None
    completion_tokens: int = 0
    _parts: list[str] = field(default_factory=list, repr=False, compare=False)

    def fold(self, step: OutputStep) -> None:
        """Takes in the choice's next step."""
        if step.delta is not None:
            self._parts.append(step.delta.text)
            self.records += step.delta.records or ()
        self.completion_tokens = step.completion_tokens
        if step.finished is not None:
            self.finished = step.finished

    @property
    def text(self) -> str:
        """All of it, as far as it came."""
        return "".join(self._parts)


class AnswerResult:
    """All choices of one request."""

    def __init__(self, choices: int) -> None:
        self.choices = [ChoiceResult(index) for index in range(choices)]

    def fold(self, step: OutputStep) -> None:
        self.choices[step.index].fold(step)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.choices)
