"""What a client says about calling tools: which, whether, and how strictly. Never how a model writes a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Of a request that offers tools to be called."""

    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The JSON schema of each callable tool's arguments, by its name."""
    forced: bool = False
    """The answer is calls of these tools, one at least."""
    strict: frozenset[str] = frozenset()
    """Tools whose arguments keep to their schema also where no call is forced."""
    parallel: bool = True
    """More than one call in an answer."""
