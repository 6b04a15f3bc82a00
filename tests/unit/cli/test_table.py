"""The command line as a table: state of a host x words -> exit code, document, what has changed.

Every row goes through the real entry point, and nothing of `provision` is replaced: `HostTree` lays
the host out as files. Areas of files stand for what users know: see `_AREAS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import ANY

import jsonschema
import pytest

from kit.cache import REPOSITORY
from kit.host_tree import DRIVER, KERNEL, NEXT, HostTree
from unit.cli.outcome import Outcome
from unit.cli.states import STATES

Call = Callable[..., Outcome]

_SCHEMA = json.loads((REPOSITORY / "docs/reference/status.schema.json").read_text())

_AREAS = {
    "status": r"run/provision/status\.json",
    "settings": r"var/lib/provision/\.provision\.toml",
    "entry": rf"var/lib/provision/{DRIVER}/[0-9a-f]{{12}}/.*",
    "in use": rf"var/lib/provision/{DRIVER}/(current|written\.json)",
    "previous": rf"var/lib/provision/{DRIVER}/previous",
    "kernels": rf"var/lib/provision/{DRIVER}/kernels/.*",
    "state": rf"var/lib/provision/{DRIVER}/(state|serials)\.json(\.unreadable-.*)?",
    "vendor file": rf"etc/oci-decorator/oci-decorator\.d/{DRIVER}\.json",
    "host": rf"(etc/ld\.so\.conf\.d|etc/modprobe\.d)/provision-{DRIVER}\.conf|usr/local/bin/.*",
    "modules": r"proc/modules|sys/module/.*|dev/kmsg",
    "units": r"etc/(systemd|udev|kernel)/.*",
    "store": r"var/lib/provision/\.units/.*|var/lib/provision/units\.json",
}
_STORED = {"entry", "kernels", "state"}
_ACTIVE = {"in use", "vendor file", "host"}
_UNITS = {"units", "store"}
# Another version that is in the store is put to use.
_BACK = {"in use", "previous", "kernels", "state", "vendor file", "modules", "status"}
_READY = {*_STORED, *_ACTIVE, "modules", "status", "settings"}

_DONE = {"changed": True}
_UNCHANGED = {"changed": False}
_NO_ACTIONS: dict[str, Any] = {"actions": [], "blocked": []}


def _actions(*kinds: str, kernel: str = KERNEL) -> dict[str, Any]:
    return {"actions": [{"kind": kind, "driver": DRIVER, "kernel": kernel} for kind in kinds]}


def _error(code: int, **members: object) -> dict[str, Any]:
    return {"error": {"exit_code": code, **members}}


def _state(state: str, **members: object) -> dict[str, Any]:
    return {"state": state, **members}


def _applied(state: str, *kinds: str, kernel: str = KERNEL) -> dict[str, Any]:
    return {**_actions(*kinds, kernel=kernel), "status": {"state": state}}


def _instead(name: str) -> dict[str, Any]:
    """A plan of what can't be had, which says what was meant; nothing follows on it."""
    return _actions("prepare") | {"artifacts": [{"source": "missing", "resolution": f"…{name}"}]}


def _refused(state: str, reason: str, code: int) -> dict[str, Any]:
    """An apply that makes nothing, and what is remembered of it."""
    failure = {"drivers": [{"kernels": [{"failure": {"reason": reason}}]}]}
    return _actions("prepare") | {"status": {"state": state, **failure}} | _error(code)


