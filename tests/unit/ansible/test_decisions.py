"""The pure parts of modules: which Python, which mistakes, whose health, which images."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils import (
    health,
    program,
    pythons,
)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([((3, 9, 2), True)], None),
        ([((3, 9, 2), True), ((3, 12, 1), True)], (3, 12, 1)),
        ([((3, 13, 0), False), ((3, 11, 2), True)], (3, 11, 2)),
        ([], None),
    ],
)
def test_the_first_python_that_will_do_is_taken(
    found: list[tuple[tuple[int, ...], bool]], chosen: tuple[int, ...] | None
) -> None:
    described = [{"version": list(version), "has_venv": venv} for version, venv in found]
    usable = pythons.first_usable(described)
    assert (usable and tuple(usable["version"])) == chosen


def _status(**running: object) -> dict[str, Any]:
    slot = {
        "release": "6.1",
        "role": "running",
        "state": "ready",
        "digest": "abc",
        "reason": None,
        "resolution": None,
        "failure": None,
        **running,
    }
    driver = {"name": "nvidia", "is_ready": slot["state"] == "ready", "kernels": [slot]}
    return {"state": slot["state"], "drivers": [driver]}


@pytest.mark.parametrize(
    ("status", "ready", "prepared"),
    [
        (_status(), [], []),
        (
            _status(state="failed", reason="It was refused.", resolution="Look."),
            ["nvidia for 6.1 is failed: It was refused. Look."],
            [],
        ),
        (
            _status(state="missing", digest=None, reason="No headers."),
            ["nvidia for 6.1 is missing: No headers."],
            ["nvidia for 6.1 is missing: No headers."],
        ),
        (
            _status(reason="It fails.", failure={"reason": "check", "details": "No card."}),
            ["nvidia for 6.1 is ready: It fails. No card."],
            [],
        ),
        (_status(reason="It stays.", failure={"reason": "compile", "details": "x"}), [], []),
    ],
)
def test_a_host_is_judged_by_what_is_required(
    status: dict[str, Any], ready: list[str], prepared: list[str]
) -> None:
    assert health.shortcomings(status, "ready") == ready
    assert health.shortcomings(status, "prepared") == prepared
    assert health.shortcomings(status, "nothing") == []


def test_a_needed_reboot_is_seen_beside_a_failure() -> None:
    assert not health.is_reboot_required(_status(state="failed"))
    assert health.is_reboot_required(_status(state="reboot-required"))


class _Runner:
    def __init__(self, printed: str) -> None:
        self._printed = printed

    def run_command(self, args: list[str]) -> tuple[int, str, str]:
        return (2, self._printed, f"ran {args[-1]}")


def test_an_error_of_provision_is_shown_in_full() -> None:
    error = {
        "message": "It is wrong.",
        "mistakes": [{"path": "drivers.x", "message": "unknown"}],
        "details": None,
        "resolution": "Correct it.",
    }
    answer = program.call(_Runner(json.dumps({"error": error})), "/p", ["drivers"])
    assert answer.error == "It is wrong.\ndrivers.x: unknown\nCorrect it."
    with pytest.raises(program.ProgramError):
        program.call(_Runner("Traceback"), "/p", ["drivers"])
