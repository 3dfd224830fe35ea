"""The mock core's sockets: vLLM's handshake, then requests in and steps out. Never waits for a slow front end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import zmq
from vllm.v1.engine import EngineCoreReadyResponse
from vllm.v1.engine.core import EngineCoreProc
from vllm.version import __version__ as vllm_version

ENGINE_INDEX = 0
IDENTITY = ENGINE_INDEX.to_bytes(2, "little")
KV_BLOCKS = 100_000
BLOCK_SIZE = 16


class MockSockets:
    """One pair a front-end process, as the front end says in the handshake."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], handshake_address: str, config: Any) -> None:
        """Returns once the front end can send requests."""
        handshake = _dealer(context, handshake_address)
        addresses = EngineCoreProc.startup_handshake(handshake, True, False, config.parallel_config)
        self._inputs = [_dealer(context, address) for address in addresses.inputs]
        self._outputs = [_pusher(context, address) for address in addresses.outputs]
        self._poller = zmq.Poller()
        ready = msgspec.msgpack.encode(ready_response(config))
        for socket in self._inputs:
            socket.send(ready)
            self._poller.register(socket, zmq.POLLIN)
        handshake.send(msgspec.msgpack.encode({"status": "READY", "local": True, "headless": False}))
        handshake.close(linger=5000)

    def messages(self, wait_ms: int | None) -> Iterator[tuple[bytes, bytes]]:
        """All that came, kind and body; waits for the first as long as is said, None: for ever."""
        while ready := self._poller.poll(wait_ms):
            for socket, _ in ready:
                kind, *body = socket.recv_multipart()
                yield kind, body[0] if body else b""
            wait_ms = 0

    def send(self, client: int, message: bytes) -> None:
        self._outputs[client].send(message)


def ready_response(config: Any) -> Any:
    """What an engine says of itself when it is up: the configuration's own words, and room for any load."""
    parallel, scheduler, model = config.parallel_config, config.scheduler_config, config.model_config
    return EngineCoreReadyResponse(
        max_model_len=model.max_model_len,
        num_gpu_blocks=KV_BLOCKS,
        block_size=BLOCK_SIZE,
        effective_attention_block_size=BLOCK_SIZE,
        kv_cache_size_tokens=KV_BLOCKS * BLOCK_SIZE,
        kv_cache_max_concurrency=KV_BLOCKS * BLOCK_SIZE / model.max_model_len,
        dp_stats_address=None,
        dtype=str(model.dtype).removeprefix("torch."),
        vllm_version=vllm_version,
        world_size=parallel.world_size,
        data_parallel_size=1,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        data_parallel_rank=ENGINE_INDEX,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        instance_id=config.instance_id,
        supports_lora=False,
        max_loras=0,
    )


def _dealer(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, IDENTITY)
    _unbounded(socket)
    socket.connect(address)
    return socket


def _pusher(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    _unbounded(socket)
    socket.connect(address)
    return socket


def _unbounded(socket: zmq.Socket[bytes]) -> None:
    """As vLLM's engine does: it never waits for a front end."""
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
