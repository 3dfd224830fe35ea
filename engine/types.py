"""The nouns that the engine's rooms pass to one another: frozen records, counted in tokens.

Never any behaviour beyond derived values, never HTTP, never a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.output.parsers.plan import ParsingPlan


class FinishReason(StrEnum):
    """Why one sequence ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the end of the context."""
    ABORT = "abort"
    """Someone asked for it: the client left, a deadline passed, the server drains."""
    ERROR = "error"
    """The engine failed; the output carries a message."""


class AbortReason(StrEnum):
    """Who ended a sequence before the engine did."""

    DISCONNECT = "disconnect"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence's next token is chosen, and when the backend ends it by itself."""

    max_tokens: int
    """Most tokens generated, at least 1."""
    temperature: float = 1.0
    """0 is greedy: the most likely token, always."""
    top_p: float = 1.0
    """In (0, 1]; 1 is off."""
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """In [0, 1]: tokens less likely than this share of the most likely one are out; 0 is off."""
    seed: int | None = None
    """The same seed, prompt and parameters give the same tokens."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token generated so far."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that it was generated."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    min_tokens: int = 0
    """Until so many tokens are generated, no end-of-sequence or stop token can be sampled."""
    stop_token_ids: frozenset[int] = frozenset()
    """Token ids that end the sequence beside the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """The model's own end-of-sequence ids are ordinary tokens."""
    logprobs: int | None = None
    """None: none. k: the log probability of each chosen token, and of the k likeliest."""
    prompt_logprobs: int | None = None
    """None: none. k: the log probability of each token of the prompt but the first, and of the k likeliest there."""
    allowed_token_ids: frozenset[int] | None = None
    """Only these ids are ever chosen, at least one; None: all are."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences, none empty, that the answer never holds: what would complete one is not chosen."""


@dataclass(frozen=True, slots=True)
class TextParams:
    """How one sequence's token ids become text."""

    stop: tuple[str, ...] = ()
    """Stop strings, none empty. The one completed first in the text wins."""
    include_stop: bool = False
    """The matched stop string, or the stop token's text, stays in the answer."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    echo: bool = False
    """The prompt's own text comes first in the answer; stop strings are not looked for in it."""
    parsing: ParsingPlan | None = None
    """Reasoning and tool calls to look for; None: all of the text is content."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the simulated backend is told to generate; the other backends refuse it."""

    token_ids: tuple[int, ...]
    """Exactly these ids are generated."""
    steps: tuple[int, ...] = ()
    """How many of them each engine step holds; what is left goes one a step."""
    then: FinishReason = FinishReason.STOP
    """How it ends after the last id: STOP (as if by end-of-sequence, no id added) or LENGTH."""


class StructureKind(StrEnum):
    """The languages in which a client can say what an answer looks like."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    """EBNF."""


@dataclass(frozen=True, slots=True)
class Structure:
    """What the whole answer has to look like."""

    kind: StructureKind
    text: str = ""
    """A JSON schema, a regular expression, a JSON array of strings, or EBNF; of JSON_OBJECT nothing."""
    param: str = field(default="structured_outputs", compare=False)
    """The request's field that said so, for errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A structure that was found good, shared by all sequences that keep to it."""

    structure: Structure
    compiled: Any = None
    """What the compiler made of it, for the backend alone; never changed. None before it was compiled."""
    text: str = ""
    """The same in llguidance's language, for a backend whose own process compiles it. Empty before it was compiled."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate: what a backend is handed."""

    request_id: str
    """Unique among the engine's live sequences."""
    prompt_token_ids: Sequence[int]
    """At least one id, each within the model's vocabulary."""
    sampling: SamplingParams
    simulation: Simulation | None = None
    grammar: Grammar | None = None
    """Every answer is a sentence of it, or a beginning of one where it is cut. `min_tokens` and `ignore_eos` hold the
    end back only while the sentence can go on."""
    priority: int = 0
    """Lower is served earlier, by an engine that has priorities; the others refuse all but 0."""
    cache_salt: str | None = None
    """Only requests of the same salt share blocks of the prefix cache. Where no request shares any, it holds anyway."""
    adapter: str | None = None
    """The LoRA adapter that changes the model, by its name; of engines that have some."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities (natural) of one position; minus infinity is possible."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest (token id, log probability), best first."""


@dataclass(slots=True)
class SequenceOutput:
    """What one engine step generated for one sequence."""

    request_id: str
    token_ids: list[int]
    """New ids in order, a stop token included; may be empty when only the end is reported."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """With STOP: the end-of-sequence or stop token, the last of `token_ids`, that ended it."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each of `token_ids`, where asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Where asked for, told with the first output: one entry for each of the prompt's tokens, None for the first."""
    cached_tokens: int = 0
    """Prompt tokens whose KV blocks were reused, told with the first output."""
    error: str | None = None
    """With ERROR: what happened, for the server's operator and client."""


@dataclass(slots=True)
class StepOutputs:
    """What one engine step did, for all the sequences that it touched."""

    outputs: list[SequenceOutput]
    scheduled: list[str] = field(default_factory=list)
    """Request ids whose prefill began for the first time: their wait in the queue is over."""
    freed: list[str] = field(default_factory=list)
    """Request ids that were aborted, and of which the engine now holds nothing: no output of theirs follows."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment, read from its scheduler and block pool."""

    running: int
    """Sequences holding KV blocks."""
    waiting: int
    """Sequences submitted and not yet scheduled."""
    kv_blocks_total: int
    kv_blocks_free: int
    block_size: int = 0
    """Tokens in one KV block; 0 while there is no engine."""
    preemptions_total: int = 0
    """Times that a running sequence lost its blocks to another and was queued again."""
    prefix_cache_queries_total: int = 0
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_cache_hits_total: int = 0
    """Of these, the tokens found there."""

    @property
    def kv_blocks_used(self) -> int:
        return self.kv_blocks_total - self.kv_blocks_free


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The bounds that a request is checked against before the engine sees it."""

    context_length: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    """Rows of the model's head: ids are below this."""
    eos_token_ids: frozenset[int] = frozenset()
