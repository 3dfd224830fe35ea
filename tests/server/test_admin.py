"""The routes for operators: closed without a key of theirs, and refused by name where the engine can't."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.loading import load_engine
from server.auth import ADMIN, ApiKeys, hashed
from server.config import ApiKeyConfig, ServerConfig, load_settings
from server.wire.errors import WireError
from tests.running_server import RunningServer, poll_until, simulated
from tests.server.replies import COMPLETIONS

OPERATOR = {"x-api-key": "operator"}
CLIENT = {"authorization": "Bearer client"}
BODIES: dict[str, Any] = {
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "/a"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/sleep": {},
    "/wake_up": {},
}


@pytest.fixture(scope="module")
def guarded(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With a client's key and an operator's."""
    settings = ("server.api_keys=client", f"server.admin_keys={hashed('operator')}")
    with RunningServer(*simulated(demo_model, *settings), log_folder=tmp_path_factory.mktemp("admin")) as server:
        yield server


def asked(server: RunningServer, path: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """Status, code and message."""
    response = server.post(path, BODIES[path], headers) if path in BODIES else server.get(path, headers)
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


@pytest.mark.parametrize("path", sorted(ADMIN))
def test_closed_where_there_is_no_operators_key(echo_server: RunningServer, path: str) -> None:
    """A 403 that says what to set, on a server that is open otherwise."""
    status, code, message = asked(echo_server, path, OPERATOR)
    assert (status, code) == (403, "admin_key_required")
    assert "server.admin_keys" in message


@pytest.mark.parametrize("path", sorted(ADMIN))
def test_for_operators_only(guarded: RunningServer, path: str) -> None:
    """Without a key a 401, with a client's a 403; with an operator's this engine says that it can't."""
    assert asked(guarded, path, {})[:2] == (401, "invalid_api_key")
    assert asked(guarded, path, CLIENT)[:2] == (403, "admin_key_required")
    status, code, message = asked(guarded, path, OPERATOR)
    assert (status, code) == (400, "unsupported_engine")
    assert message.startswith("the simulated engine has no adapters")


def test_an_operators_key_is_a_key(guarded: RunningServer) -> None:
    """Where keys are asked for it lets in like any other, under its own name."""
    body = {"prompt": [905, 906], "max_tokens": 2}
    assert guarded.post(COMPLETIONS, body, OPERATOR).status_code == 200
    poll_until(lambda: bool(guarded.log_records(event="request", api_key="admin-1")), 5, guarded.log_file.read_text)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/load_lora_adapter", {"lora_name": "a"}, "lora_path"),
        ("/v1/load_lora_adapter", {"lora_name": "", "lora_path": "/a"}, "lora_name"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a", "load_inplace": 1}, "load_inplace"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a", "path": "/b"}, "path"),
        ("/v1/unload_lora_adapter", {}, "lora_name"),
        ("/sleep?level=3", {}, "level"),
        ("/sleep?level=-1", {}, "level"),
        ("/sleep?level=", {}, "level"),
    ],
)
def test_what_is_wrong_is_named(guarded: RunningServer, path: str, body: dict[str, Any], param: str) -> None:
    """A 400 with the field, before the engine is asked."""
    response = guarded.post(path, body, OPERATOR)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_only_keys_of_operators_are_operators() -> None:
    """Those of `admin_keys`, and of `api_keys` those that say so; each has a name that no other has."""
    marked = ApiKeyConfig(key="marked", admin=True)
    keys = ApiKeys(ServerConfig(api_keys=(marked, ApiKeyConfig(key="client")), admin_keys=(ApiKeyConfig(key="op"),)))
    named = {shown: keys.check("/sleep", {"x-api-key": shown}) for shown in ("marked", "op")}
    assert {shown: key.name for shown, key in named.items() if key is not None} == {"marked": "key-1", "op": "admin-1"}
    with pytest.raises(WireError) as refused:
        keys.check("/sleep", {"x-api-key": "client"})
    assert refused.value.status == 403
    with pytest.raises(ConfigError, match="api_keys and admin_keys: both have one called 'a'"):
        load_settings(None, [("server.api_keys", "[{key: x, name: a}]"), ("server.admin_keys", "[{key: y, name: a}]")])


def test_an_open_server_with_an_operators_key_stays_open() -> None:
    """For all but the operators' paths."""
    keys = ApiKeys(ServerConfig(admin_keys=(ApiKeyConfig(key="op"),)))
    assert keys.check(COMPLETIONS, {}) is None
    with pytest.raises(WireError) as refused:
        keys.check("/sleep", {})
    assert refused.value.status == 401


def test_an_engine_without_adapters_starts_with_none(demo_model: Path) -> None:
    """The setting is refused by name."""
    with pytest.raises(ConfigError, match=r"engine.lora_modules: the simulated engine has no adapters"):
        load_engine(EngineConfig(kind="simulated", model=str(demo_model), lora_modules={"a": "/a"}))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"priority": 0}, 200),
        ({"priority": 1}, 400),
        ({"priority": -1}, 400),
        ({"priority": 1.5}, 400),
        ({"cache_salt": "s"}, 200),
        ({"cache_salt": ""}, 400),
        ({"cache_salt": 7}, 400),
    ],
    ids=str,
)
def test_priorities_and_salts_of_the_simulated_engine(
    echo_server: RunningServer, fields: dict[str, Any], status: int
) -> None:
    """It serves first what came first, and shares no blocks, so that any salt is kept to."""
    response = echo_server.post(COMPLETIONS, {"prompt": [905], "max_tokens": 1, **fields})
    assert response.status_code == status, response.text
    if status == 400:
        assert response.json()["error"]["param"] == next(iter(fields))
