"""The Completions request: validated at the door, lowered to what the engine is asked for.

Never an engine call. A prompt is text, token ids, or a list of either; each is a prompt of its own, in order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.output.result import AnswerResult
from engine.prompt.lowering import GenerateRequest
from server.wire.completions.encoder import CompletionChunkShape
from server.wire.completions.response import text_completion
from server.wire.dialect import AnswerContext, StreamEncoder, Usage
from server.wire.door import MAX_TOKEN_IDS, items
from server.wire.openai_stream import OpenAIStreamEncoder, StreamFields
from server.wire.sampling_fields import INT64, MAX_CHOICES, SamplingFields, TokenId

DEFAULT_MAX_TOKENS = 16
"""The hosted API's default."""
MAX_LOGPROBS = 5
TokenIds = Annotated[list[TokenId], items(MAX_TOKEN_IDS, least=1)]
Prompts = Annotated[list[str], items(MAX_CHOICES, least=1)]
TokenPrompts = Annotated[list[TokenIds], items(MAX_CHOICES, least=1)]


class CompletionRequest(SamplingFields):
    """See `server.wire.dialect.ParsedRequest`."""

    refused: ClassVar[dict[str, str]] = SamplingFields.refused | {
        "suffix": "this server does not fill in the middle",
        "best_of": "this server returns every choice that it generates; use n",
    }
    bounded: ClassVar[dict[str, str]] = {
        "echo": "with logprobs it asks for those of the prompt, which no engine gives",
    }

    prompt: str | TokenIds | Prompts | TokenPrompts
    max_tokens: int | None = Field(None, ge=1, le=INT64)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None

    def lower(self, request_id: str) -> GenerateRequest:
        self.refuse_unsupported()
        if self.echo and self.logprobs is not None:
            raise UnsupportedParameterError("echo", self.bounded["echo"])
        prompts = self._prompts()
        n = self.n or 1
        if n * len(prompts) > MAX_CHOICES:
            raise InvalidRequestError(
                f"n times the number of prompts is {n * len(prompts)}; at most {MAX_CHOICES} are allowed", param="n"
            )
        return GenerateRequest(
            request_id=request_id,
            prompts=prompts,
            sampling=self.sampling(self.logprobs),
            text=replace(self.text_params(), echo=bool(self.echo)),
            max_tokens=self._max_tokens(),
            n=n,
            simulation=None if self.simulate is None else self.simulate.lower(),
            structure=self.structure(),
            priority=self.priority or 0,
            cache_salt=self.cache_salt,
            bad_words=tuple(self.bad_words or ()),
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )

    def encoder(self, context: AnswerContext) -> StreamEncoder:
        fields = StreamFields(self.include_usage, self.continuous_usage, self.logprobs is not None)
        return OpenAIStreamEncoder(CompletionChunkShape(), context, fields)

    def whole(self, context: AnswerContext, result: AnswerResult, usage: Usage) -> bytes:
        return text_completion(context, result, usage, logprobs=self.logprobs is not None)

    def _max_tokens(self) -> int | None:
        if self.max_tokens is None and self.simulate is None:
            return DEFAULT_MAX_TOKENS
        return self.max_tokens  # a script says by itself where it ends

    def _prompts(self) -> tuple[str | tuple[int, ...], ...]:
        if isinstance(self.prompt, str):
            return (self.prompt,)
        first = self.prompt[0]
        if isinstance(first, int):
            return (tuple(token_id for token_id in self.prompt if isinstance(token_id, int)),)
        return tuple(
            prompt if isinstance(prompt, str) else tuple(prompt)
            for prompt in self.prompt
            if not isinstance(prompt, int)
        )
