"""What the server's tests share: a client that keeps its connection to the echoing server.

Never a server of its own: that is `tests.running_server`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.running_server import RunningServer


@pytest.fixture(scope="session")
def http(echo_server: RunningServer) -> Iterator[httpx.Client]:
    """One connection pool for all tests: a client of its own costs each request more than the server does."""
    with httpx.Client(base_url=echo_server.url, timeout=30) as client:
        yield client
