"""The command doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from provision.doctor import CHECKS
from unit.cli.outcome import Outcome
from unit.doctor.host import DoctorHost

Call = Callable[..., Outcome]


def test_only_problems_are_shown_by_default(call: Call, tmp_path: Path) -> None:
    host = DoctorHost(tmp_path / "root")
    outcome = call("doctor", "--root", host.root)
    assert (outcome.code, outcome.out) == (0, f"{len(CHECKS)} ok\n")
    assert call("doctor", "--root", host.root, "--all").out.count("\n") == len(CHECKS) + 1
    host.file("proc/modules", "")
    outcome = call("doctor", "--root", host.root)
    assert outcome.code == 1
    first, cause, cure, summary = outcome.out.splitlines()
    assert first == "fail    loaded (v4l2loopback): not loaded: demo"
    assert cause.startswith("        cause: ")
    assert "provision load v4l2loopback" in cure
    assert summary == f"{len(CHECKS) - 1} ok, 1 fail"


def test_json_has_every_check(call: Call, tmp_path: Path) -> None:
    host = DoctorHost(tmp_path / "root")
    host.file("proc/sys/kernel/modules_disabled", "1")
    outcome = call("doctor", "--root", host.root, "--json")
    assert outcome.code == 1
    document = outcome.document
    assert {row["check"] for row in document["checks"]} == {check.id for check in CHECKS}
    assert document["states"] == {"ok": len(CHECKS) - 1, "fail": 1}
    (failed,) = [row for row in document["checks"] if row["state"] == "fail"]
    assert set(failed) == {"check", "state", "seen", "cause", "cure", "driver"}
