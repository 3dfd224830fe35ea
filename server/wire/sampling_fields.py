"""The request fields that Chat Completions and Completions share: OpenAI's, and those that vLLM's users send.

Never lenient: known fields that can't be honoured are refused by name.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.types import FinishReason, SamplingParams, Simulation, Structure, TextParams
from server.lifecycle import Phase
from server.wire.door import MAX_TOKEN_IDS, items
from server.wire.hosted_fields import HostedFields
from server.wire.structure_fields import StructureFields

MAX_CHOICES = 128
"""Most choices of one request: n times prompts."""
MAX_STOPS = 1_000
MAX_STOP_CHARACTERS = 16_384
"""Of all stop strings of a request together: each is a node of the automaton that looks for them."""
MAX_SALT_CHARACTERS = 1_024
MAX_BAD_WORDS = 128
"""As vLLM's; each is one or two token sequences."""
MAX_ALLOWED = 100_000
MAX_SECONDS = 1e6
INT64 = 2**63 - 1
TokenId = Annotated[int, Field(ge=-INT64, le=INT64)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
BadWord = Annotated[str, Field(min_length=1, max_length=1_024)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


def number(low: float, high: float, *, above: bool = False) -> Any:
    """A finite number between these bounds; `above` leaves out the lower one."""
    return Field(None, gt=low if above else None, ge=None if above else low, le=high, allow_inf_nan=False)


class StreamOptions(BaseModel):
    """What a stream says beside its text."""

    model_config = ConfigDict(frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """Hosted: padding against who can see packet sizes. Without effect here."""


class SimulateField(BaseModel):
    """Tells the simulated engine exactly what to generate; the other engines refuse it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_ids: Annotated[list[TokenId], items(MAX_TOKEN_IDS)]
    steps: Annotated[list[Annotated[int, Field(ge=1)]], items(MAX_TOKEN_IDS)] = Field(default_factory=list)
    then: Literal["eos", "length"] = "eos"

    def lower(self) -> Simulation:
        ends = FinishReason.STOP if self.then == "eos" else FinishReason.LENGTH
        return Simulation(tuple(self.token_ids), tuple(self.steps), ends)


class TimeoutsField(BaseModel):
    """Most seconds that the client wants to wait, by phase; the server's own bounds hold beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queue: float | None = number(0, MAX_SECONDS, above=True)
    first_token: float | None = number(0, MAX_SECONDS, above=True)
    between_tokens: float | None = number(0, MAX_SECONDS, above=True)
    total: float | None = number(0, MAX_SECONDS, above=True)


class SamplingFields(StructureFields, HostedFields):
    """Base of both requests. Bounds are the hosted API's where it has some."""

    model_config = ConfigDict(frozen=True, extra="allow")

    refused: ClassVar[dict[str, str]] = {
        "guided_whitespace_pattern": "JSON answers are on one line",
        "structural_tag": "this server has no structural tags",
        "prompt_logprobs": "this engine gives no log probabilities of the prompt",
        "truncation_side": "a prompt that is cut keeps its end",
        "use_beam_search": "this server has no beam search",
        "length_penalty": "this server has no beam search",
        "logits_processors": "this server runs no code of its clients",
        "return_token_ids": "this server answers with text only",
        "return_tokens_as_token_ids": "this server answers with text only",
    }
    """Known fields that are a 400 when set, with the reason."""
    neutral: ClassVar[dict[str, object]] = {
        "best_of": 1,
        "length_penalty": 1,
        "suffix": "",
        "functions": [],
        "truncation_side": "left",
    }
    """Of these, the values that ask for nothing (beside null and false)."""
    bounded: ClassVar[dict[str, str]] = {}
    """Known fields of which some values, or some company, are a 400, with the reason."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    temperature: float | None = number(0, 2)
    top_p: float | None = number(0, 1, above=True)
    top_k: int | None = Field(None, ge=-1, le=INT64)
    min_p: float | None = number(0, 1)
    seed: int | None = Field(None, ge=-INT64 - 1, le=INT64)
    presence_penalty: float | None = number(-2, 2)
    frequency_penalty: float | None = number(-2, 2)
    repetition_penalty: float | None = number(0.01, 100)
    logit_bias: dict[str, Bias] | None = Field(None, max_length=1_024)
    stop: StopString | Annotated[list[StopString], items(MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], items(MAX_STOPS)] | None = None
    min_tokens: int | None = Field(None, ge=0, le=INT64)
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-INT64 - 1, le=INT64)
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    simulate: SimulateField | None = None
    allowed_token_ids: Annotated[list[TokenId], items(MAX_ALLOWED, least=1)] | None = None
    bad_words: Annotated[list[BadWord], items(MAX_BAD_WORDS)] | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=INT64)
    timeouts: TimeoutsField | None = None

    @field_validator("logit_bias")
    @classmethod
    def _bias_keys_are_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        bad = next((key for key in bias or () if not re.fullmatch(r"-?\d{1,18}", key, re.ASCII)), None)
        if bad is not None:
            raise ValueError(f"{bad!r} is not a token id")
        return bias

    @field_validator("stop")
    @classmethod
    def _stops_are_bounded(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and sum(map(len, stop)) > MAX_STOP_CHARACTERS:
            raise ValueError(f"the stop strings have more than {MAX_STOP_CHARACTERS} characters together")
        return stop

    @model_validator(mode="after")
    def _fields_agree(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options is only allowed when stream is true", param="stream_options")
        return self

    def refuse_unsupported(self) -> None:
        """Raises for the first field that is known, set and can't be honoured."""
        extra = self.model_extra or {}
        for name, reason in self.refused.items():
            value = extra.get(name)
            if value is not None and value is not False and value != self.neutral.get(name):
                raise UnsupportedParameterError(name, reason)

    @property
    def asked_model(self) -> str | None:
        return self.model

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        return tuple(name for name in self.model_extra or {} if name not in self.refused)

    @property
    def asked_timeouts(self) -> dict[Phase, float]:
        asked = {} if self.timeouts is None else self.timeouts.model_dump(exclude_none=True)
        return {Phase(name): seconds for name, seconds in asked.items()}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def structure(self) -> Structure | None:
        structure = super().structure()
        if structure is not None and self.simulate is not None:
            message = f"{structure.param} and simulate both say what the answer is; only one can"
            raise InvalidRequestError(message, param=structure.param)
        for field in ("allowed_token_ids", "bad_words"):
            if structure is not None and getattr(self, field):
                reason = f"it might leave {structure.param} no token to go on with"
                raise UnsupportedParameterError(field, reason)
        return structure

    def sampling(self, logprobs: int | None) -> SamplingParams:
        """The engine's sampling parameters; `max_tokens` is set when the prompt's length is known."""
        return SamplingParams(
            max_tokens=1,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            seed=self.seed,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias={int(key): bias for key, bias in (self.logit_bias or {}).items()},
            min_tokens=self.min_tokens or 0,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
            allowed_token_ids=None if self.allowed_token_ids is None else frozenset(self.allowed_token_ids),
        )

    def text_params(self) -> TextParams:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return TextParams(
            stop=stop,
            include_stop=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            spaces_between_special_tokens=self.spaces_between_special_tokens is not False,
        )
