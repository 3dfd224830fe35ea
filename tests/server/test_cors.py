"""CORS: off unless pages are named; then a preflight needs no key, and a page reads refusals and request ids too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.running_server import RunningServer, simulated
from tests.server.replies import CHAT, COMPLETIONS

PAGE = "https://chat.example.org"
KEY = "sk-page"
SDK_HEADERS = (
    "anthropic-version,authorization,content-type,idempotency-key,last-event-id,openai-organization,"
    "x-api-key,x-request-id,x-stainless-lang,x-stainless-retry-count"
)
ASKS = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": SDK_HEADERS,
}


@pytest.fixture(scope="module")
def page_server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a key that one page may call."""
    flags = simulated(demo_model, "engine.step_interval_ms=5")
    settings = ("--set", f"server.api_keys={KEY}", "--set", f"server.cors_origins={PAGE}")
    with RunningServer(*flags, *settings, log_folder=tmp_path_factory.mktemp("page")) as server:
        yield server


def cors_headers(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/streams/x/cancel"])
def test_a_preflight_needs_no_key(page_server: RunningServer, path: str) -> None:
    """The browser asks without it; it is told that the page may send what the SDKs send, and no cookies."""
    response = httpx.options(page_server.url + path, headers=ASKS)
    assert response.status_code == 200
    allowed = cors_headers(response)
    assert allowed["access-control-allow-origin"] == PAGE
    assert "POST" in allowed["access-control-allow-methods"]
    assert set(SDK_HEADERS.split(",")) <= set(allowed["access-control-allow-headers"].replace(" ", "").split(","))
    assert "access-control-allow-credentials" not in allowed
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("origin", ["https://evil.example.org", "http://chat.example.org", f"{PAGE}.evil.org", "null"])
def test_another_page_may_not(page_server: RunningServer, origin: str) -> None:
    """Neither its preflight nor its request is given the header without which a browser shows it nothing."""
    preflight = httpx.options(page_server.url + CHAT, headers=ASKS | {"origin": origin})
    answer = httpx.get(f"{page_server.url}/v1/models", headers={"origin": origin, "x-api-key": KEY})
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("headers", "status"), [({"x-api-key": KEY}, 200), ({"x-api-key": "sk-no"}, 401), ({}, 401)])
def test_a_page_reads_answers_and_refusals(page_server: RunningServer, headers: Mapping[str, str], status: int) -> None:
    """The key is still needed; a 401 is one that the page can read, with its request id."""
    response = httpx.get(f"{page_server.url}/v1/models", headers={"origin": PAGE, **headers})
    assert response.status_code == status
    assert response.headers["access-control-allow-origin"] == PAGE
    exposed = response.headers["access-control-expose-headers"].replace(" ", "").split(",")
    assert {"x-request-id", "request-id", "retry-after"} <= set(exposed)
    assert "origin" in response.headers["vary"].lower()


def test_a_page_that_leaves_frees_its_slot(page_server: RunningServer) -> None:
    """The middleware hides no disconnect: a stream read across origins is aborted when its page is closed."""
    body = {"prompt": [905], "ignore_eos": True, "max_tokens": 8_000, "stream": True}
    headers = {"origin": PAGE, "authorization": f"Bearer {KEY}"}
    with httpx.stream("POST", page_server.url + COMPLETIONS, headers=headers, json=body) as response:
        assert response.headers["access-control-allow-origin"] == PAGE
        assert next(response.iter_raw())
    page_server.wait_idle()
    assert page_server.log_records(event="request")[-1]["end_state"] == "client_cancelled"


def test_it_is_off_unless_configured(http: httpx.Client) -> None:
    """Without named pages no answer has such a header, and a preflight is a method that the route does not have."""
    assert http.options(CHAT, headers=ASKS).status_code == 405
    assert cors_headers(http.get("/v1/models", headers={"origin": PAGE})) == {}