_FULL = ("prepare", "activate", "load")
_SWITCH = ("prepare", "unload", "activate", "load")
_UNTRUSTED, _REFUSES = ({"failure": {"reason": of}} for of in ("untrusted", "does-not-load"))
_FAILS, _WORKS = (
    {"drivers": [{"is_ready": True, "kernels": [{"version": version, "failure": failure}]}]}
    for version, failure in (("1.2", {"reason": "check"}), ("2.0", None))
)
_SAYS_NEWEST = {"drivers": [{"version": "1.2", "kernels": [{"reason": "…2.0"}]}]}
_MISTAKES = _error(2, mistakes=[{"path": "policy.unload"}, {"path": "policy.keep"}])
Row = tuple[str, str, int, Mapping[str, Any], set[str]]
_ROWS: list[Row] = [
    # Nothing is configured: what is looked at is not ready, and `apply` has nothing to do.
    ("empty", "status", 3, _state("not-configured", drivers=[]), set()),
    ("empty", "status --check", 3, _state("not-configured"), set()),
    ("empty", "plan", 3, _NO_ACTIONS, set()),
    ("empty", "apply", 0, _applied("not-configured"), {"status", "settings"}),
    ("empty", "apply --boot", 0, _applied("not-configured"), {"status"}),
    ("empty", "apply --dry-run", 3, _NO_ACTIONS, set()),
    ("empty", "doctor", 3, {"states": {"unknown": 1}}, set()),
    ("empty", "gc", 0, {"artifacts": [], "images": [], "packages": []}, set()),
    ("empty", "load", 3, _error(3), set()),
    ("empty", "unload", 3, _error(3), set()),
    ("empty", "load demo", 3, _error(3), set()),
    ("empty", "unload demo", 3, _error(3), set()),
    ("empty", "verify demo", 3, _error(3), set()),
    ("empty", "rollback demo", 3, _error(3), set()),
    ("empty", "drivers nvdia", 3, _error(3), set()),
    ("empty", "registry pull r.example/demo:1", 1, _error(1), set()),
    ("empty", "registry list demo", 2, _error(2), set()),
    ("empty", "build x --jobs 0", 2, _error(2), set()),
    ("empty", "prepare 6.1", 2, _error(2), set()),
    ("empty", "apply --boot --kernel 6.1", 2, _error(2), set()),
    ("empty", "units", 2, _error(2), set()),
    ("empty", "matrix", 3, _error(3), set()),
    ("empty", "matrix --build", 2, _error(2), set()),
    ("empty", "matrix fleet.toml --drivers demo", 2, _error(2), set()),
    ("empty", "matrix --drivers demo --push", 1, _error(1), set()),
    ("empty", "matrix --drivers demo --missing", 2, _error(2), set()),
    ("empty", "matrix --drivers demo --html /nowhere/at/all.html", 2, _error(2), set()),
    ("empty", "matrix --drivers demo --parallel 0", 2, _error(2), set()),
    ("empty", "matrix fleet.toml --push --missing", 2, _error(2), set()),
    ("empty", "matrix fleet.toml --key /k", 2, _error(2), set()),
    ("empty", "registry push demo drivers/demo:1", 2, _error(2), set()),
    ("empty", "registry push demo r.example/demo:1 --key /none.key", 2, _error(2), set()),
    ("empty", "registry sign r.example/demo:1", 1, _error(1), set()),
    ("empty", "build demo --push demo", 2, _error(2), set()),
    # Before a cell is looked for, let alone built.
    ("fleet", "matrix {folder}/fleet.toml --push", 1, _error(1), set()),
    ("empty", "export sysext demo --output {folder}/new", 2, _error(2), set()),
    ("ready", "export sysext demo --output {folder}", 2, _error(2), set()),
    ("ready", "export sysext demo --kernel 7.0.0 --output {folder}/new", 3, _error(3), set()),
    # Before a registry is asked.
    ("empty", "export kmm demo --registry r.example/a --namespace No_Name", 2, _error(2), set()),
    ("empty", "devices", 3, {"devices": {}}, set()),
    ("empty", "devices --rescan", 0, {"devices": {}, "changed": []}, set()),
    ("empty", "build x --kernle 6.1", 2, _error(2), set()),
    ("names no driver", "status", 3, _state("not-configured"), set()),
    ("names no driver", "apply", 0, _applied("not-configured"), {"status", "settings"}),
    # All mistakes of a file are reported together, by every command that reads it.
    ("mistakes", "status", 2, _MISTAKES, set()),
    ("mistakes", "plan", 2, _MISTAKES, set()),
    ("mistakes", "apply", 2, _MISTAKES, {"status"}),
    ("mistakes", "apply --boot", 2, _MISTAKES, {"status"}),
    ("mistakes", "rollback demo", 2, _MISTAKES, set()),
    ("mistakes", "rollback demo --dry-run", 2, _MISTAKES, set()),
    ("mistakes", "gc", 2, _MISTAKES, set()),
    ("mistakes", "load", 2, _MISTAKES, set()),
    ("mistakes", "doctor", 2, _MISTAKES, set()),
    ("no os-release", "facts", 3, _error(3), set()),
    ("no os-release", "doctor", 3, _error(3), set()),
    # A driver is wanted, and signed by a key of the host.
    ("wanted", "status", 0, _state("pending"), set()),
    ("wanted", "status --check", 1, _state("pending"), set()),
    ("wanted", "plan", 0, _actions(*_FULL) | {"artifacts": [{"source": "registry"}]}, set()),
    ("wanted", "apply --dry-run", 0, _actions(*_FULL), set()),
    ("wanted", "apply", 0, _applied("ready", *_FULL) | _DONE, _READY),
    ("wanted", "apply --timer", 0, _applied("ready", *_FULL), _READY),
    ("wanted", "apply --boot", 0, _applied("pending"), {"status"}),
    ("wanted", "doctor", 1, {"states": {"fail": 1}}, set()),
    ("wanted", "install demo", 2, _error(2), set()),
    ("wanted", "drivers vendor-file demo", 3, _error(3), set()),
    ("wanted", "registry list demo", 2, _error(2), set()),
    ("wanted, immutable", "apply", 0, _applied("ready", *_FULL), _READY),
    # What is not there, or not trusted, is not installed.
    ("wanted, offered by nobody", "plan", 3, _instead("--push"), set()),
    (
        "wanted, offered by nobody",
        "apply",
        3,
        _refused("missing", "no-artifact", 3),
        {"status", "settings", "state"},
    ),
    (
        "wanted, signed by a stranger",
        "apply",
        1,
        _refused("failed", "untrusted", 1),
        {"status", "settings", "state"},
    ),
    ("wanted, signed by a stranger", "plan", 1, {"artifacts": [{"source": "missing"}]}, set()),
    ("wanted, signed at last", "apply", 0, _applied("ready", *_FULL), _READY - {"settings"}),
    (
        "wanted, not signed",
        "apply",
        1,
        _refused("failed", "untrusted", 1),
        {"status", "settings", "state"},
    ),
    (
        "wanted, no keys",
        "apply",
        1,
        _applied("failed", "prepare") | _error(1),
        {"status", "settings", "state"},
    ),
    ("wanted, no keys", "doctor", 1, {"states": {"fail": 2}}, set()),
    (
        "wanted, to be built",
        "apply",
        3,
        _applied("missing", "prepare") | _error(3),
        {"status", "settings", "state"},
    ),
    ("wanted, to be built", "plan", 3, {"artifacts": [{"source": "missing"}]}, set()),
    (
        "wanted, of an ended branch",
        "plan",
        0,
        {"artifacts": [{"source": "registry", "ended": {}, "old": [{}]}]},
        set(),
    ),
    ("wanted, to be built", "build demo", 3, _error(3), set()),
    ("wanted, to be built", "resolve demo", 3, _error(3), set()),
    # Without an engine, nothing is asked of a mirror, and no image is missed.
    ("no engine, a mirror", "build demo", 3, _error(3, details="…no-engine.sock"), set()),
    ("no engine, a mirror", "plan", 3, _instead("[engine] host"), set()),
    ("wanted, to be built", "build demo --render {root}/etc", 2, _error(2), set()),
    # What the recipe knows of the kernel is so for what others have built too.
    (
        "wanted, fails here",
        "apply",
        3,
        _refused("missing", "missing", 3),
        {"status", "settings", "state"},
    ),
    ("wanted, fails here", "plan", 3, {"artifacts": [{"source": "missing"}]}, set()),
    ("wanted, newest fails here", "plan", 0, {"artifacts": [{"version": "1.2"}]}, set()),
    ("wanted, untried", "apply", 0, _applied("ready", *_FULL), _READY),
    (
        "wanted, untried and refused",
        "apply",
        3,
        _refused("missing", "missing", 3),
        {"status", "settings", "state"},
    ),
    ("carried, fails here", "install oci:{folder}/carried/demo:1", 3, _error(3), set()),
    ("carried, fails here", "install oci:{folder}/carried/demo:1 --dry-run", 3, _error(3), set()),
    (
        "carried, fails here",
        "install oci:{folder}/carried/demo:1 --force",
        0,
        _DONE,
        {*_STORED, *_ACTIVE},
    ),
    # What is misspelt is not waited for: what was meant, or is there, is said.
    (
        "wanted, misspelt flavour",
        "status",
        0,
        _state("missing", drivers=[{"kernels": [{"resolution": "…'open'"}]}]),
        set(),
    ),
    ("wanted, misspelt flavour", "status --check", 3, _state("missing"), set()),
    ("wanted, misspelt flavour", "plan", 3, _instead("'open'"), set()),
    ("wanted, misspelt flavour", "doctor", 1, {"states": {"fail": 1}}, set()),
    (
        "wanted, misspelt flavour",
        "apply",
        3,
        _refused("missing", "missing", 3),
        {"status", "settings", "state"},
    ),
    ("wanted, misspelt version", "status --check", 3, _state("missing"), set()),
    ("wanted, misspelt version", "plan", 3, _instead("'production'"), set()),
    ("wanted, no such version", "plan", 3, _instead("1.2"), set()),
    ("its recipe broken", "plan", 1, {"artifacts": [{"details": "…flavours"}]}, set()),
    *(
        ("ready", f"{words} demmo", 3, _error(3, resolution="…'demo'"), set[str]())
        for words in ("load", "unload", "verify", "verify --boot", "rollback", "plan")
    ),
    (
        "wanted",
        f"verify --boot --kernel {KERNEL} demmo",
        3,
        _error(3, resolution="…'demo'"),
        set(),
    ),
    # What others have on the host stays, and is named.
    (
        "wanted, vendor file of an admin",
        "apply",
        1,
        _applied("failed", *_FULL),
        {*_STORED, "modules", "status", "settings"},
    ),
    (
        "wanted, DKMS has it too",
        "status",
        0,
        _state("pending", drivers=[{"other": {"driver": DRIVER}}]),
        set(),
    ),
    ("wanted, DKMS has it too", "plan", 0, {"others": [{"driver": DRIVER}]}, set()),
    ("wanted, DKMS has it too", "apply", 0, {"others": [{"driver": DRIVER}]}, _READY),
    # The kernel says no.
    ("wanted, the kernel refuses it", "apply", 1, _applied("failed", *_FULL), _READY),
    ("wanted, conflict", "apply", 0, _applied("ready", *_FULL), _READY),
    (
        "wanted, conflict in use",
        "apply",
        4,
        _applied("reboot-required", *_FULL),
        _READY - {"modules"},
    ),
    # A ready host is left alone.
    ("ready", "status", 0, _state("ready", drivers=[{"version": "1.2", "loaded": "yes"}]), set()),
    ("ready", "status --check", 0, _state("ready"), set()),
    ("ready", "plan", 0, _NO_ACTIONS | {"artifacts": [{"source": "store"}]}, set()),
    ("ready", "apply", 0, _applied("ready") | _UNCHANGED, {"status"}),
    ("ready", "apply --boot", 0, _applied("ready") | _UNCHANGED, {"status"}),
    ("ready", "apply --update", 0, _applied("ready", "prepare"), {"status"}),
    # What no one offers any more works on; plan and apply say the same.
    *(
        ("ready, offered by nobody any more", f"{words} --update", 0, _actions("prepare"), changed)
        for words, changed in (("plan", set[str]()), ("apply", {"status"}))
    ),
    # What may be made is no matter of what is in use.
    ("ready, other policy", "status --check", 0, _state("ready"), set()),
    ("ready, other policy", "plan", 0, _NO_ACTIONS, set()),
    ("ready, other policy", "apply", 0, _applied("ready") | _UNCHANGED, {"status", "settings"}),
    ("ready", "gc", 0, {"artifacts": []}, set()),
    ("ready", "doctor", 0, {"states": {"warn": 1}}, set()),
    ("ready", "verify demo", 0, {"findings": []}, set()),
    ("ready", "rollback demo", 3, _error(3), set()),
    ("ready", "load", 0, {"drivers": [{"modules": [], "changed": False}]}, set()),
    ("ready", "unload", 0, {"drivers": [{"modules": [DRIVER], "changed": True}]}, {"modules"}),
    ("ready", "unload --dry-run", 0, {"drivers": [{"modules": [DRIVER]}]}, set()),
    ("ready", f"apply --kernel {NEXT}", 3, {"lacking": [{"kernel": NEXT}]}, {"status", "state"}),
    # What was built against the other one need not load after a reboot.
    ("kernel built again", "status --check", 1, _state("pending"), set()),
    ("rebooted", "status --check", 1, _state("pending", drivers=[{"loaded": "no"}]), set()),
    ("rebooted", "apply --boot", 0, _applied("ready", "load"), {"modules", "status"}),
    ("rebooted", "load", 0, {"drivers": [{"modules": [DRIVER], "changed": True}]}, {"modules"}),
    (
        "rebooted",
        "load --dry-run",
        0,
        {"drivers": [{"modules": [DRIVER], "changed": False}]},
        set(),
    ),
    ("rebooted", "load nothing demo", 3, _error(3), {"modules"}),
    ("rebooted", "doctor", 1, {"states": {"fail": 1}}, set()),
    ("in use", "unload", 4, _error(4, users=[{"module": DRIVER}]), set()),
    ("in use", "unload --dry-run", 4, _error(4), set()),
    ("in use", "apply", 0, _applied("ready"), {"status"}),
    # Another version: switched to while nobody uses the old one.
    ("newer", "plan", 0, _actions(*_SWITCH), set()),
    ("newer", "apply", 0, _applied("ready", *_SWITCH), _READY - {"host"} | {"previous"}),
    # It is still to be made; once it is there, only the reboot is missing.
    ("newer, in use", "status --check", 1, _state("reboot-required"), set()),
    ("newer, in use, made", "status --check", 4, _state("reboot-required"), set()),
    ("wanted, conflict in use, made", "status --check", 4, _state("reboot-required"), set()),
    (
        "newer, in use",
        "apply",
        4,
        _applied("reboot-required", "prepare"),
        {*_STORED, "status", "settings"},
    ),
    ("two versions", "status", 0, _state("ready", drivers=[{"version": "2.0"}]), set()),
    ("two versions", "rollback demo --dry-run", 0, {"driver": DRIVER}, set()),
    (
        "two versions",
        "rollback demo",
        0,
        _applied("ready", "unload", "activate", "load"),
        _BACK,
    ),
    ("two versions", "rollback other", 3, _error(3), set()),
    # Of the same size: only its checksum says so.
    ("two versions, previous library altered", "rollback demo", 3, _error(3), set()),
    (
        "two versions, none whole, booted",
        "apply --boot",
        1,
        _applied("pending"),
        {"state", "status"},
    ),
    (
        "two versions, a third while in use",
        "apply",
        4,
        _applied("reboot-required", "prepare"),
        {*_STORED, "status", "settings"},
    ),
    ("two versions", "gc", 0, {"artifacts": []}, set()),
    ("two versions, keep none", "gc --dry-run", 0, {"artifacts": [{"driver": DRIVER}]}, set()),
    (
        "two versions, keep none",
        "gc",
        0,
        {"artifacts": [{"driver": DRIVER}]},
        {"entry", "previous"},
    ),
    (
        "two versions, keep none",
        "apply --timer",
        0,
        _applied("ready"),
        {"entry", "previous", "settings", "status"},
    ),
    ("two versions, not wanted any more", "rollback demo", 3, _error(3), set()),
    ("two versions, not wanted any more", "rollback demo --dry-run", 3, _error(3), set()),
    (
        "two versions, newest altered, booted",
        "apply --boot",
        0,
        _applied("pending", "activate", "load"),
        _BACK,
    ),
    ("rolled back", "apply", 0, _applied("ready") | _UNCHANGED, {"status"}),
    ("rolled back", "apply --update --retry", 0, _applied("ready", *_SWITCH), _BACK),
    ("rolled back", "apply --retry", 0, _applied("ready", *_SWITCH), _BACK),
    # What the kernel refused is remembered as that, and the driver that worked works on.
    ("newest refused", "rollback demo", 3, _error(3), set()),
    ("newest refused", "status --check", 0, _SAYS_NEWEST, set()),
    ("newest refused, at boot", "status --check", 0, _SAYS_NEWEST, set()),
    ("newest refused, rebooted", "apply --boot", 0, _actions("load"), {"modules", "status"}),
    (
        "newest refused, next kernel",
        "apply",
        1,
        {"status": {"drivers": [{"kernels": [{"version": "1.2"}, {"version": "1.2"}]}]}},
        {*_STORED, "status"},
    ),
    (
        "newest refused, named, next kernel",
        "apply",
        1,
        {
            "status": {
                "drivers": [{"kernels": [{"version": "1.2"}, {"version": None, "state": "failed"}]}]
            }
        },
        {"state", "status"},
    ),
    # Without a driver, the version that another kernel refused is tried.
    (
        "newest refused, named, next kernel runs",
        "apply",
        0,
        _applied("ready", *_FULL, kernel=NEXT),
        {*_STORED, "in use", "previous", "modules", "status", "vendor file"},
    ),
    ("two versions, older refused", "rollback demo", 1, _error(1), {"modules", "state", "status"}),
    ("two versions, not rolled back", "status --check", 0, _WORKS, set()),
    ("two versions, not rolled back", "apply", 0, _applied("ready"), {"status"}),
    (
        "two versions, older refused, waits for the boot",
        "apply --boot",
        1,
        {"status": _WORKS},
        {"modules", "kernels", "state", "status"},
    ),
    # What failed its own check is tried again by a retry, named or not, and by nothing else.
    ("check failed", "apply", 1, {"actions": [], "status": _FAILS}, {"status"}),
    ("check failed", "status --check", 0, _state("failed"), set()),
    ("check failed", "apply --retry", 1, {"status": _FAILS}, {"status", "state"}),
    (
        "check failed, not named",
        "apply --retry",
        1,
        {"status": _FAILS},
        {"status", "state"},
    ),
    ("check failed, works now", "apply --retry", 0, {"status": _WORKS}, _BACK),
    ("check failed, not named, works now", "apply --retry", 0, {"status": _WORKS}, _BACK),
    ("older named", "apply", 0, _applied("ready", *_SWITCH), {*_BACK, "settings"}),
    ("named, newer offered", "apply --update", 0, _applied("ready") | _UNCHANGED, {"status"}),
    (
        "store gone",
        "apply",
        0,
        _applied("ready", "prepare", "activate"),
        {*_STORED, "in use", "status"},
    ),
    # Neither takes a driver out of use: a crash may have emptied the file.
    ("settings gone", "apply", 0, {"actions": []}, {"status", "settings"}),
    ("settings emptied", "apply", 0, {"actions": []}, {"status", "settings"}),
    # A version goes back only if that is asked for; what can't be had costs nothing.
    ("ready, older offered", "plan", 1, {"artifacts": [{"source": "missing"}]}, set()),
    ("ready, older offered", "apply", 1, _applied("failed", "prepare"), {"status", "state"}),
    (
        "ready, older offered",
        "apply --allow-downgrade --retry",
        0,
        _applied("ready", *_SWITCH),
        _READY - {"host", "settings"} | {"previous"},
    ),
    # What is wrong with a newer version is in the status, and what works stays.
    (
        "newest, signed by a stranger",
        "apply --update",
        1,
        _applied("failed", "prepare")
        | {"status": {"drivers": [{"is_ready": True, "kernels": [_UNTRUSTED]}]}},
        {"status", "state"},
    ),
    (
        "next kernel, refuses a newer version",
        "apply --update",
        1,
        {"status": {"drivers": [{"is_ready": True, "kernels": [{}, _REFUSES]}]}},
        {"status", "state", "entry"},
    ),
    ("next kernel, refused a newer version", "status --check", 0, {}, set()),
    # A kernel that is named is that kernel's matter.
    (
        "rolled back",
        f"apply --kernel {NEXT}",
        3,
        _actions("prepare", kernel=NEXT),
        {"status", "state"},
    ),
    # The next kernel has its modules before the reboot, or that is said.
    ("next kernel", "status --check", 1, _state("pending"), set()),
    ("next kernel", "plan", 3, _actions("prepare", kernel=NEXT), set()),
    (
        "next kernel",
        "apply",
        3,
        _applied("next-kernel-not-ready", "prepare", kernel=NEXT),
        {"status", "state"},
    ),
    ("next kernel", "doctor", 1, {"states": {"fail": 1}}, set()),
    (
        "next kernel, offered",
        "plan",
        0,
        {
            "artifacts": [
                {"kernel": KERNEL, "source": "store", "version": "1.2"},
                {"kernel": NEXT, "source": "registry", "version": "1.2"},
            ]
        },
        set(),
    ),
    # A reboot would cost the driver, whoever decided on it.
    ("next kernel, not made before", "status --check", 1, _state("pending"), set()),
    ("next kernel, not made before", "apply", 0, _applied("pending"), {"status", "settings"}),
    (
        "next kernel, not made before",
        "plan",
        0,
        {"artifacts": [{"source": "store"}, {"kernel": NEXT, "source": "missing"}]},
        set(),
    ),
    (
        "next kernel, offered",
        "apply",
        0,
        _applied("ready", "prepare", kernel=NEXT),
        {*_STORED, "status"},
    ),
    # A kernel that does not take the modules is known before the reboot; what there was stays.
    (
        "next kernel, refuses",
        "apply",
        1,
        _applied("next-kernel-not-ready", "prepare", kernel=NEXT),
        {"entry", "status", "state"},
    ),
    ("next kernel, refused", "status --check", 1, _state("next-kernel-not-ready"), set()),
    ("next kernel, refused", "plan", 1, {"actions": []}, set()),
    ("next kernel, refused", "load", 0, {"drivers": [{"changed": False}]}, set()),
    # What the kernel refused can be tried again, and is in use nowhere.
    (
        "next kernel, refused",
        f"verify --boot --kernel {NEXT} demo",
        1,
        _error(1, boot={"outcomes": [{"state": "refused"}]}),
        set(),
    ),
    ("next kernel", f"verify --boot --kernel {NEXT} demo", 3, _error(3), set()),
    (
        "next kernel, refused, trials off",
        "apply",
        0,
        {"status": {"state": "ready"}},
        {*_STORED, "status", "settings"},
    ),
    (
        "next kernel, ready",
        f"verify --boot --kernel {NEXT} demo",
        0,
        {"boot": {"kernel": NEXT, "outcomes": [{"module": DRIVER, "state": "loaded"}]}},
        set(),
    ),
    # What was made without a trial is tried as soon as that is possible, and said to be untried.
    (
        "next kernel, made without a trial",
        "status --check",
        0,
        _state("ready", drivers=[{"kernels": [{}, {"reason": ANY}]}]),
        set(),
    ),
    ("next kernel, made without a trial", "plan", 0, _actions("try", kernel=NEXT), set()),
    (
        "next kernel, made without a trial",
        "apply",
        0,
        _applied("ready", "try", kernel=NEXT),
        {"status", "state"},
    ),
    (
        "next kernel, made without a trial, refuses",
        "apply",
        1,
        _applied("next-kernel-not-ready", "try", kernel=NEXT),
        {"status", "state", "kernels"},
    ),
    ("next kernel, can't be tried", "apply", 0, _applied("ready"), {"status"}),
    (
        "next kernel, can't be tried",
        "apply --retry",
        0,
        _applied("ready", "try", kernel=NEXT),
        {"status", "state"},
    ),
    ("next kernel, can't be tried", "doctor", 0, {"states": {"warn": 2}}, set()),
    # A guest enforces what the host does, whoever made it do so, or that is said to be untried.
    (
        "next kernel, ready, locked down",
        f"verify --boot --kernel {NEXT} demo",
        1,
        _error(1, boot={"outcomes": [{"state": "refused"}]}),
        set(),
    ),
    (
        "next kernel, ready, not locked down",
        f"verify --boot --kernel {NEXT} demo",
        0,
        {"boot": {"untried": []}},
        set(),
    ),
    (
        "next kernel, ready, locked down, signed here",
        f"verify --boot --kernel {NEXT} demo",
        0,
        {"boot": {"untried": [ANY]}},
        set(),
    ),
    (
        "next kernel, ready, Secure Boot",
        f"verify --boot --kernel {NEXT} demo",
        0,
        {"boot": {"untried": [ANY]}},
        set(),
    ),
    ("next kernel, ready", f"verify --kernel {NEXT} demo", 2, _error(2), set()),
    # Of a kernel that may boot and can't be looked at, every command says the same.
    ("next kernel, unfinished", "status", 0, _state("next-kernel-not-ready"), set()),
    ("next kernel, unfinished", "status --check", 3, _state("next-kernel-not-ready"), set()),
    ("next kernel, unfinished", "plan", 3, _NO_ACTIONS, set()),
    (
        "next kernel, unfinished",
        "apply",
        3,
        _applied("next-kernel-not-ready") | _error(3),
        {"status"},
    ),
    ("next kernel, unfinished", "apply --boot", 0, _applied("next-kernel-not-ready"), {"status"}),
    ("next kernel, ready", "status --check", 0, _state("ready"), set()),
    ("next kernel, ready", "gc", 0, {"artifacts": []}, set()),
    (
        "next kernel runs",
        "apply --boot",
        0,
        _applied("ready", "activate", "load", kernel=NEXT),
        {"in use", "previous", "modules", "status", "state"},
    ),
    ("next kernel runs", "load", 0, {"drivers": [{"modules": [DRIVER]}]}, {"modules"}),
    ("unprepared kernel runs", "load", 3, _error(3), set()),
    ("unprepared kernel runs", "apply --boot", 0, _applied("pending"), {"status"}),
    ("unprepared kernel runs", "gc", 0, {"artifacts": []}, set()),
    # All that is ours goes, whether provision.toml names it or not; nothing else.
    ("empty", "uninstall", 0, _UNCHANGED, set()),
    ("mistakes", "uninstall", 0, _UNCHANGED, set()),
    ("ready", "uninstall", 0, _DONE | {"reboot_required": False}, _READY),
    ("ready", "uninstall --dry-run", 0, _UNCHANGED, set()),
    ("in use", "uninstall", 4, _DONE | {"reboot_required": True}, _READY - {"modules"}),
    ("units", "uninstall", 0, _DONE, _UNITS),
    ("two versions, not wanted any more", "uninstall", 0, _DONE, _READY | {"previous"}),
    ("left by 0.1.0", "uninstall", 0, _DONE, _READY | {"previous"}),
    ("broken state", "uninstall", 0, _DONE, _READY),
    ("state of a newer provision", "uninstall", 1, _error(1), set()),
    # A driver goes as it came.
    ("not wanted any more", "status", 0, _state("pending"), set()),
    ("not wanted any more", "plan", 0, _actions("unload", "retire"), set()),
    ("not wanted any more", f"plan {DRIVER}", 0, _actions("unload", "retire"), set()),
    # What is named is all that it is about.
    ("newer", "plan dem", 3, _error(3), set()),
    ("newer", f"plan {DRIVER}", 0, _actions(*_SWITCH), set()),
    ("ready, beside a misspelt", "plan", 3, {"blocked": []}, set()),
    ("ready, beside a misspelt", f"plan {DRIVER}", 0, _NO_ACTIONS, set()),
    (
        "not wanted any more",
        "apply",
        0,
        _applied("not-configured", "unload", "retire"),
        _READY - {"entry"},
    ),
    # Damage is found before it is loaded, and healed.
    ("damaged", "verify demo", 1, _error(1, findings=[{"kind": "altered"}]), set()),
    ("damaged", "status --check", 1, _state("pending"), set()),
    ("damaged", "doctor", 1, {"states": {"fail": 1}}, set()),
    ("damaged", "apply", 0, _applied("ready", "prepare"), {"entry", "state", "status"}),
    # So is that of its files on the host; what an admin has changed is said, and stays.
    *(
        row
        for state, area in {
            "blacklist emptied": "host",
            "library folder gone": "host",
            "program gone": "host",
            "vendor file emptied": "vendor file",
        }.items()
        for row in (
            (state, "status --check", 1, _state("pending"), set[str]()),
            (state, "plan", 0, _actions("activate"), set[str]()),
            (state, "verify demo", 1, _error(1, findings=[{"kind": "missing"}]), set[str]()),
            (state, "doctor", 1, {"states": {"fail": 1}}, set[str]()),
            (state, "apply", 0, _applied("ready", "activate"), {area, "status"}),
            (state, "apply --boot", 0, _applied("ready", "activate"), {area, "status"}),
        )
    ),
    ("blacklist changed", "status --check", 0, {"drivers": [{"notes": [...]}]}, set()),
    ("blacklist changed", "apply", 0, _applied("ready"), {"status"}),
    ("blacklist changed", "doctor", 0, {"states": {"warn": 2}}, set()),
    ("rebooted, altered", "load", 1, _error(1, findings=[{"kind": "altered"}]), set()),
    (
        "rebooted, altered",
        "apply",
        0,
        _applied("ready", "prepare", "load"),
        {"entry", "state", "status", "modules"},
    ),
    ("rebooted, entry gone", "load", 1, _error(1), set()),
    (
        "rebooted, entry gone",
        "apply",
        0,
        _applied("ready", "prepare", "load"),
        {"entry", "state", "status", "modules"},
    ),
    ("list of modules emptied", "status --check", 1, _state("pending"), set()),
    ("list of modules emptied", "verify demo", 1, _error(1), set()),
    (
        "list of modules emptied",
        "apply",
        0,
        _applied("ready", "prepare"),
        {"entry", "state", "status"},
    ),
    (
        "list of modules emptied",
        "apply --retry",
        0,
        _applied("ready", "prepare"),
        {"entry", "state", "status"},
    ),
    (
        "next kernel, ready, list of modules emptied",
        "status --check",
        1,
        {"drivers": [{"kernels": [{"state": "pending"}, {"state": "pending"}]}]},
        set(),
    ),
    # At boot, what the store should have and has not is a failure.
    (
        "rebooted, altered",
        "apply --boot",
        1,
        _applied("pending"),
        {"state", "status"},
    ),
    ("rebooted, entry gone", "apply --boot", 1, _applied("pending"), {"state", "status"}),
    ("broken state", "status --check", 1, _state("pending"), set()),
    ("broken state", "apply", 0, _applied("ready", "prepare", "activate"), {"state", "status"}),
    ("state of a newer provision", "status --check", 1, _state("failed"), set()),
    ("state of a newer provision", "plan", 1, {"blocked": [{"driver": DRIVER}]}, set()),
    ("state of a newer provision", "doctor", 1, {"states": {"fail": 1}}, set()),
    ("state of a newer provision", "apply", 1, _applied("failed") | _error(1), {"status"}),
    ("state of a newer provision", "apply --retry", 1, _applied("failed"), {"status"}),
    ("state of a newer provision", "apply --update", 1, _applied("failed"), {"status"}),
    ("state of a newer provision", "rollback demo", 1, _error(1), set()),
    # A boot follows the links, which every version understands.
    (
        "state of a newer provision, booted",
        "apply --boot",
        0,
        _actions("load"),
        {"modules", "status"},
    ),
    # At boot, nothing is made, and nobody is asked.
    (
        "rebooted, the kernel refuses it",
        "apply --boot",
        1,
        _applied("failed", "load"),
        {"modules", "status", "state"},
    ),
    (
        "rebooted, conflict in use",
        "apply --boot",
        4,
        _applied("reboot-required", "load"),
        {"status", "state"},
    ),
    # The timer follows new versions where the policy says so.
    ("newest, not followed", "apply --timer", 0, _applied("ready") | _UNCHANGED, {"status"}),
    (
        "newest, not followed",
        "apply --update",
        0,
        _applied("ready", *_SWITCH),
        _READY - {"host", "settings"} | {"previous"},
    ),
    ("newest, followed", "apply", 0, _applied("ready") | _UNCHANGED, {"status"}),
    (
        "newest, followed",
        "apply --timer",
        0,
        _applied("ready", *_SWITCH),
        _READY - {"host", "settings"} | {"previous"},
    ),
    (
        "newest, followed, in use",
        "apply --timer",
        4,
        _applied("reboot-required", "prepare"),
        {
            *_STORED,
            "status",
        },
    ),
    (
        "newest, followed, waits for the boot",
        "apply --boot",
        0,
        _applied("ready", "activate", "load"),
        _READY - {"entry", "kernels", "host", "settings"} | {"previous"},
    ),
    # Kernels that are still to come.
    (
        "wanted, offered for the next kernel",
        f"apply --kernel {NEXT}",
        0,
        {"lacking": [], "extra_kernels": [NEXT]},
        {*_STORED, "status"},
    ),
    (
        "kernel to come",
        "apply --usr {folder}/usr",
        0,
        {"lacking": [], "extra_kernels": [NEXT]},
        {*_STORED, "status"},
    ),
    ("kernel to come", "apply --usr {folder}", 2, _error(2), set()),
    ("kernel to come", "plan --usr {folder}/usr", 0, _actions("prepare", kernel=NEXT), set()),
    (
        "kernel to come",
        f"apply --kernel {NEXT} --dry-run",
        0,
        _actions("prepare", kernel=NEXT),
        set(),
    ),
    ("result of a matrix", "matrix", 0, {"counts": {"failed": 1}}, set()),
    # A folder that was carried here.
    ("carried", "verify oci:{folder}/carried/demo:1", 0, {"findings": []}, set()),
    (
        "carried",
        "install oci:{folder}/carried/demo:1 --dry-run",
        0,
        _UNCHANGED | {"changes": [{"kind": "unpack"}]},
        set(),
    ),
    ("carried", "install oci:{folder}/carried/demo:1", 0, _DONE, {*_STORED, *_ACTIVE}),
    ("carried, pulled", "plan", 0, {"artifacts": [{"source": "store"}]}, set()),
    # What the agent would take back is refused.
    ("carried, not named", "install oci:{folder}/carried/demo:1", 2, _error(2), set()),
    ("carried, another version named", "install oci:{folder}/carried/demo:1", 2, _error(2), set()),
    ("carried, for the next kernel", "install oci:{folder}/carried/demo:1", 0, _DONE, _STORED),
    (
        "carried",
        "registry pull oci:{folder}/carried/demo:1",
        0,
        _DONE | {"signed_by": "fleet.pub"},
        {"entry", "state"},
    ),
    ("carried", "install oci:{folder}/none/demo:1", 3, _error(3), set()),
    ("carried", "registry pull oci:{folder}/carried/demo:1 --dry-run", 0, {"entry": None}, set()),
    ("carried of a stranger", "install oci:{folder}/carried/demo:1", 1, _error(1), set()),
    ("carried of a stranger", "registry pull oci:{folder}/carried/demo:1", 1, _error(1), set()),
    ("carried of a stranger", "verify oci:{folder}/carried/demo:1", 1, _error(1), set()),
    ("carried, not signed", "install oci:{folder}/carried/demo:1", 1, _error(1), set()),
    (
        "carried, not signed",
        "install oci:{folder}/carried/demo:1 --insecure",
        0,
        _DONE,
        {*_STORED, *_ACTIVE},
    ),
    (
        "carried, not signed",
        "registry pull oci:{folder}/carried/demo:1 --insecure",
        0,
        {"signed_by": None, "facts": None},
        {"entry"},
    ),
    ("carried, no trust", "install oci:{folder}/carried/demo:1", 1, _error(1), set()),
    ("carried, installed", "install oci:{folder}/carried/demo:1", 0, _UNCHANGED, set()),
    (
        "carried, installed",
        "apply",
        0,
        _applied("ready", "load"),
        {"modules", "status", "settings"},
    ),
    ("carried, installed, damaged", "install oci:{folder}/carried/demo:1", 0, _DONE, {"entry"}),
    # What the host and the catalogue are.
    (
        "device",
        "facts",
        0,
        {"distro": {"id": "debian", "version": "12"}, "pci": [{"catalogue": [DRIVER]}]},
        set(),
    ),
    # A version that is named is taken if it drives a card; the others are named.
    (
        "device, too new a version named",
        "plan",
        3,
        {"artifacts": [{"source": "missing", "reason": ...}]},
        set(),
    ),
    (
        "device, too new a version named",
        "apply",
        3,
        _refused("missing", "no-card", 3),
        {"status", "settings", "state"},
    ),
    (
        "devices, too new a version for one named",
        "plan",
        0,
        {"artifacts": [{"source": "registry", "version": "2.0", "left_out": {"message": ...}}]},
        set(),
    ),
    (
        "device, of a generation",
        f"drivers {DRIVER}",
        0,
        {
            "generations": [{"name": "Old", "versions": "<2"}],
            "cards": ["Old 0000:01:00.0 [1234:0001]"],
        },
        set(),
    ),
    (
        "devices that nothing serves together",
        "plan",
        3,
        {"artifacts": [{"source": "missing"}]},
        set(),
    ),
    (
        "devices that nothing serves together",
        "status --check",
        3,
        _state("missing"),
        set(),
    ),
    (
        "devices that nothing serves together",
        "apply",
        3,
        _refused("missing", "missing", 3),
        {"status", "settings", "state"},
    ),
    ("device", f"drivers {DRIVER}", 0, {"default_flavour": "open"}, set()),
    # What was built says itself which cards it drives.
    (
        "device, driver for others",
        "install oci:{folder}/carried/demo:1",
        3,
        _error(3),
        {"entry", "state"},
    ),
    (
        "device, driver for others",
        "apply",
        3,
        _refused("missing", "no-card", 3),
        {"status", "settings", "state", "entry"},
    ),
    ("device, driver for others pulled", "plan", 3, {"artifacts": [{"source": "missing"}]}, set()),
    (
        "device, driver for others",
        "install oci:{folder}/carried/demo:1 --force",
        0,
        _DONE,
        {*_STORED, *_ACTIVE},
    ),
    (
        "devices, driver for one",
        "install oci:{folder}/carried/demo:1",
        0,
        _DONE,
        {*_STORED, *_ACTIVE},
    ),
    (
        "device, driver for others in use",
        "plan",
        1,
        {"actions": [], "blocked": [{"obstacle": "unserved"}], "artifacts": [{"source": "store"}]},
        set(),
    ),
    ("device, driver for others in use", "status --check", 1, _state("failed"), set()),
    ("device, driver for others in use", "doctor", 1, {"states": {"fail": 1}}, set()),
    (
        "broken recipe",
        "drivers",
        2,
        {"problems": [{"file": "{root}/srv/drivers/broken/driver.toml"}]},
        set(),
    ),
    # A host as a release left it: nothing is built, loaded or switched, and all of it works. That
    # its files were unpacked here gives them another fingerprint; its loaders are today's, and it
    # tried no kernel.
    ("left by 0.1.0", "status --check", 0, _state("ready"), set()),
    ("left by 0.1.0", "plan", 0, _actions("try", kernel=NEXT), set()),
    (
        "left by 0.1.0",
        "apply",
        0,
        _applied("ready", "try", kernel=NEXT),
        {"entry", "state", "status"},
    ),
    ("left by 0.1.0", "apply --boot", 0, _applied("ready"), {"state", "status"}),
    ("left by 0.1.0", "verify demo", 0, {"findings": []}, set()),
    ("left by 0.1.0", "gc", 0, {"artifacts": []}, set()),
    (
        "left by 0.1.0",
        "rollback demo",
        0,
        _applied("ready", "unload", "activate", "load"),
        # Links to programs were absolute then.
        {"entry", "in use", "previous", "kernels", "state", "vendor file", "modules", "status"}
        | {"host"},
    ),
    # Units and the vendor file.
    ("units", "units install", 0, _UNCHANGED, set()),
    ("units", "units remove", 0, _DONE, _UNITS),
    ("units", "doctor", 3, {"states": {"unknown": 1}}, set()),
    ("units of a package", "units install", 0, _DONE, _UNITS),
    # Our own overrule none of them.
    ("units of a package", "units install --program /opt/p/bin/provision", 0, _DONE, _UNITS),
    ("empty", "units install --dry-run", 0, _UNCHANGED, set()),
    ("empty", "units install", 0, _DONE, _UNITS),
    ("empty", "units install --program bin/provision", 2, _error(2), set()),
    ("empty", "units install --program /root/clone/.venv/bin/provision", 2, _error(2), set()),
]


