"""The server's settings and where they come from: file, then environment, then flags; later ones win.

The only place in the server that reads the environment. An unknown key is refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from engine.config import EngineConfig
from engine.errors import ConfigError

ENVIRONMENT_PREFIX = "TAILRACE__"
"""`TAILRACE__SERVER__PORT=8000` is `server.port`."""
_SHA256 = re.compile(r"sha256:[0-9a-fA-F]{64}")


class ServerConfig(BaseModel):
    """What `server.*` may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="address to listen on; also --host")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on, 0 for any free one; also --port")
    api_keys: tuple[str, ...] = Field((), description="keys, or 'sha256:<hex>' of them; none: open")
    keepalive_seconds: float = Field(15.0, gt=0, description="silence after which a stream says it is alive")
    slow_client_timeout_seconds: float = Field(60.0, gt=0, description="a client that takes nothing for so long is cut")
    drain_timeout_seconds: float = Field(30.0, ge=0, description="how long running streams may go on after SIGTERM")
    resume_grace_seconds: float = Field(
        30.0, ge=0, description="how long a resumable stream goes on without its client; no stream is resumable yet"
    )
    max_queued_requests: int = Field(1_024, ge=1, description="waiting sequences over which requests get a 429")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1, description="largest request body")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="least severe level logged")

    @field_validator("api_keys")
    @classmethod
    def _hashes_are_hashes(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_SHA256.fullmatch(key) for key in keys if key.startswith("sha256:")):
            raise ValueError("after 'sha256:' come the 64 hexadecimal digits of the key's hash")
        return keys


class Settings(BaseModel):
    """All settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: EngineConfig = Field(default_factory=EngineConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)


def load_settings(file: Path | None, flags: Sequence[tuple[str, Any]]) -> Settings:
    """Settings from a YAML or TOML file, the environment and flags (`(dotted key, value)`, text is parsed as YAML).

    Raises `ConfigError` that names the key and, for an unknown one, the nearest.
    """
    tree: dict[str, Any] = {}
    for key, value in (*_from_file(file), *_from_environment(os.environ), *flags):
        _put(tree, key, value)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _known_keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting's dotted key, and its type's annotation."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _known_keys(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner


KEYS = dict(_known_keys())
"""Every setting's dotted key, and its type's annotation."""
SECTIONS = frozenset(key.rpartition(".")[0] for key in KEYS)


def _from_file(file: Path | None) -> list[tuple[str, Any]]:
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
        tree = tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"the config file {file} can't be read: {error}") from error
    if not isinstance(tree, dict | None):
        raise ConfigError(f"the config file {file} must hold a mapping of settings")
    return list(_leaves(tree or {}, ""))


def _leaves(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (value or key in SECTIONS):
            yield from _leaves(value, f"{key}.")
        elif value is not None or key not in SECTIONS:  # a section whose every line is a comment says nothing
            yield key, value


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, Any]]:
    return [
        (name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".").lower(), value)
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    if key not in KEYS:
        raise ConfigError(f"unknown setting {key!r}{_nearest(key)}")
    *path, last = key.split(".")
    for name in path:
        tree = tree.setdefault(name, {})
    tree[last] = _parsed(key, value)


def _parsed(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if key == "server.api_keys":  # a key may look like a number; several are separated by commas
        return tuple(part.strip() for part in value.strip("[] ").split(",") if part.strip())
    if KEYS[key] in (str, str | None):  # a model's folder may be called 2024, null or "a #1"
        return value
    try:
        return yaml.safe_load(value) if value.strip() else value
    except yaml.YAMLError:
        return value


def _nearest(key: str) -> str:
    keys = list(KEYS)
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.6) or [
        known for known in keys if known.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]
    ]
    return f"; did you mean {near[0]!r}?" if near else f"; known are: {', '.join(keys)}"


def _explain(error: ValidationError) -> str:
    faults = ((".".join(map(str, item["loc"])), item["msg"]) for item in error.errors(include_url=False))
    return "; ".join(f"{key}: {message.removeprefix('Value error, ')}" for key, message in faults)
