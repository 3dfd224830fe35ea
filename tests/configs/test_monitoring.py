"""Prometheus' files and the dashboard: well-formed, alerts that fire when they should, no name that is not exported."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.debian_packages import program
from tests.running_server import RunningServer

CONFIGS = Path(__file__).parents[2] / "configs"
NAME = re.compile(r"\b(?:tailrace_|vllm:|process_)\w+")
"""A metric of ours in an expression. Recorded series, `tailrace:...`, are not."""


def promtool(*arguments: str | Path) -> None:
    """Fails with what promtool says."""
    command = [program("prometheus", "/usr/bin/promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def dashboard() -> Any:
    return json.loads((CONFIGS / "grafana.json").read_text())


def dashboard_expressions() -> list[str]:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CONFIGS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def exported(server: RunningServer) -> set[str]:
    """Every sample name that a scrape can have, those without a sample yet included."""
    text = server._client.get("/metrics").text
    families = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    endings = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
    return {name + ending for name, kind in families for ending in endings[kind]}


def assert_exported(server: RunningServer, expressions: Iterable[str]) -> None:
    named = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(named) > 5
    assert named <= exported(server)


def test_prometheus_takes_the_configuration() -> None:
    """Prometheus can start with it, its rules included."""
    promtool("check", "config", CONFIGS / "prometheus.yml")


def test_alerts_fire_when_they_should() -> None:
    """On made-up series, each fires on those that it should and stays silent on healthy ones."""
    promtool("test", "rules", CONFIGS / "alerts_test.yml")


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_is_tried(alert: dict[str, Any]) -> None:
    """Each is seen firing by promtool's tests, and tells whoever is woken how bad it is and what is wrong."""
    scenarios = yaml.safe_load((CONFIGS / "alerts_test.yml").read_text())["tests"]
    tried = [case for scenario in scenarios for case in scenario.get("alert_rule_test", ())]
    assert any(case["alertname"] == alert["alert"] and case.get("exp_alerts") for case in tried)
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert "$labels.instance" in alert["annotations"]["summary"]


def test_alerts_read_what_is_exported(echo_server: RunningServer) -> None:
    """A misspelled metric would make an alert that never fires."""
    assert_exported(echo_server, [rule["expr"] for rule in rules()])


def test_the_dashboard_reads_what_is_exported(echo_server: RunningServer) -> None:
    """No panel is empty for ever."""
    assert_exported(echo_server, dashboard_expressions())


def test_the_dashboards_queries_are_promql(tmp_path: Path) -> None:
    """Each panel's expression parses, its variables filled in."""
    filled = [expression.replace("$__rate_interval", "1m") for expression in dashboard_expressions()]
    records = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(filled)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    promtool("check", "rules", file)


def test_the_dashboard_runs_anywhere() -> None:
    """Its data source is a variable; panels do not overlap, and each says what it shows."""
    board = dashboard()
    assert board["templating"]["list"][0]["type"] == "datasource"
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        sources = [panel.get("datasource"), *(target["datasource"] for target in panel.get("targets", ()))]
        assert panel["type"] == "row" or all(source["uid"] == "${datasource}" for source in sources)
    titles = [panel["title"] for panel in board["panels"]]
    assert all(titles)
    assert len(set(titles)) == len(titles)
