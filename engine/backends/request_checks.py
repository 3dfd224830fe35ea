"""What the backends of a real model refuse at the door: requests that can't be generated, with the field's name.

Never anything that depends on the engine's load.
"""

from __future__ import annotations

from engine.errors import ContextLengthError, InvalidRequestError
from engine.types import EngineRequest, ModelLimits


def check_request(request: EngineRequest, limits: ModelLimits, cache_tokens: int | None) -> None:
    """Raises `InvalidRequestError` for what can't be generated. `cache_tokens`: the whole KV cache, None if unknown."""
    prompt, output = len(request.prompt_token_ids), request.sampling.max_tokens
    room = limits.context_length if cache_tokens is None else min(limits.context_length, cache_tokens)
    if prompt >= room:
        raise ContextLengthError(f"the prompt has {prompt} tokens; at most {room - 1} fit", param="prompt")
    if prompt + output > room:
        raise ContextLengthError(
            f"{prompt} prompt tokens and max_tokens {output} are more than the {room} that fit", param="max_tokens"
        )
    _check_ids(request, limits.vocab_size)


def _check_ids(request: EngineRequest, vocab_size: int) -> None:
    named = {
        "prompt": request.prompt_token_ids,
        "logit_bias": request.sampling.logit_bias,
        "allowed_token_ids": request.sampling.allowed_token_ids or (),
    }
    for param, token_ids in named.items():
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{param}: token id {token_id} is not below the vocabulary's {vocab_size}", param=param
                )
