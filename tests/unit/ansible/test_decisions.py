"""The pure parts of modules, and what hosts get of Python."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils import (
    bundles,
    health,
    program,
    pythons,
)
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kit.cache import REPOSITORY


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


_PYTHON: dict[str, Any] = {"version": [3, 13, 5], "machine": "x86_64", "libc": ["glibc", "2.17"]}
_TEXT = (REPOSITORY / "constraints.txt").read_text()
# A requirement with its options, over several lines.
_ENTRIES = [entry for entry in re.split(r"\n(?=[a-z])", _TEXT) if not entry.startswith("#")]
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: \\\n {4}--hash=sha256:[0-9a-f]{64})+\s*"
)


def test_every_package_is_pinned_by_version_and_sha256_and_for_every_python() -> None:
    assert len(_ENTRIES) > len(tomllib.loads(_project())["project"]["dependencies"])
    for entry in _ENTRIES:
        # No marker, no address: the same for all hosts, from whatever index a controller has.
        assert _ENTRY.fullmatch(entry), entry
    assert "://" not in _TEXT


def test_the_pins_are_what_provision_asks_for() -> None:
    found = [_ENTRY.fullmatch(entry) for entry in _ENTRIES]
    pins = {match["name"]: match["version"] for match in found if match}
    wanted = [Requirement(text) for text in tomllib.loads(_project())["project"]["dependencies"]]
    for requirement in wanted:
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
    # What installs them.
    assert "pip" in pins


def _project() -> str:
    return (REPOSITORY / "pyproject.toml").read_text()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout, as small as one can be."""
    folder = tmp_path / "checkout"
    (folder / "src/provision/__pycache__").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "constraints.txt").write_text("click==8.1\n")
    (folder / "src/provision/a.py").write_text("1\n")
    return folder


def _digest(source: Path, wheelhouse: Path | None = None, python: dict[str, Any] = _PYTHON) -> str:
    constraints = bundles.constraints_of(source)
    return bundles.inputs_digest(source, constraints, wheelhouse, python)


def test_an_archive_is_used_again_while_its_inputs_are_the_same(source: Path) -> None:
    first = _digest(source)
    (source / "src/provision/__pycache__/a.pyc").write_text("")
    (source / "notes.txt").write_text("not part of it\n")
    assert _digest(source) == first


@pytest.mark.parametrize("change", ["program", "constraints", "python", "wheelhouse"])
def test_another_archive_is_made_when_an_input_changed(
    source: Path, tmp_path: Path, change: str
) -> None:
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    wheel = wheelhouse / "click-8.1-py3-none-any.whl"
    wheel.write_text("a wheel")
    first = _digest(source, wheelhouse)
    python = _PYTHON
    if change == "program":
        (source / "src/provision/a.py").write_text("2\n")
    elif change == "constraints":
        (source / "constraints.txt").write_text("click==8.2\n")
    elif change == "python":
        python = {**_PYTHON, "version": [3, 11, 2]}
    else:
        # Of the same name and size.
        wheel.write_text("A wheel")
    assert _digest(source, wheelhouse, python) != first


def _archive(path: Path, **wheels: str) -> Path:
    folder = path.parent / f"{path.name}.d"
    folder.mkdir()
    with tarfile.open(path, "w") as opened:
        for name, content in wheels.items():
            (folder / f"{name}.whl").write_text(content)
            opened.add(folder / f"{name}.whl", f"{name}.whl")
    return path


def test_an_environment_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    def named(archive: Path) -> str:
        return bundles.contents_digest(bundles.checksums_in(archive))

    first = named(_archive(tmp_path / "1.tar", click="a", rich="b"))
    assert named(_archive(tmp_path / "2.tar", rich="b", click="a")) == first
    assert named(_archive(tmp_path / "3.tar", click="a", rich="newer")) != first
    assert named(_archive(tmp_path / "4.tar", click="a")) != first
    lines = "".join(
        f"{name}.whl {hashlib.sha256(text.encode()).hexdigest()}\n"
        for name, text in (("click", "a"), ("rich", "b"))
    )
    assert first == hashlib.sha256(lines.encode()).hexdigest()
