"""The names that requests may ask for: the model's own, and those of its adapters. Never a list of its own.

An adapter is a model of its own to a client: listed, asked for, accounted and answered under its name.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from typing import Any

from engine.loading import Engine
from server.wire.door import SHOWN
from server.wire.errors import WireError


class ServedModels:
    """What `/v1/models` lists and `model` may say."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        said = f"{importlib.metadata.version('tailrace')} {engine.core.backend.name} {engine.model_name}"
        self.fingerprint = f"fp_{hashlib.blake2b(said.encode(), digest_size=5).hexdigest()}"
        """OpenAI's `system_fingerprint`: another model, engine or version of this server has another one."""

    def adapter(self, asked: str | None) -> str | None:
        """The adapter of that name; None for the model itself, which is meant where none is named. Else a 404."""
        engine = self._engine
        if asked is None or asked == engine.model_name or asked in engine.model_aliases:
            return None
        if asked in self._adapters():
            return asked
        served = ", ".join(repr(name) for name in (engine.model_name, *list(self._adapters())[:SHOWN]))
        message = f"the model {asked[:SHOWN]!r} does not exist here; this server serves {served}"
        raise WireError(404, message, code="model_not_found", param="model")

    def is_base(self, name: str) -> bool:
        """One of the model's own names."""
        return name == self._engine.model_name or name in self._engine.model_aliases

    def cards(self, created: int) -> list[dict[str, Any]]:
        """The model's first; `created` is in Unix time."""
        return [self.card(name, created) for name in (None, *self._adapters())]

    def card(self, adapter: str | None, created: int) -> dict[str, Any]:
        """As OpenAI's and vLLM's: an adapter names its parent and where it is from."""
        engine = self._engine
        card = {
            "id": adapter or engine.model_name,
            "object": "model",
            "created": created,
            "owned_by": "tailrace",
            "max_model_len": engine.limits.context_length,
        }
        return card if adapter is None else card | {"parent": engine.model_name}

    def _adapters(self) -> tuple[str, ...]:
        controls = self._engine.controls
        return () if controls is None else tuple(controls.adapters())
