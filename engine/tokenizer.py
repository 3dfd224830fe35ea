"""Owner of a model's tokenizer: text to ids, ids to text, its control tokens and its chat templates.

Never a model, never torch, never any guess: what a tokenizer folder does not say is None. A folder of `tokenizer.json`
alone is enough; one without it is converted by transformers, which is imported only then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers

from engine.errors import InvalidRequestError, ModelLoadError


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in text before the model's own vocabulary is asked."""

    content: str
    id: int
    special: bool
    normalized: bool
    """It is also found where only the normalized text spells it."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What the files beside `tokenizer.json` say."""

    named_tokens: Mapping[str, str]
    """By the names that templates know, as `bos_token`: spellings."""
    chat_templates: Mapping[str, str]
    """By name: `default`, and `tool_use` where a model has one for conversations with tools."""


class Tokenizer:
    """A `tokenizers.Tokenizer` that never cuts or pads, and what its folder says about it.

    Made by `from_folder`, or from a backend and settings. Every public attribute is read-only.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        backend.no_truncation()  # settings in the file would cut prompts without a word
        backend.no_padding()
        self.backend = backend
        self.named_tokens = settings.named_tokens
        self.chat_templates = settings.chat_templates
        decoder = backend.get_added_tokens_decoder()
        self.added_tokens: Sequence[AddedToken] = tuple(
            AddedToken(token.content, token_id, token.special, token.normalized)
            for token_id, token in sorted(decoder.items())
        )
        self.special_tokens: Mapping[str, int] = MappingProxyType(
            {token.content: token.id for token in self.added_tokens if token.special}
        )
        self.size = max(backend.get_vocab_size(with_added_tokens=True), max(decoder, default=-1) + 1)
        """Ids are below this, added ones included."""
        self.longest_token = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
        """Characters of the longest token: no text of n tokens is longer than n times this."""

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """Reads the tokenizer files in a Hugging Face folder. Raises `ModelLoadError` with the file's name."""
        return cls(_load_backend(path), _read_settings(path))

    @property
    def chat_template(self) -> str | None:
        """The template for ordinary conversations, or None: the model has none."""
        return self.chat_templates.get("default")

    @property
    def bos_token_id(self) -> int | None:
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._named_id("eos_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; a control token that it spells is that token. `add_special_tokens`: with BOS, if any.

        Raises `InvalidRequestError` for a lone surrogate, which JSON can carry and no encoding of Unicode can.
        """
        refuse_lone_surrogates(text)
        # Not `encode`, which keeps other threads from running until it is done, however long the text is.
        (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids, in one shot."""
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _named_id(self, name: str) -> int | None:
        spelling = self.named_tokens.get(name)
        return None if spelling is None else self.backend.token_to_id(spelling)


def refuse_lone_surrogates(text: str, param: str | None = None) -> None:
    """Raises `InvalidRequestError` naming `param` if the text has half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise InvalidRequestError(
            f"the text has a lone surrogate ({found}), which is no character", param=param
        ) from None


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _convert_backend(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{path} is not a tokenizer: {error}") from error


def _convert_backend(folder: Path) -> tokenizers.Tokenizer:
    """Has transformers convert an older folder (`tokenizer.model`, `vocab.json` and the like)."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        message = f"{folder} has no tokenizer.json, and transformers, which could convert what it has, is not installed"
        raise ModelLoadError(message) from error
    try:
        converted = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a broken folder makes transformers raise, the folder is what to mend
        message = f"{folder} has no tokenizer.json, and transformers finds no tokenizer in it: {error}"
        raise ModelLoadError(message) from error
    backend = getattr(converted, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelLoadError(f"{folder} has no tokenizer.json, and its {type(converted).__name__} can't be made one")
    return backend


def _read_settings(folder: Path) -> TokenizerSettings:
    config = _read_object(folder / "tokenizer_config.json")
    named = {**_named_tokens(_read_object(folder / "special_tokens_map.json")), **_named_tokens(config)}
    return TokenizerSettings(MappingProxyType(named), MappingProxyType(_chat_templates(folder, config)))


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Entries such as `"eos_token": "</s>"` or `{"content": "</s>", ...}`; null ones are left out."""
    contents = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
    return {name: content for name, content in contents.items() if content is not None}


def _content(value: object) -> str | None:
    """A token's spelling; None for what is no token (`add_bos_token: true`)."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name. Where several files have one, as in transformers: a `.jinja` file, tokenizer config, processor's."""
    templates = _declared_templates(_read_object(folder / "chat_template.json").get("chat_template"))
    templates |= _declared_templates(config.get("chat_template"))
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    return templates | {name: _read_text(path) for name, path in files.items()}


def _declared_templates(declared: object) -> dict[str, str]:
    """A template, or a list of `{"name": ..., "template": ...}`."""
    if isinstance(declared, str):
        return {"default": declared}
    if not isinstance(declared, list):
        return {}
    pairs = [(entry.get("name"), entry.get("template")) for entry in declared if isinstance(entry, dict)]
    return {name: template for name, template in pairs if isinstance(name, str) and isinstance(template, str)}


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} is not a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
