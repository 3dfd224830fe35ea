"""The rooms keep their rules (README, "The rooms"), and each rule is shown to catch what it forbids.

Never imports the code it judges; the rules themselves are in `house_rules`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import house_rules
from tests.house_rules import Rule, Source, parse, read_sources

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return read_sources(REPOSITORY)


def assert_kept(rule: Rule, sources: list[Source]) -> None:
    violations = list(rule(sources))
    assert not violations, "\n" + "\n".join(violations)


def test_the_tree_is_read(sources: list[Source]) -> None:
    """The rules judge every room: a reader that finds nothing would pass them all."""
    assert {source.module.partition(".")[0] for source in sources} == set(house_rules.ROOTS)


def test_engine_knows_no_server(sources: list[Source]) -> None:
    """Engine never imports server or client, so that it can be used without HTTP."""
    assert_kept(house_rules.engine_knows_no_server, sources)


def test_wire_takes_only_nouns(sources: list[Source]) -> None:
    """The wire takes types, errors, prompt and output from the engine, and nothing that runs."""
    assert_kept(house_rules.wire_takes_only_nouns, sources)


def test_pure_rooms_stay_pure(sources: list[Source]) -> None:
    """The pure rooms import no event loop, web framework, backend, log or clock."""
    assert_kept(house_rules.pure_rooms_stay_pure, sources)


def test_libraries_stay_in_their_rooms(sources: list[Source]) -> None:
    """Only its own backend imports vLLM or torch, and only the metrics import Prometheus."""
    assert_kept(house_rules.libraries_stay_in_their_rooms, sources)


def test_environment_is_read_in_config(sources: list[Source]) -> None:
    """Settings come in at one door in each package: its config.py."""
    assert_kept(house_rules.environment_is_read_in_config, sources)


def test_frames_are_written_in_sse(sources: list[Source]) -> None:
    """One file writes SSE's `data:` lines, so a frame is right everywhere or nowhere."""
    assert_kept(house_rules.frames_are_written_in_sse, sources)


def test_asgi_is_called_in_delivery(sources: list[Source]) -> None:
    """One room talks to the socket, so the account of what was sent can't be passed by."""
    assert_kept(house_rules.asgi_is_called_in_delivery, sources)


def test_dialects_stand_alone(sources: list[Source]) -> None:
    """No API dialect imports another."""
    assert_kept(house_rules.dialects_stand_alone, sources)


def test_imports_run_in_no_circle(sources: list[Source]) -> None:
    """Modules can be read from the leaves up, type-only and late imports included."""
    assert_kept(house_rules.imports_run_in_no_circle, sources)


def test_names_say_something(sources: list[Source]) -> None:
    """No file or folder is a drawer for the rest."""
    assert_kept(house_rules.names_say_something, sources)


def test_files_introduce_themselves(sources: list[Source]) -> None:
    """Every file opens with a docstring."""
    assert_kept(house_rules.files_introduce_themselves, sources)


def test_files_are_short(sources: list[Source]) -> None:
    """No file is longer than 300 lines."""
    assert_kept(house_rules.files_are_short, sources)


def test_functions_are_short(sources: list[Source]) -> None:
    """No function is longer than 60 lines."""
    assert_kept(house_rules.functions_are_short, sources)


def test_functions_take_few_parameters(sources: list[Source]) -> None:
    """No function has more than five parameters."""
    assert_kept(house_rules.functions_take_few_parameters, sources)


def test_tests_state_their_invariant() -> None:
    """Every test's docstring says what must hold, so that a failing one tells what broke."""
    assert_kept(house_rules.tests_state_their_invariant, read_sources(REPOSITORY, ["tests"]))


