"""Alerts and dashboard in Debian's Prometheus, which scrapes what the agent writes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from kit.cache import REPOSITORY
from kit.fileserver import served
from kit.foreign import program_root
from kit.process import Daemon, run, wait_for
from kit.registry import free_port
from provision.agent.status import metrics_text
from unit.agent.well_and_refused import NEXT, everything

# Its package has 100 MB unpacked.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(2)]
_EXAMPLES = REPOSITORY / "docs/examples/monitoring"
_WITHIN_S = 60
_CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: node
    metrics_path: /provision.prom
    static_configs: [{{targets: ["{target}"]}}]
"""


@pytest.fixture(scope="module")
def programs() -> Path:
    """A folder with `prometheus` and `promtool`, of Debian's package."""
    return program_root("bookworm", "prometheus", alone=True) / "usr/bin"


def _expressions() -> list[str]:
    """The dashboard's expressions, as Grafana sends them with all drivers and hosts chosen."""
    document = json.loads((_EXAMPLES / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return [one.replace("$driver", ".*").replace("$instance", ".*") for one in found]


def test_prometheus_own_tool_reads_and_plays_the_rules(programs: Path, tmp_path: Path) -> None:
    promtool = programs / "promtool"
    said = run([promtool, "check", "rules", "--lint-fatal", _EXAMPLES / "provision-alerts.yml"])
    assert "9 rules found" in said.output
    run([promtool, "test", "rules", _EXAMPLES / "provision-alerts.test.yml"])
    # The dashboard's expressions, as rules, so that its parser reads them.
    rules = [{"record": f"x:{n}", "expr": one} for n, one in enumerate(_expressions())]
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run([promtool, "check", "rules", file]).output


@contextmanager
def _prometheus(programs: Path, folder: Path, exporter: str) -> Iterator[str]:
    target = exporter.removeprefix("http://")
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=_EXAMPLES / "provision-alerts.yml", target=target))
    address = f"127.0.0.1:{free_port()}"
    argv: list[str | Path] = [
        programs / "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    url = f"http://{address}"
    with Daemon(argv, log=folder / "log", ready=lambda: _answers(f"{url}/-/ready")):
        yield url


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except (requests.ConnectionError, requests.Timeout):
        return False


def _get(url: str, path: str, **params: str) -> Any:  # noqa: ANN401 - of JSON
    answer = requests.get(f"{url}/api/v1/{path}", params=params, timeout=10)
    assert answer.ok, answer.text
    return answer.json()["data"]


def test_a_real_prometheus_scrapes_fires_and_answers_the_dashboard(
    programs: Path, tmp_path: Path
) -> None:
    written = tmp_path / "exporter"
    written.mkdir()
    file = written / "provision.prom"
    file.write_text(metrics_text(everything(time=int(time.time()))))
    # As a node exporter serves what its textfile collector read.
    with served(written) as exporter, _prometheus(programs, tmp_path, exporter) as url:
        target = exporter.removeprefix("http://")

        def firing() -> list[Any]:
            return [a for a in _get(url, "alerts")["alerts"] if a["state"] == "firing"]

        (alert,) = wait_for("an alert", firing, within_s=_WITHIN_S)
        assert alert["labels"]["alertname"] == "ProvisionUntrusted"
        assert alert["labels"]["kernel"] == NEXT
        assert f"{target} refused an image of nvidia" in alert["annotations"]["summary"]
        pending = {a["labels"]["alertname"] for a in _get(url, "alerts")["alerts"]}
        assert {"ProvisionNextKernelNotReady", "ProvisionRunFailed"} <= pending
        for expression in _expressions():
            assert _get(url, "query", query=expression)["result"], expression
