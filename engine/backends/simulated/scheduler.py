"""The simulated engine's scheduler: first come first served, bounded by sequences, batched tokens and KV blocks.

Never a clock or a loop: `step` is one engine step, at once. Prefill is chunked by the token budget; when blocks run
out, the sequence that was admitted last is preempted and recomputed later, as vLLM does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.types import EngineRequest, FinishReason, SequenceOutput, StepOutputs, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Script:
    """What a sequence is going to say."""

    token_ids: Sequence[int]
    endless: bool = False
    """Begins again at its end, so that only `max_tokens` ends it."""
    steps: Sequence[int] = ()
    """Tokens of the first steps, each at least 1; afterwards `tokens_per_step`."""
    tokens_per_step: int = 1
    ends: FinishReason = FinishReason.STOP


@dataclass(slots=True)
class ScriptedSequence:
    """A sequence, and how far it came."""

    request: EngineRequest
    script: Script
    generated: int = 0
    steps_taken: int = 0
    blocks: int = 0
    admitted: bool = False
    """Ran at least once: a preempted sequence is no newcomer."""
    prefilled: int = 0
    """Tokens of prompt and output so far whose keys and values are in the blocks."""

    @property
    def length(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.request.prompt_token_ids) + self.generated

    @property
    def next_step_size(self) -> int:
        """Tokens that the next step generates: 0 only when the script is empty."""
        script = self.script
        step = script.steps[self.steps_taken] if self.steps_taken < len(script.steps) else script.tokens_per_step
        left = self.request.sampling.max_tokens - self.generated
        if script.endless and script.token_ids:
            return min(step, left)
        return min(step, left, len(script.token_ids) - self.generated)


@dataclass(slots=True)
class SimulatedScheduler:
    """Real bounds, no model."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_blocks: int
    block_size: int
    fail_after_tokens: int | None = None
    waiting: deque[ScriptedSequence] = field(init=False, default_factory=deque)
    running: list[ScriptedSequence] = field(init=False, default_factory=list)
    blocks_free: int = field(init=False)
    preemptions_total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.blocks_free = self.num_kv_blocks

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def add(self, sequence: ScriptedSequence) -> None:
        self.waiting.append(sequence)

    def request_ids(self) -> set[str]:
        """Of all sequences, running or waiting."""
        return {sequence.request.request_id for sequence in (*self.running, *self.waiting)}

    def remove(self, request_ids: set[str]) -> list[str]:
        """Drops sequences wherever they are; their blocks are free at once. Returns the ids that there were."""
        removed = [seq for seq in (*self.running, *self.waiting) if seq.request.request_id in request_ids]
        if removed:
            for sequence in removed:
                self._free(sequence)
            self.running = [seq for seq in self.running if seq.request.request_id not in request_ids]
            self.waiting = deque(seq for seq in self.waiting if seq.request.request_id not in request_ids)
        return [sequence.request.request_id for sequence in removed]

    def step(self) -> StepOutputs:
        """One engine step: decode what runs, then prefill with what is left of the token budget."""
        budget = self.max_num_batched_tokens
        outputs: list[SequenceOutput] = []
        scheduled: list[str] = []
        for sequence in list(self.running):
            if sequence.blocks and sequence.prefilled >= sequence.length - 1:
                budget -= 1
                self._decode(sequence, outputs)
        for sequence in list(self.running):
            budget = self._prefill(sequence, budget)
        while self.waiting and len(self.running) < self.max_num_seqs and budget > 0 and self._admit(scheduled):
            budget = self._prefill(self.running[-1], budget)
        return StepOutputs(outputs, scheduled)

    def _admit(self, scheduled: list[str]) -> bool:
        sequence = self.waiting[0]
        if not self._grow(sequence, sequence.length):
            return False
        self.running.append(self.waiting.popleft())
        if not sequence.admitted:
            sequence.admitted = True
            scheduled.append(sequence.request.request_id)
        return True

    def _prefill(self, sequence: ScriptedSequence, budget: int) -> int:
        missing = sequence.length - 1 - sequence.prefilled
        chunk = max(0, min(missing, budget))
        sequence.prefilled += chunk
        return budget - chunk

    def _decode(self, sequence: ScriptedSequence, outputs: list[SequenceOutput]) -> None:
        size = sequence.next_step_size
        while not self._grow(sequence, sequence.length + size):
            self._preempt_last()
            if not sequence.blocks:
                return
        output = self._generate(sequence, size)
        outputs.append(output)
        if output.finish_reason is not None:
            self._free(sequence)
            self.running.remove(sequence)

    def _generate(self, sequence: ScriptedSequence, size: int) -> SequenceOutput:
        sampling, script = sequence.request.sampling, sequence.script
        output = SequenceOutput(sequence.request.request_id, [])
        sequence.steps_taken += 1
        for _ in range(size):
            token_id = script.token_ids[sequence.generated % len(script.token_ids)]
            output.token_ids.append(token_id)
            sequence.generated += 1
            output.finish_reason = self._end_after(sequence, token_id, output)
            if output.finish_reason is not None:
                break
        if output.finish_reason is None and sequence.next_step_size == 0:
            output.finish_reason = script.ends
        sequence.prefilled = sequence.length - 1
        if sampling.logprobs is not None:
            output.logprobs = [_certain(token_id, sampling.logprobs) for token_id in output.token_ids]
        return output

    def _end_after(self, sequence: ScriptedSequence, token_id: int, output: SequenceOutput) -> FinishReason | None:
        sampling = sequence.request.sampling
        if self.fail_after_tokens is not None and sequence.generated >= self.fail_after_tokens:
            output.error = f"simulated fault after {sequence.generated} tokens"
            return FinishReason.ERROR
        if token_id in sampling.stop_token_ids and sequence.generated > sampling.min_tokens:
            output.stop_token_id = token_id
            return FinishReason.STOP
        if sequence.generated < sampling.max_tokens:
            return None
        at_end = not sequence.script.endless and sequence.generated == len(sequence.script.token_ids)
        return sequence.script.ends if at_end else FinishReason.LENGTH

    def _grow(self, sequence: ScriptedSequence, tokens: int) -> bool:
        """Gives the sequence blocks for so many tokens, if there are."""
        missing = self.blocks_for(tokens) - sequence.blocks
        if missing > self.blocks_free:
            return False
        if missing > 0:
            sequence.blocks += missing
            self.blocks_free -= missing
        return True

    def _preempt_last(self) -> None:
        victim = next(seq for seq in reversed(self.running) if seq.blocks)
        self.preemptions_total += 1
        self._free(victim)
        victim.prefilled = 0
        self.running.remove(victim)
        self.waiting.appendleft(victim)

    def _free(self, sequence: ScriptedSequence) -> None:
        self.blocks_free += sequence.blocks
        sequence.blocks = 0


def _certain(token_id: int, top: int) -> TokenLogprobs:
    """The simulated engine is certain of its script: probability one for what it says."""
    return TokenLogprobs(0.0, ((token_id, 0.0),) if top else ())
