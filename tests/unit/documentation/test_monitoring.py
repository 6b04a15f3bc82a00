"""Dashboard and alerts name what the agent writes, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kit.cache import REPOSITORY
from provision.agent.status import metrics_text
from unit.agent.well_and_refused import everything

_FOLDER = REPOSITORY / "docs/examples/monitoring"
_HOW_TO = REPOSITORY / "docs/how-to/see-a-fleet.md"
_METRIC = re.compile(r"\bprovision_[a-z_]+\b")
_SELECTOR = re.compile(r"(provision_[a-z_]+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"([a-z_]+)(?:=~|!~|!=|=)\"")
# What Prometheus itself gives every series.
_OF_PROMETHEUS = {"instance", "job"}


def _written() -> dict[str, set[str]]:
    """The metrics that the agent writes, with their labels."""
    found: dict[str, set[str]] = {}
    for line in metrics_text(everything()).splitlines():
        if line.startswith("provision_"):
            name = re.split(r"[{ ]", line)[0]
            found.setdefault(name, set()).update(re.findall(r'([a-z_]+)="', line))
    return found


def _rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((_FOLDER / "provision-alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def _dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / "grafana-dashboard.json").read_text())
    return found


def _expressions() -> Iterator[tuple[str, str]]:
    for rule in _rules():
        yield rule["alert"], rule["expr"]
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(
    ("where", "expression"), list(_expressions()), ids=[where for where, _ in _expressions()]
)
def test_every_metric_and_label_is_one_that_the_agent_writes(where: str, expression: str) -> None:
    written = _written()
    names = _METRIC.findall(expression)
    assert names, where
    assert set(names) <= set(written), where
    for name, selector in _SELECTOR.findall(expression):
        assert set(_LABEL.findall(selector)) <= written[name] | _OF_PROMETHEUS, where


def test_the_agents_metrics_are_all_shown_or_watched() -> None:
    used = {name for _, expression in _expressions() for name in _METRIC.findall(expression)}
    assert used == set(_written())


def test_the_reference_names_every_metric() -> None:
    text = (REPOSITORY / "docs/reference/provision.md").read_text()
    assert {name for name in _written() if f"`{name}`" not in text} == set()


def test_every_alert_has_a_scenario_and_a_row_that_says_what_to_do() -> None:
    alerts = [rule["alert"] for rule in _rules()]
    assert len(set(alerts)) == len(alerts)
    scenarios = yaml.safe_load((_FOLDER / "provision-alerts.test.yml").read_text())["tests"]
    fired = {
        one["alertname"]
        for scenario in scenarios
        for one in scenario["alert_rule_test"]
        if one.get("exp_alerts")
    }
    assert fired == set(alerts)
    rows = re.findall(r"^\| `(Provision[A-Za-z]+)` \|", _HOW_TO.read_text(), re.MULTILINE)
    assert rows == alerts
    for rule in _rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_dashboard_is_of_no_one_prometheus() -> None:
    document = _dashboard()
    variables = {one["name"] for one in document["templating"]["list"]}
    assert variables == {"datasource", "driver", "instance"}
    text = json.dumps(document)
    assert set(re.findall(r"\$\{?([a-z]+)\}?", text)) <= variables
    for panel in document["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(one["datasource"]["uid"] == "${datasource}" for one in panel["targets"])
