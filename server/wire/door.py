"""The door: bytes to a validated model, or an error that names the field. Shared by all dialects.

Never lenient: no NaN, no coercion of "12" or true to a number. Source: RFC 8259 for what JSON is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from engine.errors import InvalidRequestError

Model = TypeVar("Model", bound=BaseModel)
MAX_TOKEN_IDS = 1_000_000
"""Most token ids in one list: a million hold the event loop for about a tenth of a second."""
SHOWN = 64
"""Characters of a client's word, and words of a client's list, that an error or a log line repeats."""


def items(most: int, *, least: int = 0) -> Any:
    """A list's field: so many items at most, and read no further than its first fault, for each would be an error."""
    return Field(min_length=least, max_length=most, fail_fast=True)


_OBJECT_TYPES = ("dict_type", "model_type", "model_attributes_type")
_OBJECT = "Input should be an object"
"""Instead of pydantic's words, which name our classes."""


def parse_body(model: type[Model], body: bytes) -> Model:
    """Validates a request body. Raises `InvalidRequestError` with the client's own field path in `param`."""
    value = _json_object(body)
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise _invalid(error, value) from None
    except RecursionError:
        raise InvalidRequestError("the request body is nested too deeply") from None


def _json_object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise InvalidRequestError("the request has no body; send a JSON object")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the request body must be a JSON object")
    return value


def _invalid(error: ValidationError, value: dict[str, Any]) -> InvalidRequestError:
    """The first field that is wrong. Of a union's members, the one that the input came nearest to is spoken of."""
    faults = [_Fault.of(item, value) for item in error.errors(include_url=False, include_input=False)]
    first = faults[0].path
    candidates: dict[tuple[int | str, ...], _Fault] = {}
    for fault in faults:
        if fault.path[: len(first)] == first:
            candidates.setdefault(fault.member, fault)
    best = max(candidates.values(), key=lambda fault: (not fault.wrong_type, fault.path))
    alike = [fault for fault in candidates.values() if (fault.path, fault.wrong_type) == (best.path, best.wrong_type)]
    text = " or ".join(dict.fromkeys(fault.message for fault in alike))
    param = _field_name(best.path)
    return InvalidRequestError(f"{param}: {text}" if param else text, param=param or None)


@dataclass(frozen=True, slots=True)
class _Fault:
    """One of pydantic's errors, located in the client's own input."""

    path: tuple[int | str, ...]
    """Steps into the input."""
    member: tuple[int | str, ...]
    """The other steps of pydantic's location: names of union members."""
    message: str
    wrong_type: bool

    @classmethod
    def of(cls, item: ErrorDetails, value: Any) -> _Fault:
        path: list[int | str] = []
        member: list[int | str] = []
        missing = item["type"] == "missing"
        for step in item["loc"]:
            inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
            if inside or (isinstance(value, dict) and (step in value or (missing and step == item["loc"][-1]))):
                value = value[step] if inside or step in value else None
                path.append(step)
            else:
                member.append(step)
        if item["type"].startswith("union_tag") and isinstance(value, dict):
            path.append(item["ctx"]["discriminator"].strip("'"))
        message = _OBJECT if item["type"] in _OBJECT_TYPES else item["msg"].removeprefix("Value error, ")
        return cls(tuple(path), tuple(member), message, item["type"].endswith("_type"))


def _field_name(path: tuple[int | str, ...]) -> str:
    name = ""
    for step in path:
        name += f"[{step}]" if isinstance(step, int) else f".{step}" if name else step
    return name
