"""A decoder as a chain of streaming stages, built from the `decoder` entry of a tokenizer file.

Never guesses: a decoder that can't be streamed exactly raises `Unstreamable`, and the vocabulary takes the window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tokenizers import Regex, decoders

from engine.detokenizer.byte_stages import ByteFallback, ByteLevel
from engine.detokenizer.stages import (
    Deduplicate,
    Each,
    FirstDiffers,
    Stage,
    State,
    StripEnds,
    Token,
    WordEnd,
    clean_english,
    strip_each,
)

Config = Mapping[str, Any]
"""One decoder as the tokenizer file writes it."""
ChainState = tuple[State, ...]
"""The states of all stages: hashable."""


class Unstreamable(Exception):  # noqa: N818 - a finding about a tokenizer, not a fault
    """This decoder needs more than a bounded look at what came before; the message says which and why."""


class Chain:
    """Stages one after another. All methods are pure."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)
        self.initial: ChainState = tuple(stage.initial for stage in stages)
        self.middle = tuple(stage.middle for stage in stages) if all(stage.steady for stage in stages) else None
        """The state in mid-text when nothing is held; None where there is no such state."""
        self.tail = sum(stage.tail for stage in stages)
        """How many non-empty tokens at the end of a sequence settle the state, once `settled` is true."""

    def step(self, state: ChainState, token: Token) -> tuple[ChainState, str]:
        """The state after one more token, and the text that is now certain."""
        tokens: list[Token] = [token]
        after = []
        for stage, before in zip(self._stages, state, strict=True):
            stage_state, tokens = _feed(stage, before, tokens)
            after.append(stage_state)
        return tuple(after), _join(tokens)

    def plain_text(self, token: Token) -> str | None:
        """`step` from `middle`, five times faster, for a token of whole characters; None for any other."""
        piece = token
        for stage in self._stages:
            piece = stage.piece(piece)
            if isinstance(piece, bytes):
                try:
                    piece = piece.decode()
                except UnicodeDecodeError:
                    return None
        return piece if isinstance(piece, str) else None

    def finish(self, state: ChainState) -> str:
        """The text held back in this state, when no token follows."""
        tokens: list[Token] = []
        for stage, before in zip(self._stages, state, strict=True):
            stage_state, tokens = _feed(stage, before, tokens)
            tokens += stage.finish(stage_state)
        return _join(tokens)

    def token_bytes(self, token: Token) -> bytes:
        """The bytes that the token adds in the middle of a text."""
        for stage in self._stages:
            token = stage.piece(token)
            if isinstance(token, bytes):
                return token
        return token.encode() if isinstance(token, str) else token

    def settled(self, state: ChainState) -> bool:
        """True once the start of the sequence has no influence on what follows."""
        return all(stage.settled(part) for stage, part in zip(self._stages, state, strict=True))

    def holds_bytes(self, state: ChainState) -> bool:
        """True while an incomplete character is held."""
        return any(stage.holds_bytes(part) for stage, part in zip(self._stages, state, strict=True))


def _feed(stage: Stage, state: State, tokens: list[Token]) -> tuple[State, list[Token]]:
    out: list[Token] = []
    for token in tokens:
        state, pieces = stage.step(state, token)
        out += pieces
    return state, out


def _join(tokens: list[Token]) -> str:
    return "".join([token for token in tokens if isinstance(token, str)])


def build_chain(decoder: Config | None) -> Chain:
    """The chain for a tokenizer's `decoder`; without one the library joins tokens with spaces.

    Raises `Unstreamable`.
    """
    if decoder is None:
        return Chain([FirstDiffers(str, " {}".format)])
    stages: list[Stage] = []
    fused = False
    for config in _flatten(decoder):
        kind = config.get("type")
        if kind == "Fuse":
            fused = True
            continue
        builder = (_AFTER_FUSE if fused else _BEFORE_FUSE).get(str(kind))
        if builder is None:
            raise Unstreamable(f"decoder {kind}{' after Fuse' if fused else ''}")
        if stages and stages[-1].splits and not fused:
            raise Unstreamable(f"decoder {kind} after one that splits tokens")
        stages.append(builder(config))
        fused = fused or kind == "ByteLevel"
    return Chain(stages)


def _flatten(decoder: Config) -> list[Config]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [config for part in decoder["decoders"] for config in _flatten(part)]


def _replace(config: Config) -> Stage:
    pattern, content = config["pattern"], config["content"]
    if pattern.get("String"):
        return Each(partial(_replaced, pattern["String"], content))
    return Each(_library_replace(pattern, content))


def _replaced(old: str, new: str, text: str) -> str:
    return text.replace(old, new)


def _library_replace(pattern: Mapping[str, str], content: str) -> Callable[[str], str]:
    # The library's regular expressions are Oniguruma's: only it knows what they match.
    find = Regex(pattern["Regex"]) if "Regex" in pattern else pattern.get("String", "")
    replace = decoders.Replace(find, content)
    return lambda text: str(replace.decode([text]))


def _replace_fused(config: Config) -> Stage:
    if len(config["pattern"].get("String", "")) != 1:
        raise Unstreamable("decoder Replace of more than one character after Fuse")
    return _replace(config)


def _drops_first(config: Config) -> bool:
    return bool(config.get("prepend_scheme", "always") != "never" and config.get("add_prefix_space") is not False)


def _metaspace(config: Config) -> Stage:
    mark = config["replacement"]
    later = partial(_replaced, mark, " ")
    return FirstDiffers(partial(_replaced, mark, "") if _drops_first(config) else later, later)


def _metaspace_fused(config: Config) -> Stage:
    return Each(partial(_replaced, config["replacement"], "" if _drops_first(config) else " "))


def _word_piece(config: Config) -> Stage:
    prefix, clean = config["prefix"], clean_english if config["cleanup"] else str

    def later(text: str) -> str:
        return clean(text[len(prefix) :] if text.startswith(prefix) else " " + text)

    return FirstDiffers(clean, later)


def _ctc(config: Config) -> Stage:
    pad, delimiter, cleanup = config["pad_token"], config["word_delimiter_token"], config["cleanup"]

    def clean(text: str) -> str:
        text = text.replace(pad, "")
        return clean_english(text).replace(delimiter, " ") if cleanup else text

    return Deduplicate(clean)


_BEFORE_FUSE: dict[str, Callable[[Config], Stage]] = {
    "ByteLevel": lambda _: ByteLevel(),
    "ByteFallback": lambda _: ByteFallback(),
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _word_piece,
    "BPEDecoder": lambda config: WordEnd(config["suffix"]),
    "CTC": _ctc,
    "Strip": lambda config: Each(strip_each(config["content"], config["start"], config["stop"])),
}
_AFTER_FUSE: dict[str, Callable[[Config], Stage]] = {
    "Replace": _replace_fused,
    "Metaspace": _metaspace_fused,
    "Strip": lambda config: StripEnds(config["content"], config["start"], config["stop"]),
}
