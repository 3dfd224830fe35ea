"""What the backends of a real model refuse at the door: requests that can't be generated, with the field's name.

Never anything that depends on the engine's load.
"""

from __future__ import annotations

from engine.errors import ContextLengthError, InvalidRequestError, UnsupportedParameterError
from engine.types import EngineRequest, ModelLimits


def check_request(request: EngineRequest, limits: ModelLimits, cache_tokens: int | None) -> None:
    """Raises `InvalidRequestError` for what can't be generated. `cache_tokens`: the whole KV cache, None if unknown."""
    if request.simulation is not None:
        raise UnsupportedParameterError("simulate", "only the simulated engine takes it")
    prompt, output = len(request.prompt_token_ids), request.sampling.max_tokens
    room = limits.context_length if cache_tokens is None else min(limits.context_length, cache_tokens)
    if prompt >= room:
        raise ContextLengthError(f"the prompt has {prompt} tokens; at most {room - 1} fit", param="prompt")
    if prompt + output > room:
        raise ContextLengthError(
            f"{prompt} prompt tokens and max_tokens {output} are more than the {room} that fit", param="max_tokens"
        )
    _check_ids(request, limits.vocab_size)


def refuse_structure(request: EngineRequest, reason: str) -> None:
    """For an engine that can't hold an answer to a structure. `UnsupportedParameterError` naming the client's field."""
    if request.grammar is not None:
        raise UnsupportedParameterError(request.grammar.structure.param, reason)


def refuse_priority(request: EngineRequest, reason: str) -> None:
    """For an engine that serves first what came first. `UnsupportedParameterError`."""
    if request.priority:
        raise UnsupportedParameterError("priority", reason)


def refuse_cache_salt(request: EngineRequest, reason: str) -> None:
    """For an engine whose prefix cache is one for all requests. `UnsupportedParameterError`."""
    if request.cache_salt is not None:
        raise UnsupportedParameterError("cache_salt", reason)


def _check_ids(request: EngineRequest, vocab_size: int) -> None:
    for param, token_ids in (("prompt", request.prompt_token_ids), ("logit_bias", request.sampling.logit_bias)):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{param}: token id {token_id} is not below the vocabulary's {vocab_size}", param=param
                )
