"""What a Completions chunk's choice looks like. Pure; the order of the stream is `server.wire.openai_stream`'s."""

from __future__ import annotations

from typing import Any

from engine.output.parsers.parts import Part
from server.wire.completions.logprobs import logprobs_object


class CompletionChunkShape:
    """See `server.wire.openai_stream.ChunkShape`: nothing comes before the text."""

    object_name = "text_completion"
    id_prefix = "cmpl"
    logprobs = staticmethod(logprobs_object)

    def opening(self, index: int) -> None:
        """Completions have no opening chunk."""

    def content(self, index: int, text: str) -> dict[str, Any]:
        return _choice(index, text)

    def other(self, index: int, part: Part) -> None:
        """All of a completion is content: no parser looks at it."""

    def end(self, index: int) -> dict[str, Any]:
        return _choice(index, "")


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
