"""vLLM's engine core, in a process of its own, behind the engine's backend protocol.

Importing this never imports vLLM: `VllmBackend`'s making does.
"""

from engine.backends.vllm.backend import VllmBackend

__all__ = ["VllmBackend"]
