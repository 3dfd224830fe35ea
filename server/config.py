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
from typing import Any, Literal, Self, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engine.config import EngineConfig
from engine.errors import ConfigError

ENVIRONMENT_PREFIX = "TAILRACE__"
"""`TAILRACE__SERVER__PORT=8000` is `server.port`."""
SHA256_PREFIX = "sha256:"
"""What a key begins with that is given by its hash."""
LISTS = frozenset({"server.api_keys", "server.admin_keys", "server.cors_origins"})
"""Settings that a flag or the environment gives with commas; a key may look like a number."""
_SHA256 = re.compile(r"sha256:[0-9a-fA-F]{64}")
_ORIGIN = re.compile(r"\*|https?://[^/\s]+")
_MAPPINGS = re.compile(r"\s*\[\s*\{")


class ApiKeyConfig(BaseModel):
    """One entry of `server.api_keys`: a mapping, or the key alone. Its own bounds win over those for all keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("", pattern=r"^[a-zA-Z0-9_.-]{0,64}$", description="in logs and metrics; key-1, key-2, ...")
    key: str = Field(min_length=1, repr=False, description="the key, or 'sha256:<hex>' of it (tailrace hash-key)")
    max_concurrent: int | None = Field(None, ge=1, description="requests being answered at once")
    requests_per_minute: int | None = Field(
        None, ge=1, description="requests let in; a minute's worth may come at once"
    )
    tokens_per_minute: int | None = Field(None, ge=1, description="prompt tokens and generated ones together")
    admin: bool = Field(False, description="may use the routes for operators")

    @model_validator(mode="before")
    @classmethod
    def _key_alone(cls, entry: object) -> object:
        return {"key": entry} if isinstance(entry, str) else entry

    @field_validator("key")
    @classmethod
    def _can_be_shown(cls, key: str) -> str:
        if key.startswith(SHA256_PREFIX) and not _SHA256.fullmatch(key):
            raise ValueError("after 'sha256:' come the 64 hexadecimal digits of the key's hash")
        if key != key.strip():
            raise ValueError("blanks around a key are no part of a header: no client could send it")
        return key


class ServerConfig(BaseModel):
    """What `server.*` may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="address to listen on; also --host")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on, 0 for any free one; also --port")
    api_keys: tuple[ApiKeyConfig, ...] = Field((), description="keys, 'sha256:<hex>' of them, or mappings; none: open")
    admin_keys: tuple[ApiKeyConfig, ...] = Field(
        (), description="keys that may load adapters and put the engine to sleep, given as api_keys are; none: nobody"
    )
    allow_open: bool = Field(False, description="serve others than this machine although there is no key")
    key_max_concurrent: int | None = Field(None, ge=1, description="each key's requests at once; null: any")
    key_requests_per_minute: int | None = Field(None, ge=1, description="each key's requests a minute; null: any")
    key_tokens_per_minute: int | None = Field(None, ge=1, description="each key's tokens a minute; null: any")
    tls_certificate: str | None = Field(None, description="PEM file with the certificate and its chain: serves https")
    tls_key: str | None = Field(None, description="PEM file with the certificate's private key, not encrypted")
    cors_origins: tuple[str, ...] = Field((), description="pages that browsers let call this server; '*': all")
    keepalive_seconds: float = Field(15.0, gt=0, description="silence after which a stream says it is alive")
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = Field(
        "reasoning_content", description="what a chat answer calls the model's reasoning"
    )
    slow_client_timeout_seconds: float = Field(
        60.0, gt=0, le=86_400, description="a client that takes nothing for so long is cut"
    )
    drain_timeout_seconds: float = Field(30.0, ge=0, description="how long running streams may go on after SIGTERM")
    resume_grace_seconds: float = Field(
        30.0, ge=0, description="how long a resumable stream goes on without its client; no stream is resumable yet"
    )
    queue_timeout_seconds: float | None = Field(None, gt=0, description="most time until the engine begins; null: any")
    first_token_timeout_seconds: float | None = Field(None, gt=0, description="most time until the first token")
    token_timeout_seconds: float | None = Field(None, gt=0, description="most time between two steps with tokens")
    total_timeout_seconds: float | None = Field(None, gt=0, description="most time for a whole answer")
    max_buffered_bytes: int = Field(
        4 * 1024 * 1024, ge=4_096, description="text and logprobs kept for one slow reader, over which it is cut"
    )
    usage_retention_seconds: float = Field(3_600.0, ge=0, description="how long /v1/usage/{id} knows an ended stream")
    usage_max_records: int = Field(100_000, ge=0, description="most ended streams that /v1/usage/{id} knows")
    max_queued_requests: int = Field(1_024, ge=1, description="waiting sequences over which requests get a 429")
    max_queued_prompt_tokens: int | None = Field(None, ge=1, description="waiting prompts' tokens over which: 429")
    max_num_streams: int | None = Field(None, ge=1, description="requests being answered at once over which: 429")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1, description="largest request body")
    max_body_bytes_in_flight: int | None = Field(
        512 * 1024 * 1024, ge=1, description="bodies being read, all together, over which requests get a 429"
    )
    audit_log: str | None = Field(None, description="file for every request's prompt and text; null: none is kept")
    audit_log_max_bytes: int = Field(100 * 1024 * 1024, ge=1, description="size at which the audit log is rotated")
    audit_log_files: int = Field(10, ge=1, description="rotated audit logs kept beside the one being written")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="least severe level logged")

    @field_validator("api_keys")
    @classmethod
    def _each_key_has_its_name(cls, entries: tuple[ApiKeyConfig, ...]) -> tuple[ApiKeyConfig, ...]:
        return _named(entries, "key")

    @field_validator("admin_keys")
    @classmethod
    def _each_admin_key_has_its_name(cls, entries: tuple[ApiKeyConfig, ...]) -> tuple[ApiKeyConfig, ...]:
        return tuple(entry.model_copy(update={"admin": True}) for entry in _named(entries, "admin"))

    @model_validator(mode="after")
    def _names_are_told_apart(self) -> Self:
        if doubled := {entry.name for entry in self.api_keys} & {entry.name for entry in self.admin_keys}:
            raise ValueError(f"api_keys and admin_keys: both have one called {min(doubled)!r}")
        return self

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((origin for origin in origins if not _ORIGIN.fullmatch(origin)), None):
            raise ValueError(f"{wrong!r} is no origin: 'https://host' or 'https://host:port' without a path, or '*'")
        return origins

    @model_validator(mode="after")
    def _certificate_and_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: TLS needs both")
        return self


