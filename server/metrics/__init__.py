"""Prometheus metrics, from accounts and from the engine's own counts; the only room that imports the client library.

Never a label whose values a client chooses, and nothing is counted twice.
"""

from server.metrics.registry import Metrics

__all__ = ["Metrics"]
