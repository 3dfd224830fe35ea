"""From what a client asked to what a backend is handed: prompts to token ids, one request a choice, bounds checked.

Never an engine call: whatever is wrong is said before any work is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.errors import ContextLengthError, InvalidRequestError
from engine.prompt.bad_words import banned_sequences, check_choice_left
from engine.prompt.conversation import Conversation
from engine.prompt.renderer import PromptRenderer
from engine.prompt.tool_choice import ToolChoice
from engine.types import EngineRequest, Grammar, ModelLimits, SamplingParams, Simulation, Structure, TextParams

Prompt = Conversation | str | tuple[int, ...]
"""A conversation for the chat template, raw text, or token ids."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What every API's request is lowered to: prompts, `n` choices of each, and how to generate them."""

    request_id: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    """`max_tokens` here is replaced by `max_tokens` of this record."""
    text: TextParams
    max_tokens: int | None = None
    """Most tokens of one choice; None: what the context leaves."""
    max_tokens_field: str = "max_tokens"
    """How the client's API names it, for error messages."""
    n: int = 1
    simulation: Simulation | None = None
    structure: Structure | None = None
    """What every choice has to look like."""
    tool_choice: ToolChoice | None = None
    """Of a conversation whose tools may be called."""
    include_reasoning: bool = True
    reasoning_effort: str | None = None
    """How much the model is to think, in words that its chat template knows."""
    priority: int = 0
    """Lower is served earlier."""
    cache_salt: str | None = None
    """Only requests of the same salt share what the engine remembers of prompts."""
    adapter: str | None = None
    """The LoRA adapter that the request's model names."""
    bad_words: tuple[str, ...] = ()
    """Words that no choice may hold; they become `bad_words` of `sampling`."""
    truncate_prompt_tokens: int | None = None
    """Only so many of a prompt's last tokens are kept; -1: as many as leave room for the answer. None: all of them."""


def lower(request: GenerateRequest, renderer: PromptRenderer, limits: ModelLimits) -> list[EngineRequest]:
    """One engine request a choice: all choices of the first prompt, then of the second, and so on.

    A structure becomes one grammar for all of them, not compiled yet.

    Raises `InvalidRequestError` (or its `ContextLengthError`) naming the client's field.
    """
    _check_ids(request, limits)
    grammar = None if request.structure is None else Grammar(request.structure)
    shared = _sampling(request, renderer)
    check_choice_left(shared, limits)
    lowered: list[EngineRequest] = []
    for prompt in request.prompts:
        token_ids = _kept(_token_ids(prompt, renderer, limits), prompt, request, limits)
        max_tokens = _max_tokens(request, len(token_ids), limits)
        for _ in range(request.n):
            index = len(lowered)
            sampling = replace(shared, max_tokens=max_tokens, seed=_seed(shared.seed, index))
            request_id = f"{request.request_id}-{index}"
            lowered.append(
                EngineRequest(
                    request_id=request_id,
                    prompt_token_ids=token_ids,
                    sampling=sampling,
                    simulation=request.simulation,
                    grammar=grammar,
                    priority=request.priority,
                    cache_salt=request.cache_salt,
                    adapter=request.adapter,
                )
            )
    return lowered


def _sampling(request: GenerateRequest, renderer: PromptRenderer) -> SamplingParams:
    if not request.bad_words:
        return request.sampling
    return replace(request.sampling, bad_words=banned_sequences(request.bad_words, renderer.encode_piece))


def _seed(seed: int | None, index: int) -> int | None:
    """Choices of one seeded request differ from one another and from those of other seeds, and are repeatable."""
    if seed is None or index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=7).digest())


def _token_ids(prompt: Prompt, renderer: PromptRenderer, limits: ModelLimits) -> Sequence[int]:
    if isinstance(prompt, Conversation):
        token_ids: Sequence[int] = renderer.encode(prompt)
    elif isinstance(prompt, str):
        token_ids = renderer.encode_text(prompt)
    else:
        token_ids = prompt
        bad = next((token_id for token_id in prompt if not 0 <= token_id < limits.vocab_size), None)
        if bad is not None:
            message = f"prompt token id {bad} is not in the model's vocabulary (0 to {limits.vocab_size - 1})"
            raise InvalidRequestError(message, param="prompt")
    return token_ids


def _kept(token_ids: Sequence[int], prompt: Prompt, request: GenerateRequest, limits: ModelLimits) -> Sequence[int]:
    """The end of the prompt that the client wants, all of it as a rule: at least one token, and room for an answer."""
    keep = request.truncate_prompt_tokens
    if keep is not None:
        if keep == 0 or keep >= limits.context_length:
            message = f"truncate_prompt_tokens is {keep}; it is -1 or from 1 to {limits.context_length - 1}"
            raise InvalidRequestError(message, param="truncate_prompt_tokens")
        room = max(limits.context_length - (request.max_tokens or 1), 1)
        token_ids = token_ids[-(room if keep < 0 else keep) :]
    if not token_ids:
        raise InvalidRequestError("the prompt has no tokens", param=_prompt_field(prompt))
    if len(token_ids) >= limits.context_length:
        message = (
            f"the prompt has {len(token_ids)} tokens and leaves no room for an answer: "
            f"the model's context is {limits.context_length} tokens"
        )
        raise ContextLengthError(message, param=_prompt_field(prompt))
    return token_ids


def _prompt_field(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, Conversation) else "prompt"


def _max_tokens(request: GenerateRequest, prompt_tokens: int, limits: ModelLimits) -> int:
    room = limits.context_length - prompt_tokens
    if request.max_tokens is None:
        return room
    if request.max_tokens > room:
        message = (
            f"{request.max_tokens_field} is {request.max_tokens}, but a prompt of {prompt_tokens} tokens leaves "
            f"{room} of the model's context of {limits.context_length} tokens"
        )
        raise ContextLengthError(message, param=request.max_tokens_field)
    return request.max_tokens


def _check_ids(request: GenerateRequest, limits: ModelLimits) -> None:
    """Every token id that a client names is a row of the model's head."""
    named = {
        "logit_bias": request.sampling.logit_bias,
        "stop_token_ids": request.sampling.stop_token_ids,
        "allowed_token_ids": request.sampling.allowed_token_ids or (),
    }
    for field, token_ids in named.items():
        bad = next((token_id for token_id in token_ids if not 0 <= token_id < limits.vocab_size), None)
        if bad is not None:
            message = f"{field}: token id {bad} is not in the model's vocabulary (0 to {limits.vocab_size - 1})"
            raise InvalidRequestError(message, param=field)
