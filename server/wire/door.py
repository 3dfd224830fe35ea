"""The door: bytes to a validated model, or an error that names the field. Shared by all dialects.

Never lenient: no NaN, no coercion of "12" or true to a number. Source: RFC 8259 for what JSON is.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from engine.errors import InvalidRequestError

Model = TypeVar("Model", bound=BaseModel)


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
    """The most telling of pydantic's errors: of a union's members, the one that got deepest into the input."""
    errors = error.errors(include_url=False, include_context=True, include_input=False)
    paths = [_path(item["loc"], value) for item in errors]
    best = max(range(len(errors)), key=lambda position: (len(paths[position]), -position))
    param = _field_name(paths[best])
    messages = {item["msg"]: None for item, path in zip(errors, paths, strict=True) if path == paths[best]}
    text = " or ".join(message.removeprefix("Value error, ") for message in messages)
    return InvalidRequestError(f"{param}: {text}" if param else text, param=param or None)


def _path(location: tuple[int | str, ...], value: Any) -> tuple[int | str, ...]:
    """The part of pydantic's location that is in the client's input: names of union members are not."""
    path: list[int | str] = []
    for step in location:
        inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if inside or (isinstance(value, dict) and step in value):
            value = value[step]
        elif isinstance(value, dict) and step == location[-1]:
            value = None
        else:
            continue
        path.append(step)
    return tuple(path)


def _field_name(path: tuple[int | str, ...]) -> str:
    name = ""
    for step in path:
        name += f"[{step}]" if isinstance(step, int) else f".{step}" if name else step
    return name
