"""A fuzzer for the detokenizer and the stop matcher, for as long as it is told; a find is printed so that it repeats.

Never part of the test run: the property tests are its short form.

    python -m tests.engine.detokenizer.fuzz --seconds 300
    python -m tests.engine.detokenizer.fuzz --tokens 10000000
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from engine.detokenizer import IncrementalDetokenizer, StopMatcher
from tests import vocabularies
from tests.engine.detokenizer import reference
from tests.engine.detokenizer.strategies import added_ids, broken_ids, text_ids

Random = random.Random
LETTERS = ("ab", "ab\n🌶\u0301", "the quick\n")


def random_ids(name: str, source: Random) -> list[int]:
    """Runs of ids of any kind: random, parts of characters, added tokens, real text."""
    size = vocabularies.vocabulary(name).size
    kinds: list[Callable[[], list[int]]] = [
        lambda: [source.randrange(-3, size + 300) for _ in range(source.randrange(40))],
        lambda: source.choices(broken_ids(name), k=source.randrange(12)),
        lambda: source.choices(added_ids(name), k=source.randrange(5)),
        lambda: source.choice(text_ids(name))[source.randrange(8) :],
        lambda: source.choice(text_ids(name))[: source.randrange(1, 40)],
    ]
    return [token_id for _ in range(source.randrange(1, 12)) for token_id in source.choice(kinds)()]


def check_text(name: str, source: Random) -> int:
    """One random sequence behind a random part of it as the prompt, in random steps; returns its length in tokens."""
    ids, skip = random_ids(name, source), source.random() < 0.5
    vocabulary = vocabularies.vocabulary(name)
    at = source.randrange(len(ids) + 1) if source.random() < 0.5 else 0
    before = IncrementalDetokenizer(vocabulary, skip_special_tokens=skip).push(ids[:at])
    detokenizer = IncrementalDetokenizer(vocabulary, ids[:at], skip)
    text, start = before, at
    while start < len(ids):
        step = source.choice((1, 1, 1, 2, 5, 64))
        text, start = text + detokenizer.push(ids[start : start + step]), start + step
    expected = reference.decoded(name, ids, skip_special_tokens=skip)
    if text + "\ufffd" * detokenizer.pending != expected or text + detokenizer.finish() != expected:
        raise AssertionError(f"{name} {skip=} {at=} {ids=}: {text!r} is not {expected!r}")
    return len(ids)


def check_stops(source: Random) -> None:
    """One random text through a matcher with random stop strings, in random pieces, some of them not armed."""
    letters = source.choice(LETTERS)
    stops = ["".join(source.choices(letters, k=source.randrange(1, 7))) for _ in range(source.randrange(6))]
    include = source.random() < 0.5
    matcher, released, matched = StopMatcher(stops, include), "", None
    pieces: list[tuple[str, bool]] = []
    expected = reference.stopped(pieces, stops, include=include)
    for _ in range(source.randrange(1, 12)):
        text, armed = "".join(source.choices(letters, k=source.randrange(6))), source.random() < 0.7
        pieces.append((text, armed))
        outcome = matcher.push(text, armed=armed)
        released, matched = released + outcome.text, outcome.matched
        expected = reference.stopped(pieces, stops, include=include)
        if (released, matched, matcher.held_back) != (expected.released, expected.matched, len(expected.held)):
            raise AssertionError(f"{stops=} {include=} {pieces=}: {released!r}, {matched!r} is not {expected}")
    if matcher.finish() != expected.held:
        raise AssertionError(f"{stops=} {pieces=}: not all that was held came back")


def main() -> int:
    """Runs until the time or the tokens are used up; 1 on a find."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument(
        "--tokens", type=int, default=sys.maxsize, help="stop after so many tokens over all vocabularies"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    source, tokens, texts = Random(arguments.seed), Counter[str](), 0
    sys.stderr.write(f"seed {arguments.seed}, vocabularies: {', '.join(vocabularies.NAMES)}\n")
    end = time.monotonic() + arguments.seconds
    try:
        while time.monotonic() < end and tokens.total() < arguments.tokens:
            for name in vocabularies.NAMES:
                tokens[name] += check_text(name, source)
                check_stops(source)
                texts += 1
    except AssertionError as find:
        sys.stdout.write(f"found after {tokens.total()} tokens: {find}\n")
        return 1
    sys.stdout.write(f"no mismatch in {tokens.total()} tokens and {texts} stop searches: {dict(tokens)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
