"""The tokenizer's owner: what it reads from a folder, what it refuses, and that nothing is cut, padded or lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from engine.errors import InvalidRequestError, ModelLoadError
from engine.tokenizer import Tokenizer
from tests.engine.prompt.small_tokenizers import SPECIAL, byte_level, owned

BYTES = owned(byte_level())


def folder_with(path: Path, **files: Any) -> Path:
    """A folder with `tokenizer.json` and other files; names without suffix are JSON, `__` in them is a slash."""
    byte_level().save(str(path / "tokenizer.json"))
    for name, value in files.items():
        template = isinstance(value, str)
        target = path / f"{name.replace('__', '/')}.{'jinja' if template else 'json'}"
        target.parent.mkdir(exist_ok=True)
        target.write_text(value if template else json.dumps(value), encoding="utf-8")
    return path


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    """A folder with nothing else works, and says nothing that it does not know."""
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path))
    assert tokenizer.decode(tokenizer.encode("hi <s>")) == "hi <s>"
    assert (tokenizer.chat_template, tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None, None)
    assert not tokenizer.named_tokens


def test_truncation_and_padding_are_off(tmp_path: Path) -> None:
    """Settings left in the file by training neither cut nor pad a prompt."""
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.from_folder(tmp_path).encode("a" * 50)) == 50


@pytest.mark.parametrize("file", ["tokenizer_config", "special_tokens_map"])
@pytest.mark.parametrize("entry", ["<s>", {"content": "<s>", "lstrip": False}])
def test_named_tokens(tmp_path: Path, file: str, entry: Any) -> None:
    """Names and ids come from either file and either form; flags and nulls are no tokens."""
    settings = {"bos_token": entry, "pad_token": None, "add_bos_token": True, "eos_token": "<|no such token|>"}
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, **{file: settings}))
    assert dict(tokenizer.named_tokens) == {"bos_token": "<s>", "eos_token": "<|no such token|>"}
    assert tokenizer.bos_token_id == tokenizer.special_tokens["<s>"]
    assert tokenizer.eos_token_id is None


TWO = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": "broken"}, "x"]


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({"tokenizer_config": {"chat_template": "a"}}, {"default": "a"}),
        ({"tokenizer_config": {"chat_template": TWO}}, {"default": "d", "tool_use": "t"}),
        ({"tokenizer_config": {"chat_template": None}}, {}),
        ({"chat_template": {"chat_template": "p"}}, {"default": "p"}),
        ({"chat_template": {"chat_template": "p"}, "tokenizer_config": {"chat_template": "a"}}, {"default": "a"}),
        ({"tokenizer_config": {"chat_template": TWO}, "chat_template": "é"}, {"default": "é", "tool_use": "t"}),
        ({"additional_chat_templates__tool_use": "u", "chat_template": "j"}, {"default": "j", "tool_use": "u"}),
    ],
)
def test_chat_templates(tmp_path: Path, files: dict[str, Any], templates: dict[str, str]) -> None:
    """Each file that may hold a template is read, and the right one wins."""
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, **files))
    assert dict(tokenizer.chat_templates) == templates
    assert tokenizer.chat_template == templates.get("default")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "not JSON"),
        ("tokenizer_config.json", "{"),
        ("special_tokens_map.json", "[]"),
        ("chat_template.json", "1"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, file: str, text: str) -> None:
    """Whatever is wrong with a file is the operator's to mend, and the message says in which."""
    (folder_with(tmp_path) / file).write_text(text)
    with pytest.raises(ModelLoadError, match=file):
        Tokenizer.from_folder(tmp_path)


def test_broken_encoding_is_named(tmp_path: Path) -> None:
    """A template that is no UTF-8 is refused with its name."""
    (folder_with(tmp_path) / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_tokenizer_is_refused(tmp_path: Path, *, exists: bool) -> None:
    """No tokenizer in any form is a load error that names the folder."""
    folder = tmp_path if exists else tmp_path / "absent"
    with pytest.raises(ModelLoadError, match="no tokenizer"):
        Tokenizer.from_folder(folder)


def test_older_folders_are_converted(tmp_path: Path) -> None:
    """`vocab.json` and `merges.txt`, without `tokenizer.json`, make the same tokenizer."""
    model = json.loads(byte_level().to_str())["model"]
    vocab = model["vocab"] | {"<|endoftext|>": len(model["vocab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("hé") == BYTES.encode("hé")
    assert tokenizer.eos_token_id == 256


def test_size_and_added_tokens() -> None:
    """Ids are below the size, holes or not, and the added tokens are told with their kind."""
    assert BYTES.size == 256 + len(BYTES.added_tokens)
    assert [token.content for token in BYTES.added_tokens if token.special] == list(SPECIAL)
    assert BYTES.special_tokens == {token.content: token.id for token in BYTES.added_tokens if token.special}
    assert max(token.id for token in BYTES.added_tokens) < BYTES.size


def test_special_tokens_are_added_only_when_asked(tmp_path: Path) -> None:
    """BOS comes from the tokenizer's own post-processor, and can be left out."""
    backend = byte_level()
    bos = BYTES.special_tokens["<s>"]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("") == [bos]
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.decode([bos, *BYTES.encode("a")], skip_special_tokens=True) == "a"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d"])
def test_lone_surrogates_are_the_requests_error(text: str) -> None:
    """What JSON can carry and UTF-8 can't is refused, not a crash."""
    with pytest.raises(InvalidRequestError, match="surrogate"):
        BYTES.encode(text)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    """Decoding what was encoded gives the text, for a vocabulary that holds all bytes."""
    assert BYTES.decode(BYTES.encode(text)) == text


def test_demo_model(demo_model: Path) -> None:
    """The demo model's folder says its end-of-sequence token and its template."""
    tokenizer = Tokenizer.from_folder(demo_model)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.size) == (1, 2, 49152)
    assert tokenizer.chat_template is not None
    assert "<|im_start|>" in tokenizer.chat_template


def test_no_model_library_is_imported() -> None:
    """A server without a model starts without torch and without transformers."""
    script = "import sys, engine.tokenizer, engine.prompt; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
