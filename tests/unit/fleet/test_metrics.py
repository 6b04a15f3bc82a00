"""Hosts from metrics: what the agent writes is understood, whatever else is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.agent.publish import metrics_text
from provision.agent.status import Status
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.fleet import gather
from provision.fleet.gather import hosts_of_prometheus
from provision.fleet.metrics import hosts_of_files, parse_text
from unit.fleet.documents import KERNEL, NEXT, NOW
from unit.fleet.written import slot, status


@pytest.mark.parametrize(
    ("written", "state", "kernels"),
    [
        (status(), "ready", ["ready"]),
        (status(slot(), slot(NEXT, "pending")), "pending", ["ready", "pending"]),
        (status(slot(state="failed", reason="build")), "failed", ["failed"]),
        (status(slot(state="missing", reason="missing"), exit_code=3), "missing", ["missing"]),
        (
            status(slot(), slot(NEXT, "failed", "compile"), exit_code=1),
            "next-kernel-not-ready",
            ["ready", "failed"],
        ),
        (status(slot(state="reboot-required"), exit_code=4), "reboot-required", ["ready"]),
        (status(exit_code=2), "failed", ["ready"]),
    ],
)
def test_what_the_agent_writes_gives_its_state(
    tmp_path: Path, written: Status, state: str, kernels: list[str]
) -> None:
    (tmp_path / "web1.prom").write_text(f"# others'\nup 1\n{metrics_text(written)}")
    (host,) = hosts_of_files([tmp_path])
    assert (host.name, host.state, host.time, host.running) == ("web1", state, NOW, KERNEL)
    (driver,) = host.drivers
    assert [one.state for one in driver.kernels] == kernels
    assert (driver.kernels[0].version, driver.kernels[0].digest) == ("535.1", "0123456789ab")


def test_files_without_metrics_of_ours_are_rows_too(tmp_path: Path) -> None:
    file = tmp_path / "web1.prom"
    file.write_text("up 1\nprovision_ready{ 1\n")
    (host,) = hosts_of_files([file])
    assert host.state == "no-status"
    assert "line 2 is not a metric" in (host.reason or "")
    (tmp_path / "none").mkdir()
    with pytest.raises(NotFoundError, match=r"\.prom"):
        hosts_of_files([tmp_path / "none"])
    with pytest.raises(NotFoundError, match="no file"):
        hosts_of_files([tmp_path / "gone.prom"])


def test_instances_are_hosts_without_their_port_where_that_is_unique(tmp_path: Path) -> None:
    lines = [f'provision_ready{{instance="{one}"}} 1' for one in ("a:9100", "b:1", "b:2", "c")]
    file = tmp_path / "federate.prom"
    file.write_text("\n".join(lines))
    assert [host.name for host in hosts_of_files([file])] == ["a", "b:1", "b:2", "c"]


def vector(*results: tuple[dict[str, str], float]) -> bytes:
    found = [{"metric": labels, "value": [NOW, str(value)]} for labels, value in results]
    return json.dumps({"status": "success", "data": {"result": found}}).encode()


def test_a_prometheus_is_asked_for_hosts_and_for_those_that_it_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def get(url: str, *, limit: int) -> bytes:
        assert limit
        asked.append(url)
        where = {"driver": "nvidia", "kernel": KERNEL, "role": "running", "instance": "a:9100"}
        if "provision_driver_ready" in parse_qs(urlsplit(url).query)["query"][0]:
            return vector(({**where, "__name__": "provision_driver_ready"}, 1))
        return vector(({"instance": "b:9100"}, NOW - 86400))

    monkeypatch.setattr(gather, "get_small", get)
    ready, gone = hosts_of_prometheus("http://prometheus.example:9090/")
    assert (ready.name, ready.state) == ("a", "ready")
    assert (gone.name, gone.state, gone.time) == ("b", "unreachable", NOW - 86400)
    assert all(
        url.startswith("http://prometheus.example:9090/api/v1/query?query=") for url in asked
    )


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b'{"data": 1}', b'{"data": {"result": [{}]}}', b"[" * 100_000]
)
def test_what_is_no_prometheus_is_named(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr(gather, "get_small", lambda *_given, **_more: answer)
    with pytest.raises(ProvisionError, match="not a Prometheus"):
        hosts_of_prometheus("http://x")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnreachableError("x" * 900, details="y" * 900), "does not answer"),
        (NotFoundError("404 of a long address"), "is not a Prometheus"),
    ],
)
def test_an_address_that_is_wrong_is_named_in_short(
    monkeypatch: pytest.MonkeyPatch, error: ProvisionError, message: str
) -> None:
    def get(*_given: object, **_more: object) -> bytes:
        raise error

    monkeypatch.setattr(gather, "get_small", get)
    with pytest.raises(ProvisionError, match=f"'http://x' {message}") as caught:
        hosts_of_prometheus("http://x")
    assert len(caught.value.details or "") <= 400
    assert caught.value.resolution


def test_a_prometheus_without_our_metrics_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "get_small", lambda *_given, **_more: vector())
    with pytest.raises(NotFoundError, match="no metric of provision"):
        hosts_of_prometheus("http://x")


_LABEL = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)


@given(_LABEL, _LABEL)
def test_any_label_that_the_agent_writes_is_read_again(name: str, version: str) -> None:
    (row,) = status().drivers[0].kernels
    written = status(replace(row, version=version), name=name)
    samples, problems = parse_text(metrics_text(written))
    assert problems == []
    assert {one.labels["driver"] for one in samples if "driver" in one.labels} == {name}
    assert {one.labels["version"] for one in samples if "version" in one.labels} == {version}


@given(st.text(max_size=80))
def test_any_line_is_a_metric_or_a_problem(text: str) -> None:
    samples, problems = parse_text(f"provision_{text}")
    assert len(samples) + len(problems) >= 1
