"""Encodes a prompt in which only marked spellings are control tokens: whatever else spells one is text.

Never touches the tokenizer it is made from: it is a second one around the same model (milliseconds to make, nothing
copied) that knows each control token by its marked spelling alone.
"""

from __future__ import annotations

import tokenizers

from engine.prompt.control_tokens import ControlTokens
from engine.tokenizer import Tokenizer


class ScaffoldEncoder:
    """One mark, a character that no text to encode holds otherwise. Ids are the original tokenizer's."""

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens, mark: str) -> None:
        backend = tokenizer.backend
        self._model = backend.model
        self._model_pieces = {
            token_id: spelling
            for spelling, token_id in control.ids.items()
            if self._model.token_to_id(spelling) == token_id
        }
        self._backend = _bare_clone(backend)
        tokens = sorted(backend.get_added_tokens_decoder().items())
        known = [_marked(token, mark) if token.content in control.ids else token for _, token in tokens]
        self._backend.add_tokens(known)
        self._original_ids = {
            self._backend.token_to_id(token.content): token_id
            for token, (token_id, _) in zip(known, tokens, strict=True)
        }

    def encode(self, marked_text: str) -> list[int]:
        """Token ids of a text marked by `ControlTokens.mark`; nothing is added at its ends."""
        (encoding,) = self._backend.encode_batch([marked_text], add_special_tokens=False)  # lets other threads run
        if self._model_pieces.keys().isdisjoint(encoding.ids):
            return [self._original_ids.get(token_id, token_id) for token_id in encoding.ids]
        token_ids: list[int] = []
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            token_ids += self._text_ids(token_id, marked_text[start:end])
        return token_ids

    def _text_ids(self, token_id: int, source: str) -> list[int]:
        """One token's ids: some models' own vocabularies spell `</s>` too, and text that does is cut in characters."""
        piece = self._model_pieces.get(token_id)
        if piece is not None and source.strip() == piece:
            return [token.id for character in piece for token in self._model.tokenize(character)]
        return [self._original_ids.get(token_id, token_id)]


def _bare_clone(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same model, normalizer and pre-tokenizer; no added tokens, and nothing added at a text's ends."""
    clone = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        clone.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        clone.pre_tokenizer = backend.pre_tokenizer
    return clone


def _marked(token: tokenizers.AddedToken, mark: str) -> tokenizers.AddedToken:
    """Found before normalization: the mark tells it apart already, and a normalizer might drop the mark."""
    return tokenizers.AddedToken(
        f"{mark}{token.content}{mark}",
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=token.special,
    )
