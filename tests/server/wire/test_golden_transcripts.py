"""The wire says in each situation what it said; a change on purpose is a diff of tests/server/wire/golden."""

from __future__ import annotations

import pytest

from tests.server.wire.golden_transcripts import FOLDER, SITUATIONS, refused, transcript


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_wire_says_what_it_said(name: str) -> None:
    """Mend it with `python -m tests.server.wire.golden_transcripts`, and read the diff."""
    assert transcript(SITUATIONS[name]) == (FOLDER / f"{name}.txt").read_text()


def test_a_refusal_is_what_it_was() -> None:
    """An error before the first byte."""
    assert refused() == (FOLDER / "refused.txt").read_text()


def test_every_transcript_has_a_situation() -> None:
    """No file is left over."""
    assert {file.stem for file in FOLDER.iterdir()} == {*SITUATIONS, "refused"}
