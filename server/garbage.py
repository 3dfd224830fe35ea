"""The garbage collector's pauses, kept short: what lives as long as the process is not looked at again and again.

Never off: connections and exceptions make cycles, about 25 objects a request, and those are collected.

Measured with 1,000 open streams: a full collection over vocabulary, template and modules as well stopped every stream
for 200 to 500 ms; without them for 30 to 90 ms.
"""

from __future__ import annotations

import gc

THRESHOLDS = (5_000, 5, 5)
"""New objects before the youngest are looked at (Python's 700 come within one step of a busy server); so many looks at
them before the middle generation is looked at, and of those before all are: 125,000 objects, some thousand requests."""


def settle() -> None:
    """Call when everything is loaded: it is taken out of every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def tidy() -> None:
    """Call when nobody waits for an answer: collects what piled up since the last time, if it is worth it."""
    if any(gc.get_count()[1:]):
        gc.collect()
