"""The sequences that the engine holds, from their submission to the engine's word that they are gone.

Never imports vLLM: it reads what the engine's messages say. Each sequence bears a key of its own on the wire, so that a
request id may be used again while an aborted sequence of the same id is not gone yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.types import EngineRequest, FinishReason, SequenceOutput, StepOutputs, TokenLogprobs

ENGINE_ERROR = "the engine failed this sequence; its log says why"
LEFT_ERROR = "the engine dropped this sequence without a word"
FINISH = {
    "STOP": FinishReason.STOP,
    "REPETITION": FinishReason.STOP,
    "LENGTH": FinishReason.LENGTH,
    "ABORT": FinishReason.ABORT,
    "ERROR": FinishReason.ERROR,
}


@dataclass(slots=True)
class Held:
    """One sequence in the engine."""

    request_id: str
    logprobs: int | None
    """How many of the likeliest tokens were asked for."""
    prompt_logprobs: int | None = None
    """The same for each of the prompt's tokens."""
    adapter: str | None = None
    scheduled: bool = False
    aborted: bool = False


class SequenceLedger:
    """Takes the engine's messages in, gives steps out."""

    def __init__(self) -> None:
        self.preemptions = 0
        """Times that a running sequence was queued again, as far as the engine told."""
        self._held: dict[str, Held] = {}
        self._keys: dict[str, str] = {}
        """The latest key of each request id that is held."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._held)

    def request_ids(self) -> set[str]:
        return {held.request_id for held in self._held.values()}

    def adapters(self) -> tuple[set[str], set[str]]:
        """The adapters of sequences that the engine began, and of those that wait."""
        used = [(held.adapter, held.scheduled) for held in self._held.values() if held.adapter is not None]
        return {name for name, begun in used if begun}, {name for name, begun in used if not begun}

    def add(self, request: EngineRequest) -> str:
        """Returns the key under which the sequence goes to the engine."""
        key = f"{request.request_id}#{next(self._numbers)}"
        self._held[key] = Held(
            request.request_id, request.sampling.logprobs, request.sampling.prompt_logprobs, request.adapter
        )
        self._keys[request.request_id] = key
        return key

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """Returns the keys that the engine is to be told of, also those that it was told of before."""
        keys = [key for request_id in request_ids if (key := self._keys.get(request_id)) is not None]
        for key in keys:
            self._held[key].aborted = True
        return keys

    def take(self, message: Any) -> StepOutputs:
        """One engine step: `message` is vLLM's `EngineCoreOutputs`."""
        step = StepOutputs([])
        for output in message.outputs:
            held = self._held.get(output.request_id)
            if held is not None:
                self._take_output(output, held, step)
        for key in message.finished_requests or ():
            gone = self._forget(key)
            if gone is None:
                continue  # its last output said so
            if gone.aborted:
                step.freed.append(gone.request_id)
            else:
                step.outputs.append(_failed(gone.request_id, LEFT_ERROR))
        return step

    def fail(self, key: str, error: str) -> StepOutputs:
        """One sequence never reached the engine."""
        held = self._forget(key)
        if held is None:
            return StepOutputs([])
        if held.aborted:
            return StepOutputs([], freed=[held.request_id])
        return StepOutputs([_failed(held.request_id, error)])

    def end_all(self, error: str) -> StepOutputs:
        """The engine is no more."""
        ended = [_failed(held.request_id, error) for held in self._held.values() if not held.aborted]
        self._held.clear()
        self._keys.clear()
        return StepOutputs(ended)

    def _take_output(self, output: Any, held: Held, step: StepOutputs) -> None:
        if output.events:
            self._take_events(output.events, held, step)
        reason = output.finish_reason
        if not output.new_token_ids and reason is None:
            return
        if not held.scheduled:
            self._begin(held, step)
        taken = SequenceOutput(held.request_id, output.new_token_ids)
        if output.new_logprobs is not None and held.logprobs is not None:
            taken.logprobs = list(_logprobs(output.new_logprobs, held.logprobs))
        if output.new_prompt_logprobs_tensors is not None and held.prompt_logprobs is not None:
            rows = _logprobs(output.new_prompt_logprobs_tensors, held.prompt_logprobs)
            taken.prompt_logprobs = [None, *rows]  # nothing comes before the first token
        if output.prefill_stats is not None:
            taken.cached_tokens = output.prefill_stats.num_cached_tokens
        if reason is not None:
            _end(taken, FINISH[reason.name])
            self._forget(output.request_id)
        step.outputs.append(taken)

    def _take_events(self, events: Iterable[Any], held: Held, step: StepOutputs) -> None:
        for event in events:
            if event.type.name == "PREEMPTED":
                self.preemptions += 1
            elif event.type.name == "SCHEDULED" and not held.scheduled:
                self._begin(held, step)

    def _begin(self, held: Held, step: StepOutputs) -> None:
        held.scheduled = True
        step.scheduled.append(held.request_id)

    def _forget(self, key: str) -> Held | None:
        held = self._held.pop(key, None)
        if held is not None and self._keys.get(held.request_id) == key:
            del self._keys[held.request_id]
        return held


def _failed(request_id: str, error: str) -> SequenceOutput:
    return SequenceOutput(request_id, [], FinishReason.ERROR, error=error)


def _end(output: SequenceOutput, reason: FinishReason) -> None:
    output.finish_reason = reason
    if reason is FinishReason.STOP and output.token_ids:
        output.stop_token_id = output.token_ids[-1]
    if reason is FinishReason.ERROR:
        output.error = ENGINE_ERROR


def _logprobs(rows: Any, likeliest: int) -> Iterator[TokenLogprobs]:
    """Each row is the chosen token and then the likeliest ones, best first; other sequences may have asked for more."""
    for token_ids, values in zip(rows.logprob_token_ids.tolist(), rows.logprobs.tolist(), strict=True):
        chosen, *top = zip(token_ids[: likeliest + 1], values, strict=False)
        yield TokenLogprobs(chosen[1], tuple(top))
