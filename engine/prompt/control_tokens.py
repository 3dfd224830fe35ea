"""Which tokens steer the model, and how the client's text is kept from spelling one.

Never changes a text for good: a guard is a private-use character, put in before a template runs and taken out after it.

A guarded text has the guard after every character that begins a control token and before every one that ends one, so
no template can make a control token of it, whatever it joins, cuts or strips. What spells one in the template's output
is then the template's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from engine.errors import InvalidRequestError
from engine.prompt.conversation import Role
from engine.tokenizer import AddedToken, Tokenizer

_PRIVATE_USE = range(0xE000, 0xF900)
_NONCHARACTER = "\U0010fffe"
_NEVER = re.compile(r"(?!)")


class ControlTokens:
    """The control tokens of a model: the special ones, those with a name, and those that its templates write literally.

    Of the last kind, tags that come in pairs (`<think>`, `</think>`) are what the model itself writes in an answer, and
    stay tokens in the content and reasoning of the assistant's own turns.
    """

    def __init__(self, tokenizer: Tokenizer, template_sources: Sequence[str]) -> None:
        named = frozenset(tokenizer.named_tokens.values())
        written = "\n".join(template_sources)
        tokens = [token for token in tokenizer.added_tokens if _is_control(token, named, written)]
        self.ids = {token.content: token.id for token in tokens}
        self.any_normalized = tokenizer.backend.normalizer is not None and any(token.normalized for token in tokens)
        """A text may then spell a control token in characters that only the normalizer makes the same."""
        self._unknown_ids = _ids_of_unknown_text(tokenizer)
        self._counted = frozenset(self.ids.values()) - self._unknown_ids
        self._spellings = "\0".join(self.ids)
        self._spelling = _alternatives(self.ids)
        ordinary = {token.content for token in tokens if not token.special and token.content not in named}
        kept = {content for content in ordinary if _counterpart(content) in ordinary}
        self._first = frozenset(content[0] for content in self.ids)
        self._last = frozenset(content[-1] for content in self.ids)
        self._edge = _edge_pattern(self._first | self._last, ())
        self._edge_in_answers = _edge_pattern(self._first | self._last, kept)

    def guard(self, text: str, role: Role | None, guard: str) -> str:
        """The text with `guard` wherever it could begin, end or be the middle of a control token.

        In tools and kwargs (`role` None) a word in the middle of one is left alone, since templates compare such words.
        """
        pattern = self._edge_in_answers if role is Role.ASSISTANT else self._edge
        guarded = pattern.sub(lambda match: self._guard_edge(match, guard), text)
        if guarded == text and text and role is not None and text in self._spellings:
            return text[0] + guard + text[1:]
        return guarded

    def _guard_edge(self, match: re.Match[str], guard: str) -> str:
        edge = match[1]
        if edge is None:
            return match[0]
        return (guard if edge in self._last else "") + edge + (guard if edge in self._first else "")

    def mark(self, rendered: str, mark: str) -> str:
        """Rendered text with `mark` on both sides of each control token that it spells."""
        return self._spelling.sub(lambda match: f"{mark}{match[0]}{mark}", rendered)

    def agree(self, scaffold: str, text: str, token_ids: Iterable[int]) -> bool:
        """Whether a text and its ids hold each control token as often as the guarded rendering does.

        Ids can hold more than the text spells: by normalization, or by a model whose own vocabulary spells some. In
        ids the unknown token is left out, since text that the vocabulary does not know gives it too.
        """
        own = self._count_spelled(scaffold)
        counted = Counter({token_id: count for token_id, count in own.items() if token_id not in self._unknown_ids})
        return own == self._count_spelled(text) and counted == Counter(filter(self._counted.__contains__, token_ids))

    def _count_spelled(self, text: str) -> Counter[int]:
        return Counter(self.ids[match[0]] for match in self._spelling.finditer(text))


def absent_characters(texts: Iterable[str], count: int) -> tuple[str, ...]:
    """Private-use characters that no text holds, neither as they are nor as JSON or Python escape them."""
    joined = "\n".join(texts)
    absent = (chr(code) for code in _PRIVATE_USE if chr(code) not in joined and f"\\u{code:04x}" not in joined)
    characters = tuple(islice(absent, count))
    if len(characters) < count:
        raise InvalidRequestError("the conversation uses all of Unicode's private-use characters", param="messages")
    return characters


def without(text: str, character: str) -> str:
    """The text without a private-use character, be it as it is or as JSON or Python escape it."""
    return text.replace(character, "").replace(f"\\u{ord(character):04x}", "")


def _ids_of_unknown_text(tokenizer: Tokenizer) -> frozenset[int]:
    """What the model makes of a character that no vocabulary has: the config's `unk_token` may be another."""
    try:
        return frozenset(token.id for token in tokenizer.backend.model.tokenize(_NONCHARACTER))
    except Exception:  # noqa: BLE001 - the library raises it bare where a model has no unknown token
        return frozenset()


def _is_control(token: AddedToken, named: frozenset[str], written: str) -> bool:
    """Whitespace (some vocabularies add runs of it) steers nothing, and one character can't be told from text."""
    if len(token.content.strip()) < 2:
        return False
    return token.special or token.content in named or token.content in written


def _counterpart(content: str) -> str:
    """The closing tag of an opening one, and the other way round."""
    return content[:1] + content[2:] if content[1:2] == "/" else f"{content[:1]}/{content[1:]}"


def _alternatives(spellings: Iterable[str]) -> re.Pattern[str]:
    """Finds the longest at the leftmost place, as tokenizers do."""
    ordered = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else _NEVER


def _edge_pattern(edges: frozenset[str], kept: Iterable[str]) -> re.Pattern[str]:
    """Matches what is kept whole, else a character that begins or ends a control token, as group 1."""
    if not edges:
        return _NEVER
    whole = "".join(f"{re.escape(content)}|" for content in sorted(kept, key=len, reverse=True))
    return re.compile(f"{whole}([{''.join(map(re.escape, sorted(edges)))}])")
