"""The histograms' bucket bounds: upper ends, in seconds or tokens; and how the client library is set up for all.

Never a metric. Those under `vllm:` are vLLM 0.32's own, so that its dashboards' heat maps keep their rows.
"""

from __future__ import annotations

from prometheus_client import disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]  # a time of creation beside each counter doubles the scrape and nobody reads it

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""For what takes about one engine step."""
FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
LAST_TOKEN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 240, 480, 960)

VLLM_FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
VLLM_TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
VLLM_REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
VLLM_CHOICES = (1, 2, 5, 10, 20)
VLLM_TOKENS = (1, 2, 5, *(digit * 10**power for power in range(1, 6) for digit in (1, 2, 5)))
