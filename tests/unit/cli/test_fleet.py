"""``provision fleet status`` from the command line to its table, JSON, page and exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.cli.commands import fleet
from provision.fleet.host_status import Host
from unit.cli.outcome import Outcome
from unit.fleet.documents import document, driver, failed_document, kernel

Call = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Status files of three hosts, of now."""
    now = int(time.time())
    for name, found in {
        "web1": document(time=now),
        "web2": failed_document(time=now),
        "web3": failed_document("reboot-required", time=now),
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    return tmp_path


def test_the_table_has_what_needs_care(call: Call, folder: Path) -> None:
    result = call("fleet", "status", "--status", folder)
    assert result.code == 1
    assert "1 failed, 1 reboot required, 1 ready" in result.out
    assert "3 hosts: " in result.out
    assert "does not compile" in result.out
    assert "web1" not in result.out
    assert "web1" in call("fleet", "status", "--status", folder, "--all").out


def test_the_exit_code_is_of_the_hosts_that_are_meant(call: Call, folder: Path) -> None:
    (folder / "web2.json").unlink()
    assert call("fleet", "status", "--status", folder).code == 4
    (folder / "web3.json").unlink()
    assert call("fleet", "status", "--status", folder).code == 0
    (folder / "web1.json").write_text(json.dumps(document(time=1)))
    result = call("fleet", "status", "--status", folder)
    assert (result.code, "older than --max-age" in result.out) == (1, True)
    assert call("fleet", "status", "--status", folder, "--max-age", "0").code == 0


def test_json_is_one_document(call: Call, folder: Path) -> None:
    result = call("fleet", "status", "--status", folder, "--json", "--state", "failed")
    found = json.loads(result.out)
    assert result.code == found["exit_code"] == 1
    assert [host["name"] for host in found["hosts"]] == ["web2"]
    other = driver(kernel(), name="onload")
    (folder / "db1.json").write_text(json.dumps(document(other, time=int(time.time()))))
    result = call("fleet", "status", "--status", folder, "--json", "--driver", "onload")
    assert [host["name"] for host in json.loads(result.out)["hosts"]] == ["db1"]


def test_the_page_is_written(call: Call, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "fleet.html"
    result = call("fleet", "status", "--status", folder, "--html", page)
    assert f"page: {page}" in result.out
    assert page.read_text().startswith("<!DOCTYPE html>")
    result = call("fleet", "status", "--status", folder, "--html", tmp_path / "no/page.html")
    assert (result.code, "There is no folder" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "No source for the status"),
        (("--status", "/", "--metrics", "x"), "--metrics and --status can't be given together"),
        (("--status", "/", "--limit", "web*"), "--limit works with --inventory only"),
        (("--status", "/", "--max-age", "soon"), "'soon' is not a time"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, words: tuple[str, ...], message: str) -> None:
    result = call("fleet", "status", *words)
    assert (result.code, message in result.err) == (2, True), result.err


def test_addresses_and_files_of_metrics_are_distinguished(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(url: str) -> list[Host]:
        asked.append(url)
        return []

    monkeypatch.setattr(fleet, "hosts_of_prometheus", ask)
    file = tmp_path / "web1.prom"
    file.write_text("provision_ready 1\n")
    result = call("fleet", "status", "--metrics", file, "--metrics", "http://p:9090", "--json")
    assert asked == ["http://p:9090"]
    # The library's parser of addresses raises for this one.
    assert call("fleet", "status", "--metrics", "http://[").err == ""
    assert asked[1:] == ["http://["]
    assert json.loads(result.out)["counts"] == {"ready": 1}
