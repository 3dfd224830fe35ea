"""Hugging Face transformers' continuous batching behind the engine's backend protocol.

Importing this never imports torch: `TransformersBackend.start` does.
"""

from engine.backends.transformers.backend import TransformersBackend

__all__ = ["TransformersBackend"]
