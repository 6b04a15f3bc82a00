"""What is made of a guest's lines; guests that can't be run. The kernel's lines are Linux 6.1's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import KERNEL, make_artifact
from provision.errors import NotFoundError
from provision.kmod.guest import NotTriedError, Ran, run_guest
from provision.kmod.trial import judge
from provision.manifest import HostNeeds, Manifest

_INSERT = "modprobe: ERROR: could not insert '{}': {}"
_FAILED = "demo: {} could not be loaded: journalctl -k shows the kernel's reason"
_OOPS = "BUG: kernel NULL pointer dereference, address: 0000000000000000"
_LOADED = [f"demo: loaded {name}" for name in ("demo", "demo_more", "demo_extra")]
_NO_DEVICE = _INSERT.format("demo", "No such device")
_UNKNOWN = "Unknown symbol in module, or unknown parameter (see dmesg)"

# What the loader prints, what the kernel says, how the guest ends; the states of the three modules,
# the first one's error, and whether the kernel takes the driver. demo_more needs demo, and
# demo_extra is optional.
_CASES: dict[str, tuple[list[str], list[str], str, list[str], str | None, bool]] = {
    "all load": ([*_LOADED, "@load 0"], [], "ended", ["loaded"] * 3, None, True),
    "no device": (
        [_NO_DEVICE, _FAILED.format("demo"), "@load 1"],
        [],
        "ended",
        ["no-device", "not-tried", "not-tried"],
        "ENODEV",
        True,
    ),
    "an unknown symbol": (
        [_INSERT.format("demo", _UNKNOWN), _FAILED.format("demo"), "@load 1"],
        ["demo: Unknown symbol nobody (err -2)"],
        "ended",
        ["refused", "not-tried", "not-tried"],
        "ENOENT",
        False,
    ),
    "an optional one is refused": (
        [
            *_LOADED[:2],
            _INSERT.format("demo_extra", "Invalid argument"),
            "demo: left out demo_extra, which is optional",
            "@load 0",
        ],
        [],
        "ended",
        ["loaded", "loaded", "refused"],
        None,
        True,
    ),
    "one of the kernel's own is missing": (
        [
            "modprobe: FATAL: Module videodev not found in directory /lib/modules/6.1",
            _FAILED.format("videodev"),
            "@load 1",
        ],
        [],
        "ended",
        ["refused", "not-tried", "not-tried"],
        None,
        False,
    ),
    "the second crashes": (
        _LOADED[:1],
        [_OOPS, "Kernel panic - not syncing: Fatal exception"],
        "crashed",
        ["loaded", "crashed", "not-tried"],
        None,
        False,
    ),
    "an optional one crashes": (
        _LOADED[:2],
        [_OOPS],
        "crashed",
        ["loaded", "loaded", "crashed"],
        None,
        False,
    ),
    "the first hangs": ([], [], "limit", ["crashed", "not-tried", "not-tried"], None, False),
    "the last crashes when it goes": (
        [*_LOADED, "@load 0"],
        ["provision: unload", _OOPS],
        "crashed",
        ["loaded", "loaded", "crashed"],
        None,
        False,
    ),
}


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A driver of three modules."""
    made = make_artifact(tmp_path / "artifact")
    (demo,) = made.modules
    more = demo.model_copy(update={"name": "demo_more", "depends": ("demo",)})
    extra = demo.model_copy(update={"name": "demo_extra", "depends": ("demo_more",)})
    host = HostNeeds(optional=("demo_extra",))
    return made.model_copy(update={"modules": (extra, more, demo), "host": host})


def _ran(lines: list[str], console: list[str], end: Any) -> Ran:  # noqa: ANN401 - a word of Ran's
    said = ("Linux version 6.1", "provision: load", *console)
    return Ran(end, 0 if end == "ended" else None, tuple(lines), said, "tcg", 3.0)


@pytest.mark.parametrize("name", _CASES)
def test_each_module_has_its_own_outcome(name: str, manifest: Manifest) -> None:
    lines, console, end, states, error, passed = _CASES[name]
    trial = judge(manifest, _ran(lines, console, end), kernel=KERNEL)
    assert [one.module for one in trial.outcomes] == ["demo", "demo_more", "demo_extra"]
    assert [one.state for one in trial.outcomes] == states
    assert trial.outcomes[0].error == error
    assert trial.is_passed is passed
    if "missing" in name:
        assert "videodev" in (trial.outcomes[0].reason or "")
    # What is not as it should be has a reason, and what crashed the lines of its trace.
    assert all(one.reason for one in trial.outcomes if one.state != "loaded")
    crashed = [one for one in trial.outcomes if one.state == "crashed"]
    assert all(_OOPS in one.lines for one in crashed if _OOPS in console)


def test_what_stayed_is_named(manifest: Manifest) -> None:
    lines = [*_LOADED, "@load 0", "@unload 4", "@stayed demo", "@stayed demo_more"]
    trial = judge(manifest, _ran(lines, [], "ended"), kernel=KERNEL)
    assert trial.stayed == ("demo", "demo_more")


def test_an_artifact_of_another_kernel_says_nothing_of_this_one(manifest: Manifest) -> None:
    with pytest.raises(NotFoundError):
        judge(manifest, _ran(["@load 3"], [], "ended"), kernel="6.1.0-50-amd64")


@pytest.mark.parametrize("lacking", ["program", "memory", "architecture"])
def test_what_can_not_be_tried_is_no_verdict(
    lacking: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if lacking != "program":
        for name in ("qemu-system-x86_64", "setpriv"):
            (programs / name).write_text("#!/bin/sh\nexit 1\n")
            (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    with tempfile.TemporaryFile() as kernel, tempfile.TemporaryFile() as initramfs:
        # More than any machine has; nothing of it is written.
        initramfs.truncate((1 << 42) if lacking == "memory" else 4)
        architecture = "sparc" if lacking == "architecture" else "x86_64"
        with pytest.raises(NotTriedError):
            run_guest(architecture, kernel, initramfs, limit=1)
