"""Settings: file, then environment, then flags; a mistake is named with its key and the nearest known one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from server.config import KEYS, Settings, load_settings

YAML = """
engine:
  kind: simulated
  step_interval_ms: 1.5
  faults: {fail_after_tokens: 3}
server:
  port: 9000
  api_keys: [a, "1"]
"""
TOML = """
[engine]
kind = "simulated"
step_interval_ms = 1.5
faults.fail_after_tokens = 3
[server]
port = 9000
api_keys = ["a", "1"]
"""


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own settings are none of the test's."""
    for key in KEYS:
        monkeypatch.delenv("TAILRACE__" + key.upper().replace(".", "__"), raising=False)


def keys_of(settings: Settings) -> dict[str, str]:
    """The configured keys by their names."""
    return {entry.name: entry.key for entry in settings.server.api_keys}


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML)])
def test_both_formats_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    """YAML and TOML give equal settings, the rest being defaults."""
    settings = load_settings(written(tmp_path, name, text), [])
    assert settings.engine.kind == "simulated"
    assert settings.engine.step_interval_ms == 1.5
    assert settings.engine.faults.fail_after_tokens == 3
    assert settings.server.port == 9000
    assert keys_of(settings) == {"key-1": "a", "key-2": "1"}
    assert settings.server.keepalive_seconds == 15


def test_later_sources_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag overrides the environment, which overrides the file; of two equal flags the last counts."""
    file = written(tmp_path, "a.yaml", YAML)
    monkeypatch.setenv("TAILRACE__SERVER__PORT", "9001")
    monkeypatch.setenv("TAILRACE__ENGINE__FAULTS__FAIL_AFTER_TOKENS", "4")
    assert load_settings(file, []).server.port == 9001
    settings = load_settings(file, [("server.port", "9002"), ("server.port", "9003")])
    assert settings.server.port == 9003
    assert settings.engine.faults.fail_after_tokens == 4
    assert settings.engine.step_interval_ms == 1.5


def test_defaults() -> None:
    """Without any source there are settings that work."""
    assert load_settings(None, []) == Settings()


@pytest.mark.parametrize("text", ["", "# nothing\n", "engine: {}\n", "server:\n  # port: 1\nengine:\n  faults:\n"])
def test_an_empty_section_says_nothing(tmp_path: Path, text: str) -> None:
    """A file or section of nothing but comments is no error."""
    assert load_settings(written(tmp_path, "a.yaml", text), []) == Settings()


@pytest.mark.parametrize("text", ["engine: 3\n", "made_up: {}\n", "made_up:\n", "server: {port: {}}\n"])
def test_a_section_that_is_none(tmp_path: Path, text: str) -> None:
    """A section of another name, or a value in a section's place, is refused."""
    with pytest.raises(ConfigError, match=text.split(":", maxsplit=1)[0]):
        load_settings(written(tmp_path, "a.yaml", text), [])


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("server.prt", "server.port"),
        ("server.keepalive_second", "server.keepalive_seconds"),
        ("engine.behavior", "engine.behaviour"),
        ("max_num_seqs", "engine.max_num_seqs"),
        ("engine.faults.crash_after_step", "engine.faults.crash_after_steps"),
    ],
)
def test_an_unknown_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, nearest: str) -> None:
    """From whichever source, with the nearest known key."""
    words = f"unknown setting '{key}'; did you mean '{nearest}'"
    with pytest.raises(ConfigError, match=words):
        load_settings(None, [(key, "1")])
    with pytest.raises(ConfigError, match=words):
        load_settings(written(tmp_path, "a.toml", f"{key} = 1\n"), [])
    monkeypatch.setenv("TAILRACE__" + key.upper().replace(".", "__"), "1")
    with pytest.raises(ConfigError, match=words):
        load_settings(None, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.port", "x"),
        ("server.port", "70000"),
        ("server.port", "-1"),
        ("server.keepalive_seconds", "0"),
        ("server.max_queued_requests", "0"),
        ("server.drain_timeout_seconds", "-1"),
        ("server.log_level", "loud"),
        ("server.api_keys", "sha256:beef"),
        ("server.api_keys", "fine,sha256:" + "x" * 64),
        ("server.api_keys", "[{name: a}]"),
        ("server.api_keys", "[{key: ''}]"),
        ("server.api_keys", "[{key: 'xxx '}]"),
        ("server.api_keys", "[{key: xxx, nam: a}]"),
        ("server.api_keys", "[{key: xxx, name: a b}]"),
        ("server.api_keys", '[{key: xxx, name: "a\\n"}]'),
        ("server.api_keys", "[{key: xxx, name: é}]"),
        ("server.api_keys", "[{key: xxx, name: " + "a" * 65 + "}]"),
        ("server.api_keys", "[{key: xxx, max_concurrent: 0}]"),
        ("server.api_keys", "[{key: xxx, name: a}, {key: xxxx, name: a}]"),
        ("server.api_keys", "[{key: xxx, name: key-2}, xxxx]"),
        ("server.key_tokens_per_minute", "0"),
        ("server.max_num_streams", "0"),
        ("server.cors_origins", "https://a.example/"),
        ("server.cors_origins", "a.example"),
        ("server.cors_origins", "https://a.example/page,https://b.example"),
        ("server.audit_log_max_bytes", "0"),
        ("engine.kind", "warp"),
        ("engine.tokens_per_step", "0"),
        ("engine.max_num_seqs", "many"),
        ("engine.faults.fail_after_tokens", "-1"),
    ],
)
def test_a_bad_value_is_named(key: str, value: str) -> None:
    """The message begins with the key, and shows no key that is a secret."""
    with pytest.raises(ConfigError) as raised:
        load_settings(None, [(key, value)])
    assert str(raised.value).startswith(key)
    assert "Value error" not in str(raised.value)
    assert "xxx" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "engine: ["), ("a.toml", "x ="), ("a.yaml", "- a\n- b\n"), ("a.yaml", "word"), ("a.toml", "\x00")],
)
def test_a_file_that_is_none(tmp_path: Path, name: str, text: str) -> None:
    """What can't be read is refused by the file's name."""
    with pytest.raises(ConfigError, match=name):
        load_settings(written(tmp_path, name, text), [])
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        load_settings(tmp_path / "missing.yaml", [])


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        ("[a, b]", ("a", "b")),
        ("123", ("123",)),
        ("", ()),
        ("sha256:" + "aB" * 32, ("sha256:" + "aB" * 32,)),
    ],
)
def test_api_keys_from_a_flag(value: str, keys: tuple[str, ...]) -> None:
    """Several are separated by commas, and a key may look like a number."""
    assert tuple(keys_of(load_settings(None, [("server.api_keys", value)])).values()) == keys


