"""A fleet: order, counts, filters, age and the exit code."""

from __future__ import annotations

import json

import pytest

from provision.errors import ExitCode
from provision.fleet.host_status import Host, broken_host
from provision.fleet.report import make_report
from unit.fleet.documents import KERNEL, NEXT, NOW, document, driver, failed_document, host, kernel

GONE = broken_host("gone", "unreachable", "no route to host", "Try it by hand.")
REBOOT = failed_document("reboot-required")
PENDING = kernel(state="pending", is_ready=False)
COMING = kernel(NEXT, role="next", state="pending", is_ready=False)


def test_the_worst_come_first_and_names_in_their_natural_order() -> None:
    hosts = [host("web10"), host("web2"), GONE, host("db1", failed_document())]
    report = make_report(hosts, time=NOW)
    assert [one.name for one in report.hosts] == ["db1", "gone", "web2", "web10"]
    assert report.counts == {"failed": 1, "unreachable": 1, "ready": 2}


@pytest.mark.parametrize(
    ("hosts", "code"),
    [
        ([], ExitCode.DONE),
        ([host("a"), host("b", document(state="pending"))], ExitCode.DONE),
        ([host("a"), host("b", REBOOT)], ExitCode.IN_USE),
        ([host("a", failed_document()), host("b", REBOOT)], ExitCode.FAILED),
        ([host("a"), GONE], ExitCode.FAILED),
        ([host("a", document(state="quarantined", schema=2))], ExitCode.FAILED),
        ([host("a", document(driver(PENDING), state="pending"))], ExitCode.FAILED),
        ([host("a", document(driver(COMING), state="pending"))], ExitCode.DONE),
        ([host("a", document(time=NOW - 7201))], ExitCode.FAILED),
        ([host("a", document(time=NOW - 7200))], ExitCode.DONE),
        # A clock that is ahead, and text that is not a time, would hide an agent that has stopped.
        ([host("a", document(time=NOW + 7201))], ExitCode.FAILED),
        ([host("a", document(time="yesterday"))], ExitCode.FAILED),
    ],
)
def test_the_exit_code_is_the_worst_hosts(hosts: list[Host], code: ExitCode) -> None:
    assert make_report(hosts, time=NOW, oldest=7200).exit_code is code


def test_groups_count_hosts_by_driver_and_kernel() -> None:
    other = document(driver(kernel(version="535.2")))
    report = make_report([host("a"), host("b", other), host("c", failed_document())], time=NOW)
    (group,) = report.groups()
    assert (group.driver, group.kernel, group.role) == ("nvidia", KERNEL, "running")
    assert group.counts == {"failed": 1, "ready": 2}
    assert group.versions == ("535.1", "535.2")


def test_a_filter_by_driver_keeps_hosts_of_which_nothing_is_known() -> None:
    both = document(
        driver(),
        driver(kernel(state="failed"), name="onload", state="failed"),
        state="failed",
    )
    report = make_report([host("a", both), GONE], time=NOW, drivers=["nvidia"])
    assert [(one.name, one.state) for one in report.hosts] == [
        ("gone", "unreachable"),
        ("a", "ready"),
    ]
    assert make_report([host("a", both)], time=NOW, drivers=["zfs"]).hosts == ()


def test_a_filter_by_state_knows_stale() -> None:
    hosts = [host("old", document(time=0)), host("new"), GONE]
    for states, names in {("stale",): ["old"], ("unreachable", "stale"): ["gone", "old"]}.items():
        report = make_report(hosts, time=NOW, oldest=60, states=states)
        assert [one.name for one in report.hosts] == names
    assert make_report(hosts, time=NOW, states=["stale"]).hosts == ()


def test_the_document_is_json_and_says_what_the_exit_code_does() -> None:
    report = make_report([host("a"), GONE, host("old", document(time=0))], time=NOW, oldest=60)
    found = json.loads(json.dumps(report.document()))
    assert (found["schema"], found["exit_code"], found["stale"]) == (1, 1, 1)
    assert found["counts"] == {"unreachable": 1, "ready": 2}
    gone, _a, old = found["hosts"]
    assert (gone["name"], gone["reason"], gone["drivers"]) == ("gone", "no route to host", [])
    assert old["is_stale"]
    assert old["drivers"][0]["kernels"][0]["release"] == KERNEL
