"""What a Completions chunk's choice looks like. Pure; the order of the stream is `server.wire.openai_stream`'s."""

from __future__ import annotations

from typing import Any

from server.wire.completions.logprobs import logprobs_object


class CompletionChunkShape:
    """See `server.wire.openai_stream.ChunkShape`: nothing comes before the text."""

    object_name = "text_completion"
    id_prefix = "cmpl"
    logprobs = staticmethod(logprobs_object)

    def opening(self, index: int) -> None:
        """Completions have no opening chunk."""

    def text(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def end(self, index: int, reason: str) -> dict[str, Any]:
        return self.text(index, "") | {"finish_reason": reason}
