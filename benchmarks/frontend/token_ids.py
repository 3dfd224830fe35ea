"""What the mock engine core says: token ids of this repository's own prose and code.

Never text in which a token is a part of a character: a front end owes no event for one of those, and the benchmark
counts one event a token.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("README.md", "CHANGELOG.md", "benchmarks/GPU.md", "engine/core.py", "engine/stream.py", "server/answer.py")


def ascii_text() -> str:
    """English and Python, without the characters beyond ASCII."""
    text = "\n".join((REPOSITORY / name).read_text(encoding="utf-8") for name in SOURCES)
    return text.encode("ascii", "ignore").decode("ascii")


def write(model: Path, out: Path) -> int:
    """Writes a JSON list of ids by the model's `tokenizer.json`; returns how many. No special token is among them."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(ascii_text(), add_special_tokens=False).ids
    special = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    plain = [id_ for id_ in ids if id_ not in special]
    out.write_text(json.dumps(plain))
    return len(plain)
