"""The detokenizer's invariants over real vocabularies: exact, never a half character, total, independent of the cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import IncrementalDetokenizer
from tests import vocabularies
from tests.engine.detokenizer import reference
from tests.engine.detokenizer.samples import TEXTS
from tests.engine.detokenizer.strategies import SIZES, cut, encoded, quick, token_ids

every_vocabulary = pytest.mark.parametrize("name", vocabularies.NAMES)


@every_vocabulary
@quick
@given(data=st.data(), skip=st.booleans(), sizes=SIZES)
def test_equals_one_shot_decoding(name: str, data: st.DataObject, skip: bool, sizes: list[int]) -> None:
    """Joined pushes and `finish` equal one-shot decoding, for any ids in steps of any size."""
    ids = data.draw(token_ids(name))
    detokenizer = IncrementalDetokenizer(vocabularies.vocabulary(name), skip_special_tokens=skip)
    text = "".join(detokenizer.push(step) for step in cut(ids, sizes)) + detokenizer.finish()
    assert text == reference.decoded(name, ids, skip_special_tokens=skip)


@every_vocabulary
@quick
@given(data=st.data(), skip=st.booleans())
def test_every_prefix_is_exact(name: str, data: st.DataObject, skip: bool) -> None:
    """After each id all is sent that one-shot decoding shows, but a begun character, which it shows as one U+FFFD."""
    ids = data.draw(token_ids(name))
    detokenizer = IncrementalDetokenizer(vocabularies.vocabulary(name), skip_special_tokens=skip)
    sent = ""
    for count, token_id in enumerate(ids, start=1):
        sent += detokenizer.push_token(token_id)
        whole = reference.decoded(name, ids[:count], skip_special_tokens=skip)
        assert sent + "\ufffd" * detokenizer.pending == whole


@every_vocabulary
@quick
@given(data=st.data(), skip=st.booleans(), at=st.integers(0, 60))
def test_follows_the_prompt(name: str, data: st.DataObject, skip: bool, at: int) -> None:
    """With a prompt the output is what follows it in the joint decoding, wherever the two are cut."""
    ids = data.draw(token_ids(name))
    vocabulary = vocabularies.vocabulary(name)
    joint = IncrementalDetokenizer(vocabulary, skip_special_tokens=skip)
    prompt_text = joint.push(ids[:at])
    detokenizer = IncrementalDetokenizer(vocabulary, ids[:at], skip_special_tokens=skip)
    assert detokenizer.pending == joint.pending
    text = detokenizer.push(ids[at:]) + detokenizer.finish()
    assert prompt_text + text == reference.decoded(name, ids, skip_special_tokens=skip)


@every_vocabulary
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(name: str, text: str) -> None:
    """Real text comes back one id at a time, with no U+FFFD that is not in it, and the same behind every prompt cut."""
    ids = encoded(name, text)
    whole = vocabularies.tokenizer(name).decode(ids, skip_special_tokens=True)
    vocabulary = vocabularies.vocabulary(name)
    for at in range(len(ids) + 1):
        before = IncrementalDetokenizer(vocabulary).push(ids[:at])
        detokenizer = IncrementalDetokenizer(vocabulary, ids[:at])
        pieces = [detokenizer.push([token_id]) for token_id in ids[at:]]
        assert before + "".join(pieces) + detokenizer.finish() == whole
        assert sum(piece.count("\ufffd") for piece in pieces) <= whole.count("\ufffd")


@every_vocabulary
def test_every_token_alone(name: str) -> None:
    """Each id of the vocabulary, behind a visible one, gives its own bytes; and no id raises."""
    vocabulary, tokenizer = vocabularies.vocabulary(name), vocabularies.tokenizer(name)
    anchor = encoded(name, "x")[-1]
    before = tokenizer.decode([anchor])
    for token_id in range(0, vocabulary.size, 7):
        text = vocabulary.token_bytes(token_id).decode(errors="replace")
        assert tokenizer.decode([anchor, token_id], skip_special_tokens=False) == before + text
        detokenizer = IncrementalDetokenizer(vocabulary, [anchor], skip_special_tokens=False)
        assert detokenizer.push_token(token_id) + detokenizer.finish() == text


@every_vocabulary
def test_unknown_ids_add_nothing(name: str) -> None:
    """Ids that are negative, beyond the end or absurd contribute nothing, break no character and raise nothing."""
    vocabulary = vocabularies.vocabulary(name)
    unknown = [-1, -(2**70), vocabulary.size, vocabulary.size + 1000, 2**31, 2**32, 2**70]
    ids = [token_id for known in encoded(name, "a 𠮷 b") for token_id in [*unknown, known]]
    detokenizer = IncrementalDetokenizer(vocabulary, unknown)
    assert (detokenizer.push(ids) + detokenizer.finish()).strip() == "a 𠮷 b"
    assert [vocabulary.token_bytes(token_id) for token_id in unknown] == [b""] * len(unknown)
