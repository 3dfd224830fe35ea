"""The routes for operators: LoRA adapters in and out, sleep and wake, by vLLM's own paths and fields.

Never for anyone else: `server.auth` lets none but an operator's key come here.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from engine.backends.base import EngineControls
from engine.slumber import Slumber
from server.handler import Handler
from server.openapi import OF_A_BODY, body_of, errors
from server.wire.door import parse_body
from server.wire.errors import WireError

LEVEL = {"name": "level", "in": "query", "schema": {"enum": ["1", "2"], "default": "1"}}


class LoadAdapter(BaseModel):
    """`lora_path` is a folder on the server's machine, with PEFT's `adapter_config.json` and the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str = Field(min_length=1, max_length=4_096)
    load_inplace: bool = False
    is_3d_lora_weight: Literal[False] = False


class UnloadAdapter(BaseModel):
    """`lora_int_id` is vLLM's own number of an adapter, which it does not look at either."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lora_name: str = Field(min_length=1, max_length=256)
    lora_int_id: int | None = None


def admin_routes(handler: Handler) -> APIRouter:
    """Engines without adapters and sleep refuse all of them by name."""
    router = APIRouter(responses=errors(*OF_A_BODY, 403))

    @router.post("/v1/load_lora_adapter", openapi_extra=body_of(LoadAdapter))
    async def load_lora_adapter(request: Request) -> dict[str, Any]:
        asked = parse_body(LoadAdapter, await handler.body(request))
        controls = _controls(handler)
        _refuse_taken(handler, controls, asked)
        await controls.load_adapter(asked.lora_name, asked.lora_path)
        return {"status": "loaded", "id": asked.lora_name, "object": "model"}

    @router.post("/v1/unload_lora_adapter", openapi_extra=body_of(UnloadAdapter))
    async def unload_lora_adapter(request: Request) -> dict[str, Any]:
        asked = parse_body(UnloadAdapter, await handler.body(request))
        controls = _controls(handler)
        if asked.lora_name not in controls.adapters():
            message = f"no adapter {asked.lora_name!r} is loaded"
            raise WireError(404, message, code="model_not_found", param="lora_name")
        await controls.unload_adapter(asked.lora_name)
        return {"status": "unloaded", "id": asked.lora_name, "object": "model"}

    @router.post("/sleep", openapi_extra={"parameters": [LEVEL]})
    async def sleep(request: Request) -> dict[str, Any]:
        level = request.query_params.get("level", "1")
        if level not in ("1", "2"):
            raise WireError(400, f"level is {level[:16]!r}; it is 1 or 2", code="invalid_value", param="level")
        await _slumber(handler).sleep(int(level))
        return {"is_sleeping": True, "level": int(level)}

    @router.post("/wake_up")
    async def wake_up() -> dict[str, Any]:
        await _slumber(handler).wake_up()
        return {"is_sleeping": False}

    @router.get("/is_sleeping")
    async def is_sleeping() -> dict[str, Any]:
        return {"is_sleeping": _slumber(handler).level > 0}

    return router


def _controls(handler: Handler) -> EngineControls:
    controls = handler.engine.controls
    if controls is None:
        name = handler.engine.core.backend.name
        message = f"the {name} engine has no adapters and does not sleep; the vllm engine has and does"
        raise WireError(400, message, code="unsupported_engine")
    return controls


def _slumber(handler: Handler) -> Slumber:
    _controls(handler)
    assert handler.slumber is not None  # noqa: S101 - where there are controls there is this
    return handler.slumber


def _refuse_taken(handler: Handler, controls: EngineControls, asked: LoadAdapter) -> None:
    if handler.models.is_base(asked.lora_name):
        message = f"{asked.lora_name!r} is the model's own name"
        raise WireError(400, message, code="name_taken", param="lora_name")
    if asked.lora_name in controls.adapters() and not asked.load_inplace:
        message = f"an adapter {asked.lora_name!r} is loaded already; load_inplace puts this one in its place"
        raise WireError(400, message, code="name_taken", param="lora_name")
