"""What each engine can't do, in one table: its `check` refuses by it, and docs/parameters.md is written from it.

Never anything that depends on a model, its size or the load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.errors import UnsupportedParameterError
from engine.types import EngineRequest

_SCRIPTED = "the simulated engine has no model; it is taken where simulate says what comes"
_NO_SCRIPT = "only the simulated engine takes it"

UNSUPPORTED: Mapping[str, Mapping[str, str]] = {
    "transformers": {
        "simulate": _NO_SCRIPT,
        "priority": "the transformers engine serves first what came first",
        "cache_salt": "the transformers engine has one prefix cache for all requests",
    },
    "vllm": {"simulate": _NO_SCRIPT},
    "simulated": {
        "structure": _SCRIPTED,
        "priority": "the simulated engine serves first what came first",
        "allowed_token_ids": _SCRIPTED,
        "bad_words": _SCRIPTED,
    },
}
"""By engine: what it refuses, with the reason."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
WITHOUT_EFFECT: Mapping[str, Mapping[str, str]] = {
    "simulated": dict.fromkeys((*_SAMPLING, "logit_bias"), "no model"),
}
"""By engine: what it takes and has no use for."""


def _structure(request: EngineRequest) -> str | None:
    return None if request.grammar is None or request.simulation else request.grammar.structure.param


def _simulate(request: EngineRequest) -> str | None:
    return None if request.simulation is None else "simulate"


def _allowed_token_ids(request: EngineRequest) -> str | None:
    return None if request.sampling.allowed_token_ids is None or request.simulation else "allowed_token_ids"


def _bad_words(request: EngineRequest) -> str | None:
    return "bad_words" if request.sampling.bad_words and not request.simulation else None


def _priority(request: EngineRequest) -> str | None:
    return "priority" if request.priority else None


def _cache_salt(request: EngineRequest) -> str | None:
    return None if request.cache_salt is None else "cache_salt"


_ASKED: Mapping[str, Callable[[EngineRequest], str | None]] = {
    "structure": _structure,
    "simulate": _simulate,
    "allowed_token_ids": _allowed_token_ids,
    "bad_words": _bad_words,
    "priority": _priority,
    "cache_salt": _cache_salt,
}
"""Whether a request asks for it, and by which of the client's fields."""


def refuse_unsupported(request: EngineRequest, engine: str) -> None:
    """Raises `UnsupportedParameterError` naming the client's field for the first thing that this engine can't do."""
    for what, reason in UNSUPPORTED[engine].items():
        field = _ASKED[what](request)
        if field is not None:
            raise UnsupportedParameterError(field, reason)
