"""One choice's token ids to events: detokenizer, then stop matcher, then the aligned list that is cut once.

Never a clock, a queue or a backend: the core feeds it what a step generated. Text held back holds back its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.detokenizer import IncrementalDetokenizer, StopMatcher, Vocabulary
from engine.output.alignment import AlignedToken, TokenAlignment
from engine.output.events import Finished, OutputStep, TextDelta, TokenRecord
from engine.types import EngineRequest, FinishReason, SequenceOutput, TextParams, TokenLogprobs


class SequenceProcessor:
    """Turns the outputs of one sequence into output steps, until it is finished."""

    __slots__ = (
        "_alignment",
        "_decoding",
        "_echo",
        "_held_tokens",
        "_matcher",
        "_plain",
        "_released_tokens",
        "_sampling",
        "_text",
        "_vocabulary",
        "cached_tokens",
        "completion_tokens",
        "finished",
        "generated_tokens",
        "index",
    )

    def __init__(self, vocabulary: Vocabulary, request: EngineRequest, text: TextParams, index: int) -> None:
        self.index = index
        self.generated_tokens = 0
        """Tokens that the engine sampled for this sequence, also those that a stop then cut off."""
        self.completion_tokens = 0
        """Tokens that usage counts."""
        self.cached_tokens = 0
        """Prompt tokens whose KV blocks the engine reused."""
        self.finished: Finished | None = None
        self._vocabulary = vocabulary
        self._sampling = request.sampling
        self._text = text
        detokenizer = IncrementalDetokenizer(
            vocabulary,
            () if text.echo else request.prompt_token_ids,
            text.skip_special_tokens,
            text.spaces_between_special_tokens,
        )
        self._echo = detokenizer.push(request.prompt_token_ids) if text.echo else ""
        self._decoding = detokenizer.state
        self._matcher = StopMatcher(text.stop, text.include_stop) if text.stop else None
        self._alignment = TokenAlignment(len(self._echo))
        self._released_tokens = 0
        self._plain = self._matcher is None and request.sampling.logprobs is None
        self._held_tokens = 0
        """Where plain: tokens that a begun character takes part of."""

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
            return OutputStep(self.index, completion_tokens=self.completion_tokens)
        parts: list[str] = []
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
        self._released_tokens += newest - held
        return OutputStep(self.index, TextDelta(text) if text else None, None, self.completion_tokens, newest - held)

    def end(self, reason: FinishReason, message: str | None = None) -> OutputStep:
        """Ends the choice from outside (abort, fault): what is held back is released, as at any end."""
        if self.finished is not None:
            return OutputStep(self.index, completion_tokens=self.completion_tokens)
        return self._step([], Finished(reason, message=message))

    def fail(self, message: str) -> OutputStep:
        """Ends the choice after a fault of its own: nothing that may be broken is touched."""
        self.finished = Finished(FinishReason.ERROR, message=message)
        return OutputStep(self.index, None, self.finished, self.completion_tokens)

    @property
    def held_back_characters(self) -> int:
        """Characters that the client could not be given yet: those of a stop string's begin, and a begun one."""
        return (self._matcher.held_back if self._matcher is not None else 0) + self._decoding.pending

    def _take_tokens(self, output: SequenceOutput, parts: list[str]) -> Finished | None:
        """Decodes token by token, appending released text to `parts`, up to a stop string or `max_tokens`."""
        hidden = output.stop_token_id is not None and not self._text.include_stop
        last = len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            if self.completion_tokens == self._sampling.max_tokens:
                return Finished(FinishReason.LENGTH)
            self.completion_tokens += 1
            if hidden and position == last:
                break
            logprobs = output.logprobs[position] if output.logprobs is not None else None
            matched = self._take_token(token_id, logprobs, parts)
            if matched is not None:
                return Finished(FinishReason.STOP, matched)
        return None

    def _take_token(self, token_id: int, logprobs: TokenLogprobs | None, parts: list[str]) -> str | None:
        # The detokenizer's look-up in line: its method would cost as much again, at every token.
        text, self._decoding = self._decoding[token_id]
        self._alignment.add(token_id, len(text), self._decoding.pending, logprobs)
        return self._take_text(text, parts) if text else None

    def _take_text(self, text: str, parts: list[str]) -> str | None:
        if self._matcher is None:
            parts.append(text)
            return None
        outcome = self._matcher.push(text, armed=self.completion_tokens > self._sampling.min_tokens)
        parts.append(outcome.text)
        return outcome.matched

    def _end_of(self, output: SequenceOutput) -> Finished | None:
        if output.finish_reason is None:
            return None
        stop_ids = self._sampling.stop_token_ids
        stop = output.stop_token_id if output.stop_token_id in stop_ids else None
        return Finished(output.finish_reason, stop, output.error)

    def _step(self, parts: list[str], end: Finished | None) -> OutputStep:
        if self._echo:
            parts.insert(0, self._echo)
            self._echo = ""
        if end is None:
            text = "".join(parts)
            return self._output(text, self._alignment.release(len(text)), None)
        if not isinstance(end.stop, str):
            matched = self._flush(parts)
            if matched is not None:
                end = Finished(FinishReason.STOP, matched)
        text = "".join(parts)
        self.finished = end
        return self._output(text, self._alignment.release_all(len(text)), end)

    def _flush(self, parts: list[str]) -> str | None:
        """The held-back text, through the same matcher as any other; returns a stop string that it completed."""
        tail = self._decoding.finish()
        matched = self._take_text(tail, parts) if tail else None
        if matched is None and self._matcher is not None:
            parts.append(self._matcher.finish())
        return matched

    def _output(self, text: str, tokens: list[AlignedToken], end: Finished | None) -> OutputStep:
        records = [self._record(token) for token in tokens] if self._sampling.logprobs is not None else None
        delta = TextDelta(text, records) if text or records else None
        # A hidden stop token has no text to wait for: it is released with the end.
        released = len(tokens) if end is None else self.completion_tokens - self._released_tokens
        self._released_tokens += released
        return OutputStep(self.index, delta, end, self.completion_tokens, released)

    def _record(self, token: AlignedToken) -> TokenRecord:
        data = self._vocabulary.token_bytes(token.token_id)
        return TokenRecord(token.token_id, data, token.start, token.end, token.logprobs)
