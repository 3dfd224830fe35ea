"""docs/parameters.md is what the code says today, and what the code says is what its checks do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.backends.unsupported import UNSUPPORTED, refuse_unsupported
from engine.errors import UnsupportedParameterError
from engine.types import EngineRequest, Grammar, SamplingParams, Simulation, Structure, StructureKind
from server.parameter_table import APIS, document, in_api, names, on_engine
from tests.server.replies import CHAT, COMPLETIONS, MESSAGES

FILE = Path(__file__).parents[2] / "docs" / "parameters.md"
PLAIN = SamplingParams(max_tokens=1)
ASKING: dict[str, dict[str, Any]] = {
    "structure": {"grammar": Grammar(Structure(StructureKind.REGEX, "a", "guided_regex"))},
    "simulate": {"simulation": Simulation((1,))},
    "allowed_token_ids": {"sampling": SamplingParams(max_tokens=1, allowed_token_ids=frozenset({1}))},
    "priority": {"priority": 1},
    "cache_salt": {"cache_salt": "a"},
    "bad_words": {"sampling": SamplingParams(max_tokens=1, bad_words=((1,),))},
}
"""For each thing that some engine refuses: a request that asks for it."""


def test_the_committed_table_is_the_codes() -> None:
    """Mend it with `python -m server.parameter_table > docs/parameters.md`."""
    assert FILE.read_text() == document()


@pytest.mark.parametrize("engine", UNSUPPORTED)
def test_the_table_is_what_the_engines_check_by(engine: str) -> None:
    """Each engine refuses exactly what its column calls refused, by the client's own field."""
    refuse_unsupported(EngineRequest("r", [1], PLAIN), engine)
    for what, fields in ASKING.items():
        request = EngineRequest("r", [1], **{"sampling": PLAIN, **fields})
        param = "guided_regex" if what == "structure" else what
        if on_engine(param, engine)[0] == "refused":
            with pytest.raises(UnsupportedParameterError) as refused:
                refuse_unsupported(request, engine)
            assert refused.value.param == param
        else:
            refuse_unsupported(request, engine)
    assert set(UNSUPPORTED[engine]) <= set(ASKING)


@pytest.mark.parametrize(("api", "path"), [("chat", CHAT), ("completions", COMPLETIONS)])
def test_what_an_api_refuses_is_a_400(http: httpx.Client, api: str, path: str) -> None:
    """Every field that the table calls refused is, by name; one that it calls unknown is let pass."""
    valid: dict[str, Any] = {"messages": MESSAGES} if api == "chat" else {"prompt": [905]}
    for name in names():
        verdict, reason = in_api(name, api)
        if verdict not in ("refused", "unknown"):
            continue
        response = http.post(path, json={**valid, "max_tokens": 1, name: "x"})
        assert response.status_code == (400 if verdict == "refused" else 200), name
        if verdict == "refused":
            error = response.json()["error"]
            assert error["param"] == name
            assert reason in error["message"]
    assert set(APIS[api].bounded) <= set(names())
