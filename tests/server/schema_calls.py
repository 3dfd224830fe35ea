"""Calls a simulated server with what its own OpenAPI document describes, and with what it does not; counts the answers.

    python -m tests.server.schema_calls --calls 5000

Schemathesis makes the calls: most keep to the document, every third breaks it. Never a server of somebody else's: it
starts one, on loopback. Ends with 1 where an answer is a 5xx, has a status or content type that is not documented for
its route, or a body that is not of the documented schema. A 504 is the one 5xx a client can ask for: its `timeouts`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Err, Result
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engine.model import demo_model_folder
from tests.running_server import RunningServer, simulated

SETTINGS = ("engine.step_interval_ms=0", "engine.tokens_per_step=64", "engine.max_model_len=512")
"""Answers of any length take no time: it is the door that is looked at."""
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
HEAVY = 8
"""How many times more calls go to a route that takes a body: there is most to get wrong."""
SECONDS = 30
Operation = APIOperation[Any, Any, Any, Any]


@dataclass(slots=True)
class Findings:
    """What came of the calls."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Calls, by route and status."""
    faults: dict[tuple[str, int, str], str] = field(default_factory=dict)
    """One example of each kind of fault, as a curl command."""

    @property
    def calls(self) -> int:
        return self.statuses.total()

    def take(self, case: Case[Any], response: Response) -> None:
        """Judges one answer."""
        route = case.operation.label
        self.statuses[route, response.status_code] += 1
        checks = CHECKS if _asked_for(case, response) else [not_a_server_error, *CHECKS]
        try:
            case.validate_response(response, checks=checks)
        except (Failure, FailureGroup) as error:
            self.faults.setdefault((route, response.status_code, _title(error)), case.as_curl_command())

    def report(self) -> str:
        """A line for each route, and each fault with how to repeat it."""
        lines = [f"{self.calls} calls, {len(self.faults)} kinds of faults"]
        for route in sorted({route for route, _ in self.statuses}):
            counts = sorted((status, count) for (one, status), count in self.statuses.items() if one == route)
            lines.append(f"  {route}: " + ", ".join(f"{count} x {status}" for status, count in counts))
        lines += [f"{route} {status}: {title}\n  {curl}" for (route, status, title), curl in self.faults.items()]
        return "\n".join(lines)


def _asked_for(case: Case[Any], response: Response) -> bool:
    return response.status_code == 504 and isinstance(case.body, dict) and bool(case.body.get("timeouts"))


def _title(error: Failure | FailureGroup) -> str:
    failures = error.exceptions if isinstance(error, FailureGroup) else (error,)
    return "; ".join(sorted({getattr(one, "title", type(one).__name__) for one in failures}))


def call_all(url: str, calls: int, first_seed: int) -> Findings:
    """About so many calls to the server at this address, the same ones for the same seed."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [_operation(result) for result in schema.get_all_operations()]
    weights = [HEAVY if operation.body else min(1, len(operation.path_parameters)) for operation in operations]
    findings = Findings()
    for operation, weight in zip(operations, weights, strict=True):
        _probe(operation, max(1, calls * weight // sum(weights)), first_seed, findings.take)
    return findings


def _operation(result: Result[Operation, InvalidSchema]) -> Operation:
    """A route of the document; raises for one that can't be read."""
    if isinstance(result, Err):
        raise result.err()
    return result.ok()


def _probe(operation: Operation, calls: int, first_seed: int, take: Callable[[Case[Any], Response], None]) -> None:
    @seed(first_seed)
    @settings(
        max_examples=calls,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=_cases(operation))
    def probe(case: Case[Any]) -> None:
        take(case, case.call(timeout=SECONDS))

    probe()


def _cases(operation: Operation) -> st.SearchStrategy[Case[Any]]:
    """What has no body can't be called wrongly."""
    kept = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if not operation.body:
        return kept
    return st.one_of(kept, _sparse(kept, operation), operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


@st.composite
def _sparse(draw: st.DrawFn, kept: st.SearchStrategy[Case[Any]], operation: Operation) -> Case[Any]:
    """A call with few of the optional fields: with all of them, some would nearly always be at odds with another."""
    case = draw(kept)
    if isinstance(case.body, dict):
        required = operation.body[0].definition["schema"].get("required", [])
        optional = sorted(case.body.keys() - set(required))
        wanted = draw(st.lists(st.sampled_from(optional), max_size=2)) if optional else []
        case.body = {name: value for name, value in case.body.items() if name in required or name in wanted}
    return case


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="repeats a run")
    arguments = parser.parse_args()
    flags = simulated(demo_model_folder(), *SETTINGS)
    with tempfile.TemporaryDirectory() as folder, RunningServer(*flags, log_folder=Path(folder)) as server:
        findings = call_all(server.url, arguments.calls, arguments.seed)
        server.wait_idle()
    sys.stdout.write(f"seed {arguments.seed}: {findings.report()}\n")
    return 1 if findings.faults else 0


if __name__ == "__main__":
    sys.exit(main())
