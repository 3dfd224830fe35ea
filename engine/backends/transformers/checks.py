"""What the transformers backend refuses at the door: an untested library, and requests, with the field's name.

Never anything that depends on the engine's load, and never imports torch.
"""

from __future__ import annotations

import importlib.metadata

from engine.errors import ContextLengthError, InvalidRequestError, ModelLoadError, UnsupportedParameterError
from engine.types import EngineRequest, ModelLimits

TESTED_TRANSFORMERS = "5.19"
"""The release whose private parts `continuous` is written against."""


def require_tested_transformers() -> None:
    """`ModelLoadError` unless the installed transformers is one that this backend was written against."""
    try:
        installed = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise ModelLoadError("the transformers engine needs `pip install 'tailrace[cpu]'`") from None
    if not installed.startswith(f"{TESTED_TRANSFORMERS}."):
        raise ModelLoadError(
            f"transformers {installed} is installed; the transformers engine works with {TESTED_TRANSFORMERS}.x only"
        )


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


def _check_ids(request: EngineRequest, vocab_size: int) -> None:
    for param, token_ids in (("prompt", request.prompt_token_ids), ("logit_bias", request.sampling.logit_bias)):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{param}: token id {token_id} is not below the vocabulary's {vocab_size}", param=param
                )
