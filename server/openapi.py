"""The server's own OpenAPI document: which bodies each route takes, and every status that it can answer with.

Never a check: requests are validated by the door, and errors made by the wire. tests/server/schema_calls.py compares.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_DEFINITIONS = "x-definitions"
"""Where an operation keeps the schemas that its body refers to, until the document has them all."""
_OURS = "#/components/schemas/{model}"
_TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
ERROR_SCHEMA: dict[str, Any] = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
            },
        }
    },
}
EVENT_SCHEMA: dict[str, Any] = {
    "title": "Event",
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A chunk, an error, both as JSON, or [DONE]"}},
}
"""Of each event: before OpenAPI 3.2 a stream's schema is that of what it is made of."""
OF_A_KEY = (401, 500)
"""Of every route that needs a key: the key is none, or the server fails."""
OF_A_BODY = (*OF_A_KEY, 400, 404, 408, 413, 429, 503)
"""Of every route that reads a body: it is bad, slow or large, names no model here, or comes at a bad time."""
OF_AN_ANSWER = (*OF_A_BODY, 504)
"""Of generation: also a deadline, the server's or the client's own, passed before the first byte."""

Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    """A route's documented refusals, all in OpenAI's shape."""
    content = {"application/json": {"schema": {"$ref": _OURS.format(model="Error")}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def texts(*media_types: str, description: str) -> Responses:
    """Documents that a 200 is text of one of these types."""
    content = {media_type: {"schema": {"type": "string"}} for media_type in media_types}
    return {200: {"description": description, "content": content}}


def events(description: str) -> Responses:
    """Documents that a 200 may also be a stream of events."""
    return {200: {"description": description, "content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}}


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """A route's documented body: it is validated by the door, which answers in the dialect's shape."""
    schema = model.model_json_schema(ref_template=_OURS)
    definitions = schema.pop("$defs", {})
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body, _DEFINITIONS: definitions}


def complete(app: FastAPI) -> None:
    """Makes the application's document one whose references resolve, without the answers that FastAPI supposes."""
    made_by_fastapi = app.openapi
    completed: dict[str, Any] | None = None

    def document() -> dict[str, Any]:
        nonlocal completed
        if completed is None:
            completed = _completed(made_by_fastapi())
        return completed

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = {"Error": ERROR_SCHEMA}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own refusal, which validates nothing here
            schemas |= operation.pop(_DEFINITIONS, {})
    return {**document, "components": {"schemas": schemas}}
