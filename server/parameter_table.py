"""Writes docs/parameters.md out of what the request models and the engines' checks themselves go by.

Never a word of its own about a field: what is true of one is said where it is decided.

    python -m server.parameter_table > docs/parameters.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from engine.backends.unsupported import UNSUPPORTED, WITHOUT_EFFECT
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.hosted_fields import WITHOUT_EFFECT as INERT
from server.wire.structure_fields import StructureFields

HEADER = """\
# Parameters

Written by `python -m server.parameter_table` from what the server checks requests by; a test compares. *no effect*:
taken, and the answer is the same. *refused*: a 400 that names the field, unless it asks for nothing (null, a default).
*partly*: some values are refused, as the last column says. *unknown*: ignored, and named in the request's log line.

"""
APIS: dict[str, type[ChatRequest | CompletionRequest]] = {"chat": ChatRequest, "completions": CompletionRequest}
STRUCTURES = frozenset(field.alias or name for name, field in StructureFields.model_fields.items())


def names() -> list[str]:
    """Every field that one of the APIs knows, sorted."""
    known = {field.alias or name for api in APIS.values() for name, field in api.model_fields.items()}
    return sorted(known.union(*(api.refused for api in APIS.values())))


def in_api(name: str, api: str) -> tuple[str, str]:
    """What an API makes of a field, and the reason if there is one."""
    request = APIS[api]
    if name in request.refused:
        return "refused", request.refused[name]
    if name not in {field.alias or own for own, field in request.model_fields.items()}:
        return "unknown", ""
    if name in INERT:
        return "no effect", INERT[name]
    return ("partly", request.bounded[name]) if name in request.bounded else ("yes", "")


def on_engine(name: str, engine: str) -> tuple[str, str]:
    """What an engine makes of a field that an API takes, and the reason if there is one."""
    what = "structure" if name in STRUCTURES else name
    if what in UNSUPPORTED[engine]:
        return "refused", UNSUPPORTED[engine][what]
    reason = WITHOUT_EFFECT.get(engine, {}).get(what)
    return ("yes", "") if reason is None else ("no effect", reason)


def row(name: str) -> str:
    """A field's line of the table."""
    verdicts = [in_api(name, api) for api in APIS]
    taken = any(verdict in ("yes", "partly") for verdict, _ in verdicts)
    verdicts += [on_engine(name, engine) if taken else ("", "") for engine in UNSUPPORTED]
    reasons = "; ".join(dict.fromkeys(reason for _, reason in verdicts if reason))
    return " | ".join([f"| `{name}`", *(verdict for verdict, _ in verdicts), f"{reasons} |"])


def table() -> Iterator[str]:
    """The table's lines."""
    columns = ["Parameter", *APIS, *UNSUPPORTED, "Why"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from map(row, names())


def document() -> str:
    """The whole file."""
    return HEADER + "\n".join(table()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
