"""Adapters, sleep and priorities of `tailrace serve --engine vllm`, over HTTP: one server for all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer
from tests.vllm.tiny_adapter import make_adapter

ADMIN = {"authorization": "Bearer operator"}
BASE = "base"
SLOTS = 2
SETTINGS = (
    'engine.vllm={"max_loras": 2, "max_lora_rank": 8, "scheduling_policy": "priority"}',
    f"engine.max_num_seqs={SLOTS}",
    f"engine.served_model_name={BASE}",
    "server.admin_keys=operator",
)


@pytest.fixture(scope="module")
def adapters(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(demo_model, folder / str(seed), seed) for seed in range(2)]


@pytest.fixture(scope="module")
def server(demo_model: Path, adapters: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = (*SETTINGS, f"engine.lora_modules.first={adapters[0]}")
    flags = ("--engine", "vllm", "--model", str(demo_model), *[part for one in settings for part in ("--set", one)])
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("operators")) as running:
        yield running


def said(server: RunningServer, model: str, **fields: Any) -> str:
    """Greedy text, of the same prompt each time."""
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 12, "temperature": 0, **fields}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == model
    return str(response.json()["choices"][0]["text"])


def ordered(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return server.post(path, body, ADMIN)


def served(server: RunningServer) -> dict[str, str | None]:
    """The models that are listed, and what they are adapters of."""
    return {card["id"]: card.get("parent") for card in server.get("/v1/models").json()["data"]}


def test_an_adapter_is_a_model_of_its_own(server: RunningServer) -> None:
    """Listed with its parent, chosen by name, and named in the answer, the account and the metrics; the model stays."""
    assert served(server) == {BASE: None, "first": BASE}
    assert server.get("/v1/models/first").json()["id"] == "first"
    base, first = said(server, BASE), said(server, "first")
    assert base != first
    assert (said(server, BASE), said(server, "first")) == (base, first)
    server.wait_for({'tailrace_model_tokens_total{kind="generated",model="first"}': 24}, 5)
    assert len(server.log_records(event="request", model="first")) == 2
    body = {"model": "first", "prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        busy = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="first",waiting_lora_adapters=""}'
        assert server.metrics()[busy] > 1e9  # seconds since 1970
    server.wait_idle()


def test_adapters_come_and_go(server: RunningServer, adapters: list[Path]) -> None:
    """While the server runs: a name gets new weights only where that is asked for, and never the old prefix cache's."""
    assert ordered(server, "/v1/load_lora_adapter", lora_name="new", lora_path=str(adapters[1])).status_code == 200
    base, new = said(server, BASE), said(server, "new")
    assert new not in (base, said(server, "first"))
    again = {"lora_name": "new", "lora_path": str(adapters[0])}
    taken = ordered(server, "/v1/load_lora_adapter", **again)
    assert (taken.status_code, taken.json()["error"]["param"]) == (400, "lora_name")
    assert ordered(server, "/v1/load_lora_adapter", **again, load_inplace=True).status_code == 200
    assert said(server, "new") == said(server, "first")
    assert ordered(server, "/v1/unload_lora_adapter", lora_name="new").status_code == 200
    assert "new" not in served(server)
    gone = server.post("/v1/completions", {"model": "new", "prompt": "a"})
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "model")
    assert ordered(server, "/v1/unload_lora_adapter", lora_name="new").status_code == 404


def test_an_adapter_that_cannot_be_loaded_is_refused(
    server: RunningServer, adapters: list[Path], tmp_path: Path
) -> None:
    """With vLLM's word on it, and the engine goes on."""
    broken = tmp_path / "broken"
    shutil.copytree(adapters[0], broken)
    (broken / "adapter_model.safetensors").write_bytes(b"no weights")
    for folder, why in ((tmp_path / "nothing", "No adapter found"), (broken, "vLLM: ")):
        refused = ordered(server, "/v1/load_lora_adapter", lora_name="bad", lora_path=str(folder))
        assert refused.status_code == 400, refused.text
        assert why in refused.json()["error"]["message"]
    own = ordered(server, "/v1/load_lora_adapter", lora_name=BASE, lora_path=str(adapters[0]))
    assert own.json()["error"]["param"] == "lora_name"
    assert served(server) == {BASE: None, "first": BASE}
    assert said(server, "first")


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_wake(server: RunningServer, level: int) -> None:
    """Asleep it is alive and not ready, refuses with 503 and when to come back; awake it says what it said before."""
    before, adapted = said(server, BASE), said(server, "first")
    body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert ordered(server, f"/sleep?level={level}").json() == {"is_sleeping": True, "level": level}
        events = [line for line in lines if line.startswith("data: ")]
    assert "put to sleep" in events[-1]
    assert server.get("/is_sleeping", ADMIN).json() == {"is_sleeping": True}
    assert (server.get("/health").status_code, server.get("/ready").status_code) == (200, 503)
    refused = server.post("/v1/completions", {"prompt": "a"})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert "asleep" in refused.json()["error"]["message"]
    state = ["awake", "weights_offloaded", "discard_all"][level]
    asleep = f'vllm:engine_sleep_state{{engine="0",model_name="{BASE}",sleep_state="{state}"}}'
    assert server.metrics()[asleep] == 1
    assert ordered(server, "/wake_up").json() == {"is_sleeping": False}
    assert server.metrics()[asleep] == 0
    assert server.get("/ready").status_code == 200
    assert (said(server, BASE), said(server, "first")) == (before, adapted)


def test_a_lower_priority_goes_first(server: RunningServer) -> None:
    """Of three that wait for the engine's two places, the last one that came begins first."""
    url, body = f"{server.url}/v1/completions", {"prompt": "Once", "ignore_eos": True, "stream": True}

    def ask(fields: dict[str, Any]) -> str:
        """Its id, at its end; nothing is sent while it waits."""
        return httpx.post(url, json=body | fields, timeout=120).headers["x-request-id"]

    with ThreadPoolExecutor(3) as pool, ExitStack() as running:
        asked, reading = [], []
        for _ in range(SLOTS):
            long = httpx.stream("POST", url, json=body | {"max_tokens": 1_500}, timeout=60)
            reading.append(running.enter_context(long).iter_lines())  # kept: its end would be the stream's
            next(reading[-1])
        for number, priority in enumerate((5, 0, -5), start=1):
            asked.append(pool.submit(ask, {"max_tokens": 8, "priority": priority}))
            wanted = {"tailrace_sequences_running": float(SLOTS), "tailrace_sequences_waiting": float(number)}
            server.wait_for(wanted, 30)
        running.close()
        ids = [answer.result() for answer in asked]
    server.wait_idle()
    begun = {record["request_id"]: record["queue_seconds"] for record in server.log_records(event="request")}
    assert begun[ids[2]] < begun[ids[1]] < begun[ids[0]]


def test_a_salt_keeps_prompts_apart(server: RunningServer) -> None:
    """Blocks of a prompt are found again under the same salt only."""
    prompt = [number % 20_000 + 700 for number in range(150)]

    def cached(**fields: Any) -> int:
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        usage = server.post("/v1/completions", body).json()["usage"]
        return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    assert (cached(cache_salt="a"), cached(cache_salt="b"), cached()) == (0, 0, 0)
    assert min(cached(cache_salt="a"), cached(cache_salt="b"), cached()) > 0
