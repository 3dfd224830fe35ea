"""What decoded text goes through: reasoning parser, then for the content stop matcher and tool parser.

Never tokens, never a record of what it gave: it says what a text made certain, and how much of the text is not yet.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.detokenizer import StopMatcher
from engine.output.parsers.parser import OutputParser
from engine.output.parsers.parts import ContentText, Part, ToolCallEnd
from engine.types import TextParams


class TextStages:
    """One choice's stages, those that it needs. After a match, and after `finish`, nothing is to be pushed."""

    __slots__ = ("_matcher", "_one_call", "_reasoning", "_tools", "called", "matched")

    def __init__(self, text: TextParams) -> None:
        plan = text.parsing
        self._reasoning: OutputParser | None = plan.reasoning_parser() if plan is not None else None
        self._tools: OutputParser | None = plan.tool_parser() if plan is not None else None
        self._matcher = StopMatcher(text.stop, text.include_stop) if text.stop else None
        self._one_call = plan is not None and not plan.parallel_calls
        self.matched: str | None = None
        """The stop string that ended the choice."""
        self.called = False
        """The one call that was to be made is complete, and so is the choice."""

    def push(self, text: str, *, armed: bool) -> list[Part]:
        """The parts that are certain with this text. Not `armed`: stop strings that complete in it are text."""
        if self._reasoning is None:
            return self._take_content(text, armed=armed)
        return self._take(self._reasoning.push(text), armed=armed)

    def finish(self, tail: str, *, armed: bool) -> list[Part]:
        """The last text, and what was held back."""
        parts = self.push(tail, armed=armed) if tail else []
        if not self.ended and self._reasoning is not None:
            parts += self._take(self._reasoning.finish(), armed=armed)
        if not self.ended and self._matcher is not None:
            parts += self._take_unstopped(self._matcher.finish())
        if not self.ended and self._tools is not None:
            parts += self._tools.finish()
        return parts

    @property
    def ended(self) -> bool:
        """The choice ends here, whatever the model would say next."""
        return self.matched is not None or self.called

    @property
    def held(self) -> int:
        """Characters taken in that are neither in a part nor known to be in none, as markers are."""
        held = 0 if self._matcher is None else self._matcher.held_back
        held += 0 if self._reasoning is None else self._reasoning.held
        return held + (0 if self._tools is None else self._tools.held)

    @property
    def passes_through(self) -> bool:
        """Whatever comes from here on is content, as it is."""
        return self._matcher is None and self._tools is None and (self._reasoning is None or self._is_over())

    def _is_over(self) -> bool:
        return self._reasoning is not None and self._reasoning.passes_through and not self._reasoning.held

    def _take(self, parts: Iterable[Part], *, armed: bool) -> list[Part]:
        taken: list[Part] = []
        for part in parts:
            if self.ended:
                break
            if isinstance(part, ContentText):
                taken += self._take_content(part.text, armed=armed)
            else:
                taken.append(part)
        return taken

    def _take_content(self, text: str, *, armed: bool) -> list[Part]:
        if self._matcher is None:
            return self._take_unstopped(text)
        outcome = self._matcher.push(text, armed=armed)
        parts = self._take_unstopped(outcome.text)
        if outcome.matched is not None and not self.called:  # a call that came before it has ended the choice
            self.matched = outcome.matched
            parts += self._tools.finish() if self._tools is not None else ()
        return parts

    def _take_unstopped(self, text: str) -> list[Part]:
        if not text:
            return []
        if self._tools is None:
            return [ContentText(text)]
        parts = list(self._tools.push(text))
        return self._up_to_one_call(parts) if self._one_call else parts

    def _up_to_one_call(self, parts: list[Part]) -> list[Part]:
        end = next((place for place, part in enumerate(parts) if isinstance(part, ToolCallEnd)), None)
        self.called = self.called or end is not None
        return parts if end is None else parts[: end + 1]
