"""What a Chat Completions chunk's choice looks like. Pure; the order of the stream is `server.wire.openai_stream`'s."""

from __future__ import annotations

from typing import Any

from server.wire.chat_completions.logprobs import logprobs_object


class ChatChunkShape:
    """See `server.wire.openai_stream.ChunkShape`: the role comes first, with empty content."""

    object_name = "chat.completion.chunk"
    id_prefix = "chatcmpl"
    logprobs = staticmethod(logprobs_object)

    def opening(self, index: int) -> dict[str, Any]:
        return _choice(index, {"role": "assistant", "content": ""})

    def text(self, index: int, text: str) -> dict[str, Any]:
        return _choice(index, {"content": text})

    def end(self, index: int, reason: str) -> dict[str, Any]:
        return _choice(index, {}) | {"finish_reason": reason}


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
