"""An engine without a model, for load, chaos and exact wire tests: real scheduler bounds and KV-block accounting."""

from engine.backends.simulated.backend import SimulatedBackend

__all__ = ["SimulatedBackend"]
