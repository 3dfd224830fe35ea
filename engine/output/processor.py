"""One choice's token ids to events: detokenizer, then the stages of its text, then the aligned list that is cut once.

Never a clock, a queue or a backend: the core feeds it what a step generated. Text held back holds back its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.detokenizer import Vocabulary
from engine.output.alignment import AlignedToken, TokenAlignment
from engine.output.events import Finished, OutputStep, TokenRecord
from engine.output.parsers.parts import ContentText, Part, ReasoningText, fold
from engine.output.text_stages import TextStages
from engine.types import EngineRequest, FinishReason, SequenceOutput, TextParams, TokenLogprobs


class SequenceProcessor:
    """Turns the outputs of one sequence into output steps, until it is finished."""

    __slots__ = (
        "_alignment",
        "_decoding",
        "_echo",
        "_held_tokens",
        "_kind",
        "_length",
        "_plain",
        "_records",
        "_released_tokens",
        "_reported_tokens",
        "_sampling",
        "_stages",
        "_text",
        "_vocabulary",
        "cached_tokens",
        "completion_tokens",
        "finished",
        "generated_tokens",
        "index",
        "reasoning_tokens",
    )

    def __init__(self, vocabulary: Vocabulary, request: EngineRequest, text: TextParams, index: int) -> None:
        self.index = index
        self.generated_tokens = 0
        """Tokens that the engine sampled for this sequence, also those that a stop then cut off."""
        self.completion_tokens = 0
        """Tokens that usage counts."""
        self.reasoning_tokens = 0
        """Of these, the ones whose text is reasoning."""
        self.cached_tokens = 0
        """Prompt tokens whose KV blocks the engine reused."""
        self.finished: Finished | None = None
        self._vocabulary = vocabulary
        self._sampling = request.sampling
        self._text = text
        prompt = request.prompt_token_ids
        shown = text.parsing.markers if text.parsing is not None else ()
        self._decoding = vocabulary.start(
            () if text.echo else prompt, text.skip_special_tokens, text.spaces_between_special_tokens, shown
        )
        self._echo = self._decode(prompt) if text.echo else ""
        self._stages = TextStages(text)
        self._alignment = TokenAlignment(len(self._echo))
        self._length = 0
        """Characters of content in all steps so far; counted only where not plain."""
        self._records: list[TokenRecord] | None = None if request.sampling.logprobs is None else []
        """Where asked for: those that the current step has released."""
        self._released_tokens = 0
        self._reported_tokens = 0
        """Of these, the ones that a step has told of."""
        self._plain = self._is_plain()
        self._held_tokens = 0
        """Where plain: tokens that a begun character takes part of."""
        self._kind: type[Part] | None = ContentText
        """What the latest decided text was of; of no part is a marker's, and a tool call's counts as that too."""

    def _decode(self, token_ids: Sequence[int]) -> str:
        pieces = []
        for token_id in token_ids:
            piece, self._decoding = self._decoding[token_id]
            pieces.append(piece)
        return "".join(pieces)

    def feed(self, output: SequenceOutput) -> OutputStep:
        """One step's output of this sequence. Whatever follows the end is counted as generated and dropped."""
        token_ids = output.token_ids
        self.generated_tokens += len(token_ids)
        if output.cached_tokens:
            self.cached_tokens = output.cached_tokens
        goes_on = self.finished is None and output.finish_reason is None
        if goes_on and self._plain and self.completion_tokens + len(token_ids) <= self._sampling.max_tokens:
            return self._feed_plain(token_ids)
        if self.finished is not None:
            return self._nothing()
        parts: list[Part] = []
        end = self._take_tokens(output, parts) or self._end_of(output)
        return self._step(parts, end)

    def _feed_plain(self, token_ids: Sequence[int]) -> OutputStep:
        """Most steps of most answers: nothing to look for and nothing to record, so tokens need only be counted."""
        text, self._echo = self._echo, ""
        decoding, held = self._decoding, self._held_tokens
        newest = held + len(token_ids)
        for token_id in token_ids:
            piece, decoding = decoding[token_id]
            text += piece
            held = 0 if not decoding.pending else 1 if piece else held + 1
        self._decoding, self._held_tokens = decoding, held
        self.completion_tokens += len(token_ids)
        released = newest - held
        self._released_tokens += released
        self._reported_tokens += released
        parts: list[Part] = [ContentText(text)] if text else []
        return OutputStep(self.index, parts, None, None, self.completion_tokens, released, self.reasoning_tokens)

    def end(self, reason: FinishReason, message: str | None = None) -> OutputStep:
        """Ends the choice from outside (abort, fault): what is held back is released, as at any end."""
        if self.finished is not None:
            return self._nothing()
        return self._step([], Finished(reason, message=message))

    def fail(self, message: str) -> OutputStep:
        """Ends the choice after a fault of its own: nothing that may be broken is touched."""
        self.finished = Finished(FinishReason.ERROR, message=message)
        return self._nothing(self.finished)

    @property
    def held_back_characters(self) -> int:
        """Characters that the client could not be given yet: what may become a stop string or a marker, a begun one."""
        return self._stages.held + self._decoding.pending

    def _nothing(self, end: Finished | None = None) -> OutputStep:
        return OutputStep(self.index, [], None, end, self.completion_tokens, 0, self.reasoning_tokens)

    def _take_tokens(self, output: SequenceOutput, parts: list[Part]) -> Finished | None:
        """Decodes token by token, adding parts to `parts`, up to a stop string or `max_tokens`."""
        hidden = output.stop_token_id is not None and not self._text.include_stop
        last = len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            if self.completion_tokens == self._sampling.max_tokens:
                return Finished(FinishReason.LENGTH)
            self.completion_tokens += 1
            if hidden and position == last:
                break
            logprobs = output.logprobs[position] if output.logprobs is not None else None
            self._take_token(token_id, logprobs, parts)
            if self._stages.ended:
                return Finished(FinishReason.STOP, self._stages.matched)
        return None

    def _take_token(self, token_id: int, logprobs: TokenLogprobs | None, parts: list[Part]) -> None:
        # The detokenizer's look-up in line: its method would cost as much again, at every token.
        text, self._decoding = self._decoding[token_id]
        self._alignment.add(token_id, len(text), self._decoding.pending, logprobs)
        made = self._stages.push(text, armed=self._armed) if text else []
        parts += made
        kind = _kind(made) if text and self._text.parsing is not None else self._kind
        if not self._stages.ended:
            self._release(self._alignment.release(self._stages.held), kind)
        else:  # the end releases, and cuts, what is left: the call that was to be the last, or text before a stop
            self._kind = None if self._stages.called else kind or self._kind

    @property
    def _armed(self) -> bool:
        return self.completion_tokens > self._sampling.min_tokens

    def _release(self, tokens: Sequence[AlignedToken], kind: type[Part] | None) -> None:
        """These tokens' text is decided: it is of this kind."""
        self._kind = kind
        if kind is ReasoningText:
            self.reasoning_tokens += len(tokens)
        elif kind is ContentText and self._records is not None:
            self._records += map(self._record, tokens)
        self._released_tokens += len(tokens)

    def _end_of(self, output: SequenceOutput) -> Finished | None:
        if output.finish_reason is None:
            return None
        stop_ids = self._sampling.stop_token_ids
        stop = output.stop_token_id if output.stop_token_id in stop_ids else None
        return Finished(output.finish_reason, stop, output.error)

    def _step(self, parts: list[Part], end: Finished | None) -> OutputStep:
        if self._echo:
            parts.insert(0, ContentText(self._echo))
            self._echo = ""
        before = self._reported_tokens
        if end is None:
            self._count(parts)
            self._reported_tokens = self._released_tokens
            # With the reasoning over and nothing else to look for, an answer is as plain as any.
            self._plain = self._is_plain()
        else:
            end = self.finished = self._finish(parts, end)
            self._reported_tokens = self.completion_tokens  # a hidden stop token has no text to wait for
        records, self._records = self._records, None if self._records is None else []
        return OutputStep(
            self.index,
            self._visible(parts),
            records or None,
            end,
            self.completion_tokens,
            self._reported_tokens - before,
            self.reasoning_tokens,
        )

    def _finish(self, parts: list[Part], end: Finished) -> Finished:
        """Releases all that is left; returns the end that it then is: the last text may complete a stop string."""
        made: list[Part] = []
        if not self._stages.ended:
            made = self._stages.finish(self._decoding.finish(), armed=self._armed)
            parts += made
        kind = _kind(made) if made and self._text.parsing is not None else self._kind
        if self._stages.ended and end.failure is None:
            end = Finished(FinishReason.STOP, self._stages.matched)
        self._count(parts)
        self._release(self._alignment.release_all(self._length if self._text.parsing is None else None), kind)
        return end

    def _count(self, parts: Sequence[Part]) -> None:
        self._length += sum(len(part.text) for part in parts if isinstance(part, ContentText))

    def _visible(self, parts: list[Part]) -> list[Part]:
        """What leaves of a step's parts, neighbours joined."""
        if self._text.parsing is not None and not self._text.parsing.include_reasoning:
            parts = [part for part in parts if not isinstance(part, ReasoningText)]
        return fold(parts) if len(parts) > 1 else parts

    def _is_plain(self) -> bool:
        waits = self._alignment.held_tokens or self._decoding.pending
        return self._records is None and self._stages.passes_through and not waits

    def _record(self, token: AlignedToken) -> TokenRecord:
        data = self._vocabulary.token_bytes(token.token_id)
        return TokenRecord(token.token_id, data, token.start, token.end, token.logprobs)


def _kind(parts: Sequence[Part]) -> type[Part] | None:
    """What a text is of that made these parts certain: content if any of it is, else reasoning, else neither."""
    kinds = {type(part) for part in parts}
    return next((kind for kind in (ContentText, ReasoningText) if kind in kinds), None)
