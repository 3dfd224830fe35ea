"""How models set their reasoning apart, as a literal table; which name means which is `registry`'s.

Never code of one family but gpt-oss's: each is a record over the grammar that it shares with the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.output.parsers.harmony import CHANNEL, MARKERS, MESSAGE, reasoning_grammar
from engine.output.parsers.parser import OutputParser
from engine.output.parsers.parts import ContentText, ReasoningText
from engine.output.parsers.reasoning import ReasoningMarkers, ReasoningStart, think_grammar


@dataclass(frozen=True, slots=True)
class ReasoningFamily:
    """How some models set their reasoning apart."""

    name: str
    tags: ReasoningMarkers
    implied: bool = False
    """Where the prompt says nothing, the answer begins in reasoning, and the opening marker may be left out."""

    @property
    def markers(self) -> tuple[str, ...]:
        """What must be seen in the text: where one of these is a special token, it has to be shown."""
        return self.tags.opens + self.tags.closes + self.tags.also_ends

    def start(self, prompt: str, continued: str = "") -> ReasoningStart:
        """Where a prompt (its last text is enough, with special tokens shown) leaves the model.

        `continued`: the text of the answer that ends the prompt, where the model is to go on from it; else only a
        marker at the prompt's very end counts, since the client's own text may hold markers.
        """
        last_open = max(continued.rfind(marker) for marker in self.tags.opens)
        last_close = max(continued.rfind(marker) for marker in self.tags.closes)
        end = prompt.rstrip()
        if last_open > last_close or (not continued and end.endswith(self.tags.opens)):
            return ReasoningStart.INSIDE
        if continued.strip() or end.endswith(self.tags.closes):
            return ReasoningStart.AFTER
        return ReasoningStart.INSIDE if self.implied else ReasoningStart.BEFORE

    def parser(self, start: ReasoningStart = ReasoningStart.BEFORE) -> OutputParser:
        """A parser for one choice."""
        return OutputParser(think_grammar(self.tags, start))


class HarmonyFamily(ReasoningFamily):
    """gpt-oss: its channels, whose headers are the markers."""

    __slots__ = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return MARKERS

    def parser(self, start: ReasoningStart = ReasoningStart.BEFORE) -> OutputParser:
        if start is ReasoningStart.BEFORE:
            return OutputParser(reasoning_grammar(None))
        return OutputParser(reasoning_grammar(ReasoningText if start is ReasoningStart.INSIDE else ContentText))


_THINK: Final = ReasoningMarkers(("<think>",), ("</think>",))
_GRANITE: Final = ReasoningMarkers(
    ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
)
REASONING_FAMILIES: Final = (
    ReasoningFamily("qwen3", _THINK),
    ReasoningFamily("deepseek_r1", _THINK, implied=True),
    ReasoningFamily("kimi_k2", ReasoningMarkers(("<think>",), ("</think>",), ("<|tool_calls_section_begin|>",))),
    ReasoningFamily("granite", _GRANITE),
    ReasoningFamily("mistral", ReasoningMarkers(("[THINK]",), ("[/THINK]",))),
    ReasoningFamily("seed_oss", ReasoningMarkers(("<seed:think>",), ("</seed:think>",))),
    ReasoningFamily("minimax_m3", ReasoningMarkers(("<mm:think>",), ("</mm:think>",))),
    ReasoningFamily("cohere_command3", ReasoningMarkers(("<|START_THINKING|>",), ("<|END_THINKING|>",))),
    HarmonyFamily("gpt_oss", ReasoningMarkers((f"{CHANNEL}analysis{MESSAGE}",), (f"{CHANNEL}final{MESSAGE}",))),
)