@pytest.mark.parametrize(
    ("state", "words", "code", "document", "changed"),
    _ROWS,
    ids=[f"{state}: {words}" for state, words, *_ in _ROWS],
)
def test_a_command_line(
    host_tree: HostTree,
    call: Call,
    state: str,
    words: str,
    code: int,
    document: Mapping[str, Any],
    changed: set[str],
) -> None:
    host = host_tree

    def run(*given: object) -> Outcome:
        return call(*given, "--root", host.root)

    STATES[state](host, run)
    before = host.listing()
    given = words.format(folder=host.folder, root=host.root).split()
    outcome = run(*given, "--json")
    after = host.listing()
    assert (outcome.code, _missing(outcome.document, document)) == (code, [])
    assert outcome.document["exit_code"] == code
    found = {
        _area(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    }
    # A run that changes nothing else may write the same status at another time.
    assert found - {"status"} == changed - {"status"}
    assert found <= changed
    published = host.root / "run/provision/status.json"
    if published.is_file():
        jsonschema.validate(json.loads(published.read_text()), _SCHEMA)
    # Of a driver that is not there, not even a lock is left.
    assert not (host.root / "var/lib/provision/demmo").exists()
    if not changed:
        # What people read has the same end, and is no JSON.
        plain = run(*given)
        assert plain.code == code
        assert not plain.out.startswith("{")
        assert host.listing() == after


def test_every_state_has_a_row() -> None:
    assert {state for state, *_ in _ROWS} == set(STATES)


def _area(path: str) -> str:
    return next((area for area, form in _AREAS.items() if re.fullmatch(form, path)), path)


def _missing(found: Any, wanted: Any, where: str = "") -> list[str]:  # noqa: ANN401 - any JSON
    """What of `wanted` a document lacks, by its path; lists have the same length, `...` is any."""
    if wanted is ...:
        return [] if found else [f"{where}: {found}"]
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return [
            line
            for key, value in wanted.items()
            for line in _missing(found.get(key), value, f"{where}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = zip(found, wanted, strict=True)
        return [
            line
            for number, pair in enumerate(pairs)
            for line in _missing(*pair, f"{where}[{number}]")
        ]
    if isinstance(found, str) and isinstance(wanted, str) and wanted.startswith("…"):
        return [] if wanted[1:] in found else [f"{where}: {found}"]
    if isinstance(found, str) and isinstance(wanted, str) and wanted.startswith("{root}"):
        return [] if found.endswith(wanted.removeprefix("{root}")) else [f"{where}: {found}"]
    return [] if found == wanted else [f"{where}: {json.dumps(found)[:200]}, not {wanted!r}"]