NAMED = "[{name: ann, key: 'a,b', max_concurrent: 3, admin: true}, '7', {key: c}]"


def test_api_keys_with_names_and_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries may be mappings, in the file, the environment and a flag alike; a nameless one is called by its place."""
    monkeypatch.setenv("TAILRACE__SERVER__API_KEYS", NAMED)
    for settings in (
        load_settings(None, []),
        load_settings(None, [("server.api_keys", NAMED)]),
        load_settings(written(tmp_path, "a.yaml", f"server:\n  api_keys: {NAMED}\n"), []),
    ):
        assert keys_of(settings) == {"ann": "a,b", "key-2": "7", "key-3": "c"}
        ann, *rest = settings.server.api_keys
        assert (ann.max_concurrent, ann.admin) == (3, True)
        assert not any(entry.admin for entry in rest)


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key"])
def test_tls_needs_both_files(name: str) -> None:
    """One without the other is named."""
    with pytest.raises(ConfigError, match="tls_certificate and tls_key: TLS needs both"):
        load_settings(None, [(f"server.{name}", "a.pem")])


def test_origins_from_a_flag() -> None:
    """Several are separated by commas; each is a scheme and a host, or all of them."""
    flags = [("server.cors_origins", "https://a.example, http://localhost:3000")]
    assert load_settings(None, flags).server.cors_origins == ("https://a.example", "http://localhost:3000")
    assert load_settings(None, [("server.cors_origins", "*")]).server.cors_origins == ("*",)


def test_the_shipped_file_says_the_defaults() -> None:
    """`configs/tailrace.yaml` can be edited line by line: as it is it changes nothing."""
    shipped = Path(__file__).parents[2] / "configs" / "tailrace.yaml"
    assert load_settings(shipped, []) == Settings()


@pytest.mark.parametrize("name", ["2024", "null", "a #1", "true", "1e3", "a: b"])
def test_names_are_taken_as_they_are(name: str) -> None:
    """Text that YAML would read as something else stays text where text is wanted."""
    flags: list[tuple[str, Any]] = [("engine.model", name), ("engine.served_model_name", name)]
    settings = load_settings(None, flags)
    assert (settings.engine.model, settings.engine.served_model_name) == (name, name)


def test_null_unsets() -> None:
    """Where None is a value, `null` says it."""
    assert load_settings(None, [("engine.num_kv_blocks", "null")]).engine.num_kv_blocks is None


def test_settings_are_frozen() -> None:
    """Nobody changes a setting later."""
    with pytest.raises(ValueError, match="frozen"):
        load_settings(None, []).server.port = 1  # type: ignore[misc]


def test_arguments_of_vllm_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names below `engine.vllm` are vLLM's to know; file, environment and flags add to one another, also in depth."""
    text = "engine:\n  vllm:\n    tensor_parallel_size: 2\n    speculative_config: {method: ngram}\n"
    file = written(tmp_path, "a.yaml", text)
    monkeypatch.setenv("TAILRACE__ENGINE__VLLM__ENFORCE_EAGER", "true")
    flags = [("engine.vllm.tensor_parallel_size", "4"), ("engine.vllm.speculative_config.num_speculative_tokens", "3")]
    assert load_settings(file, flags).engine.vllm == {
        "tensor_parallel_size": 4,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "enforce_eager": True,
    }
    assert load_settings(written(tmp_path, "b.yaml", "engine:\n  vllm:\n"), []).engine.vllm == {"enforce_eager": True}


@pytest.mark.parametrize("key", ["engine.vllm.dtype.name", "engine.vllm"])
def test_a_value_is_no_mapping(key: str) -> None:
    """What stands in the way of a deeper key is named."""
    with pytest.raises(ConfigError, match=r"engine\.vllm"):
        load_settings(None, [("engine.vllm.dtype", "float32"), (key, "1")])