def _named(entries: tuple[ApiKeyConfig, ...], kind: str) -> tuple[ApiKeyConfig, ...]:
    named = tuple(
        entry if entry.name else entry.model_copy(update={"name": f"{kind}-{number}"})
        for number, entry in enumerate(entries, start=1)
    )
    names = [entry.name for entry in named]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two keys are called {doubled!r}")
    return named


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
MAPPINGS = frozenset(key for key, kind in KEYS.items() if get_origin(kind) is dict)
"""Settings whose own keys are another's to check: whatever stands below them is taken."""


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
        if isinstance(value, Mapping) and key not in MAPPINGS and (value or key in SECTIONS):
            yield from _leaves(value, f"{key}.")
        elif (
            value is not None or key not in SECTIONS | MAPPINGS
        ):  # a section whose every line is a comment says nothing
            yield key, value


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, Any]]:
    return [
        (name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".").lower(), value)
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    around = next((mapping for mapping in MAPPINGS if key.startswith(f"{mapping}.")), None)
    if key not in KEYS and around is None:
        raise ConfigError(f"unknown setting {key!r}{_nearest(key)}")
    *path, last = key.split(".")
    for name in path:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{key}: {name} is set to {tree!r} already, which is no mapping")
    tree[last] = _parsed(key, value)


def _parsed(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if key in LISTS and not _MAPPINGS.match(value):
        return tuple(part.strip() for part in value.strip("[] ").split(",") if part.strip())
    if KEYS.get(key) in (str, str | None):  # a model's folder may be called 2024, null or "a #1"
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