FORBIDDEN: list[tuple[Rule, str, str]] = [
    (house_rules.engine_knows_no_server, "engine/core.py", "import server.app"),
    (house_rules.engine_knows_no_server, "engine/core.py", "def late():\n    from client import probe"),
    (
        house_rules.engine_knows_no_server,
        "engine/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import server",
    ),
    (house_rules.wire_takes_only_nouns, "server/wire/sse.py", "from engine.core import Engine"),
    (house_rules.wire_takes_only_nouns, "server/wire/sse.py", "from engine import backends"),
    (house_rules.wire_takes_only_nouns, "server/wire/sse.py", "import engine"),
    (house_rules.pure_rooms_stay_pure, "engine/detokenizer/stop.py", "from asyncio import Queue"),
    (house_rules.pure_rooms_stay_pure, "server/lifecycle.py", "import time"),
    (house_rules.pure_rooms_stay_pure, "server/wire/chat_completions/request.py", "import starlette.responses"),
    (house_rules.libraries_stay_in_their_rooms, "engine/core.py", "import torch.nn"),
    (house_rules.libraries_stay_in_their_rooms, "engine/backends/transformers.py", "import vllm"),
    (house_rules.libraries_stay_in_their_rooms, "server/app.py", "from prometheus_client import Counter"),
    (house_rules.environment_is_read_in_config, "server/app.py", "import os\nkey = os.environ['KEY']"),
    (house_rules.environment_is_read_in_config, "engine/model.py", "from os import getenv"),
    (house_rules.frames_are_written_in_sse, "server/routes.py", "def f(x):\n    return f'data: {x}'"),
    (house_rules.frames_are_written_in_sse, "server/handler.py", "last = b'id: 1\\ndata:[DONE]'"),
    (house_rules.asgi_is_called_in_delivery, "server/auth.py", "async def f(send):\n    await send({})"),
    (
        house_rules.asgi_is_called_in_delivery,
        "server/app.py",
        "class A:\n    async def f(self):\n        await self._receive()",
    ),
    (house_rules.dialects_stand_alone, "server/wire/responses/encoder.py", "from server.wire.messages import encoder"),
    (
        house_rules.dialects_stand_alone,
        "server/wire/completions/request.py",
        "from ..chat_completions.request import Chat",
    ),
    (house_rules.dialects_stand_alone, "server/wire/messages/__init__.py", "from ..responses import request"),
    (house_rules.imports_run_in_no_circle, "engine/__init__.py", "from engine.stream import Stream"),
    (house_rules.names_say_something, "server/wire/utils.py", ""),
    (house_rules.names_say_something, "engine/common/text.py", ""),
    (house_rules.files_introduce_themselves, "engine/core.py", "x = 1"),
    (house_rules.files_are_short, "engine/core.py", "x = 1\n" * 301),
    (house_rules.functions_are_short, "engine/core.py", "async def f():\n" + "    x = 1\n" * 60),
    (house_rules.functions_take_few_parameters, "engine/core.py", "def f(a, b, c, d, e, *, g): ..."),
    (house_rules.functions_take_few_parameters, "engine/core.py", "class A:\n    def f(self, a, b, c, d, e, g): ..."),
    (house_rules.tests_state_their_invariant, "tests/test_core.py", "async def test_abort():\n    assert True"),
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (house_rules.engine_knows_no_server, "server/app.py", "import engine.core, client.probe"),
    (
        house_rules.wire_takes_only_nouns,
        "server/wire/sse.py",
        "from engine.types import FinishReason\nfrom engine import errors",
    ),
    (house_rules.wire_takes_only_nouns, "server/handler.py", "from engine.core import Engine"),
    (house_rules.pure_rooms_stay_pure, "engine/core.py", "import asyncio, logging, time"),
    (house_rules.pure_rooms_stay_pure, "engine/output/events.py", "from server.wire import timeline"),
    (house_rules.libraries_stay_in_their_rooms, "engine/backends/transformers/sampler.py", "import torch"),
    (house_rules.libraries_stay_in_their_rooms, "engine/backends/vllm.py", "from vllm.v1 import engine"),
    (house_rules.libraries_stay_in_their_rooms, "server/metrics.py", "import prometheus_client"),
    (house_rules.environment_is_read_in_config, "server/config.py", "import os\nkey = os.environ['KEY']"),
    (house_rules.environment_is_read_in_config, "engine/model.py", "import os\nos.replace('a', 'b')"),
    (house_rules.frames_are_written_in_sse, "server/wire/sse.py", "prefix = b'data: '"),
    (house_rules.frames_are_written_in_sse, "server/app.py", "'data: in prose'\nmessage = 'no data: nothing came'"),
    (house_rules.asgi_is_called_in_delivery, "server/delivery.py", "async def f(send):\n    await send({})"),
    (
        house_rules.asgi_is_called_in_delivery,
        "server/app.py",
        "async def f(app, a, receive, send):\n    await app(a, receive, send)",
    ),
    (house_rules.dialects_stand_alone, "server/wire/responses/encoder.py", "from server.wire.responses import request"),
    (house_rules.dialects_stand_alone, "server/routes.py", "from server.wire.responses import request"),
    (house_rules.imports_run_in_no_circle, "engine/__init__.py", "import engine"),
    (house_rules.names_say_something, "server/commonplace.py", ""),
    (house_rules.files_introduce_themselves, "engine/core.py", "'''What it is.'''"),
    (house_rules.files_are_short, "engine/core.py", "x = 1\n" * 300),
    (house_rules.functions_are_short, "engine/core.py", "def f():\n" + "    x = 1\n" * 59),
    (
        house_rules.functions_take_few_parameters,
        "engine/core.py",
        "class A:\n    def f(self, a, b, c, d, *more, e, **named): ...",
    ),
    (house_rules.functions_take_few_parameters, "server/cli.py", "@app.command()\ndef serve(a, b, c, d, e, g): ..."),
    (
        house_rules.functions_take_few_parameters,
        "engine/core.py",
        "def f(  # noqa: PLR0913 - why\n    a, b, c, d, e, g\n): ...",
    ),
    (
        house_rules.tests_state_their_invariant,
        "tests/test_core.py",
        "def test_abort():\n    'It frees.'\ndef other(): ...",
    ),
]

NEIGHBOUR = parse("engine/stream.py", '"""Imports its package."""\n\nimport engine\n')


@pytest.mark.parametrize(("rule", "path", "text"), FORBIDDEN)
def test_violation_is_caught(rule: Rule, path: str, text: str) -> None:
    """Each rule can fail: it names the file and line of what it forbids, wherever the import hides."""
    violations = list(rule([parse(path, text), NEIGHBOUR]))
    assert len(violations) == 1
    assert violations[0].startswith((f"{path}:", "import circle: "))


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED)
def test_neighbouring_code_is_left_alone(rule: Rule, path: str, text: str) -> None:
    """No rule forbids more than it says."""
    assert list(rule([parse(path, text)])) == []
