"""The request fields that mean something only where an API is hosted: known, and without effect or refused by name.

Never passed on: no engine hears of them. What asks for nothing that an answer would show is taken; what a client would
be misled about is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_LABELS = 16
"""Most entries of `metadata`, as hosted."""
Label = Annotated[str, Field(max_length=64)]
LabelValue = Annotated[str, Field(max_length=512)]
ShortText = Annotated[str, Field(max_length=1_024)]

WITHOUT_EFFECT = {
    "metadata": "labels of stored answers; none are stored",
    "prompt_cache_key": "the prefix cache finds equal prompts by itself",
    "prompt_cache_options": "the prefix cache keeps what it has room for",
    "prompt_cache_retention": "the prefix cache keeps what it has room for",
    "safety_identifier": "nothing is reported to anybody",
    "service_tier": "there is one tier: `auto` and `default` ask for it, others are refused",
    "store": "nothing is stored; the operator's audit log does not depend on it",
    "user": "nothing is reported to anybody",
    "verbosity": "`medium` asks for nothing, others are refused",
}
"""Fields that are taken and change nothing, with the reason."""


class HostedFields(BaseModel):
    """Part of both requests."""

    model_config = ConfigDict(frozen=True, extra="allow")

    metadata: dict[Label, LabelValue] | None = Field(None, max_length=MAX_LABELS)
    prompt_cache_key: ShortText | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: ShortText | None = None
    safety_identifier: ShortText | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None
    user: str | None = None
    verbosity: Literal["medium"] | None = None

    @field_validator("service_tier", mode="before")
    @classmethod
    def _one_tier(cls, tier: object) -> object:
        if isinstance(tier, str) and tier not in ("auto", "default"):
            raise ValueError("this server has one service tier; leave it out, or send 'auto' or 'default'")
        return tier

    @field_validator("verbosity", mode="before")
    @classmethod
    def _not_steered(cls, verbosity: object) -> object:
        if isinstance(verbosity, str) and verbosity != "medium":
            raise ValueError("this server does not steer how much a model says; leave it out, or send 'medium'")
        return verbosity
