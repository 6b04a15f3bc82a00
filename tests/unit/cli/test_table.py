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
_BACK = {"in use", "previous", "kernels", "state", "vendor file", "modules"}
_READY = {*_STORED, *_ACTIVE, "modules", "settings"}
_SWITCHED = _READY - {"host", "settings"} | {"previous"}
_TRY = f"verify --boot --kernel {NEXT} demo"
_INSTALL, _PULL = (
    f"{words} oci:{{folder}}/carried/demo:1" for words in ("install", "registry pull")
)

_DONE = {"changed": True}
_UNCHANGED = {"changed": False}
_NO_ACTIONS: dict[str, Any] = {"actions": [], "blocked": []}


def _actions(*kinds: str, kernel: str = KERNEL) -> dict[str, Any]:
    return {"actions": [{"kind": kind, "driver": DRIVER, "kernel": kernel} for kind in kinds]}


def _error(code: int, **members: object) -> dict[str, Any]:
    return {"error": {"exit_code": code, **members}}


def _state(state: str, **members: object) -> dict[str, Any]:
    return {"state": state, **members}


def _kernels(*kernels: object) -> dict[str, Any]:
    return {"drivers": [{"kernels": [*kernels]}]}


def _applied(state: str, *kinds: str, kernel: str = KERNEL) -> dict[str, Any]:
    return {**_actions(*kinds, kernel=kernel), "status": {"state": state}}


def _instead(name: str) -> dict[str, Any]:
    """A plan of what can't be had, which says what was meant; nothing follows on it."""
    return _actions("prepare") | {"artifacts": [{"source": "missing", "resolution": f"…{name}"}]}


def _refused(state: str, reason: str, code: int) -> dict[str, Any]:
    """An apply that makes nothing, and what is remembered of it."""
    status = {"state": state, **_kernels({"failure": {"reason": reason}})}
    return _actions("prepare") | {"status": status} | _error(code)


_FULL = ("prepare", "activate", "load")
_SWITCH = ("prepare", "unload", "activate", "load")
_UNTRUSTED, _REFUSES = ({"failure": {"reason": of}} for of in ("untrusted", "does-not-load"))
_FAILS, _WORKS = (
    {"drivers": [{"is_ready": True, "kernels": [{"version": version, "failure": failure}]}]}
    for version, failure in (("1.2", {"reason": "check"}), ("2.0", None))
)
_TAKEN = {"drivers": [{"is_ready": True, "kernels": [{"failure": None, "rejected": []}]}]}
_REFUSED_IN_GUEST = _error(1, boot={"outcomes": [{"state": "refused"}]})
_SAYS_NEWEST = {"drivers": [{"version": "1.2", "kernels": [{"reason": "…2.0"}]}]}
_MISTAKES = _error(2, mistakes=[{"path": "policy.unload"}, {"path": "policy.keep"}])
Row = tuple[str, int, Mapping[str, Any], set[str]]


def _row(words: str, code: int, document: Mapping[str, Any], changed: str | set[str] = "") -> Row:
    """Words for a state: the exit code, what the document has, the areas that change."""
    areas = set(filter(None, changed.split(", "))) if isinstance(changed, str) else changed
    return words, code, document, areas


_ROWS: dict[str, list[Row]] = {
    # Nothing is configured: what is looked at is not ready, and `apply` has nothing to do.
    "empty": [
        _row("status", 3, _state("not-configured", drivers=[])),
        _row("status --check", 3, _state("not-configured")),
        _row("plan", 3, _NO_ACTIONS),
        _row("apply", 0, _applied("not-configured"), "settings"),
        _row("apply --boot", 0, _applied("not-configured")),
        _row("apply --dry-run", 3, _NO_ACTIONS),
        _row("doctor", 3, {"states": {"unknown": 1}}),
        _row("gc", 0, {"artifacts": [], "images": [], "packages": []}),
        _row("load", 3, _error(3)),
        _row("unload", 3, _error(3)),
        _row("load demo", 3, _error(3)),
        _row("unload demo", 3, _error(3)),
        _row("verify demo", 3, _error(3)),
        _row("rollback demo", 3, _error(3)),
        _row("registry pull r.example/demo:1", 1, _error(1)),
        _row("prepare 6.1", 2, _error(2)),
        _row("units", 2, _error(2)),
        _row("matrix fleet.toml --drivers demo", 2, _error(2)),
        _row("matrix --drivers demo --push", 1, _error(1)),
        _row("matrix --drivers demo --missing", 2, _error(2)),
        _row("matrix --drivers demo --html /nowhere/at/all.html", 2, _error(2)),
        _row("matrix --drivers demo --parallel 0", 2, _error(2)),
        _row("matrix fleet.toml --push --missing", 2, _error(2)),
        _row("matrix fleet.toml --key /k", 2, _error(2)),
        _row("registry push demo drivers/demo:1", 2, _error(2)),
        _row("registry sign r.example/demo:1", 1, _error(1)),
        _row("build demo --push demo", 2, _error(2)),
        _row("export sysext demo --output {folder}/new", 2, _error(2)),
        _row("devices", 3, {"devices": {}}),
        _row("devices --rescan", 0, {"devices": {}, "changed": []}),
        _row("devices voodoo", 3, _error(3)),
        _row("devices --rescan voodoo", 3, _error(3)),
        _row("devices nvidia amd", 2, _error(2)),
        _row("build x --kernle 6.1", 2, _error(2)),
        # All that is ours goes, whether provision.toml names it or not; nothing else.
        _row("uninstall", 0, _UNCHANGED),
        _row("units install --dry-run", 0, _UNCHANGED),
        _row("units install", 0, _DONE, _UNITS),
    ],
    # Before a cell is looked for, let alone built.
    "fleet": [_row("matrix {folder}/fleet.toml --push", 1, _error(1))],
    "ready": [
        _row("export sysext demo --output {folder}", 2, _error(2)),
        _row("export sysext demo --kernel 7.0.0 --output {folder}/new", 3, _error(3)),
        # A ready host is left alone.
        _row("status", 0, _state("ready", drivers=[{"version": "1.2", "loaded": "yes"}])),
        _row("status --check", 0, _state("ready")),
        _row("plan", 0, _NO_ACTIONS | {"artifacts": [{"source": "store"}]}),
        _row("apply", 0, _applied("ready") | _UNCHANGED),
        _row("apply --boot", 0, _applied("ready") | _UNCHANGED),
        _row("apply --update", 0, _applied("ready", "prepare")),
        _row("gc", 0, {"artifacts": []}),
        _row("doctor", 0, {"states": {"warn": 1}}),
        _row("verify demo", 0, {"findings": []}),
        _row("rollback demo", 3, _error(3)),
        _row("load", 0, {"drivers": [{"modules": [], "changed": False}]}),
        _row("unload", 0, {"drivers": [{"modules": [DRIVER], "changed": True}]}, "modules"),
        _row("unload --dry-run", 0, {"drivers": [{"modules": [DRIVER]}]}),
        _row(f"apply --kernel {NEXT}", 3, {"lacking": [{"kernel": NEXT}]}, "state"),
        _row("uninstall", 0, _DONE | {"reboot_required": False}, _READY),
        _row("uninstall --dry-run", 0, _UNCHANGED),
        *(
            _row(f"{words} demmo", 3, _error(3, resolution="…'demo'"))
            for words in ("load", "unload", "verify", "verify --boot", "rollback")
        ),
    ],
    # All mistakes of a file are reported together, by every command that reads it.
    "mistakes": [
        _row("status", 2, _MISTAKES),
        _row("plan", 2, _MISTAKES),
        _row("apply", 2, _MISTAKES),
        _row("apply --boot", 2, _MISTAKES),
        _row("rollback demo", 2, _MISTAKES),
        _row("rollback demo --dry-run", 2, _MISTAKES),
        _row("gc", 2, _MISTAKES),
        _row("load", 2, _MISTAKES),
        _row("doctor", 2, _MISTAKES),
        _row("uninstall", 0, _UNCHANGED),
        _row("uninstall --images", 0, _UNCHANGED),
    ],
    "no os-release": [
        _row("facts", 3, _error(3)),
        _row("doctor", 3, _error(3)),
    ],
    # A driver is wanted, and signed by a key of the host.
    "wanted": [
        _row("status", 0, _state("pending")),
        _row("status --check", 1, _state("pending")),
        _row("plan", 0, _actions(*_FULL) | {"artifacts": [{"source": "registry"}]}),
        _row("apply --dry-run", 0, _actions(*_FULL)),
        _row("apply", 0, _applied("ready", *_FULL) | _DONE, _READY),
        _row("apply --timer", 0, _applied("ready", *_FULL), _READY),
        _row("apply --boot", 0, _applied("pending")),
        _row("doctor", 1, {"states": {"fail": 1}}),
        _row("install demo", 2, _error(2)),
        _row("drivers vendor-file demo", 3, _error(3)),
        _row("registry list demo", 2, _error(2)),
        _row(f"verify --boot --kernel {KERNEL} demmo", 3, _error(3, resolution="…'demo'")),
    ],
    "wanted, immutable": [_row("apply", 0, _applied("ready", *_FULL), _READY)],
    # What is not there, or not trusted, is not installed.
    "wanted, offered by nobody": [
        _row("plan", 3, _instead("--push")),
        _row("apply", 3, _refused("missing", "no-artifact", 3), "settings, state"),
    ],
    "wanted, signed by a stranger": [
        _row("apply", 1, _refused("failed", "untrusted", 1), "settings, state"),
        _row("plan", 1, {"artifacts": [{"source": "missing"}]}),
    ],
    "wanted, offered at last": [_row("apply", 0, _applied("ready", *_FULL), _READY - {"settings"})],
    "wanted, signed at last": [_row("apply", 0, _applied("ready", *_FULL), _READY - {"settings"})],
    "wanted, not signed": [_row("apply", 1, _refused("failed", "untrusted", 1), "settings, state")],
    "wanted, not signed, allowed": [
        _row("apply", 0, {"status": _kernels({"unsigned": ...})}, _READY),
    ],
    "wanted, no keys": [
        _row("apply", 1, _applied("failed", "prepare") | _error(1), "settings, state"),
        _row("doctor", 1, {"states": {"fail": 2}}),
    ],
    "wanted, to be built": [
        _row("apply", 3, _applied("missing", "prepare") | _error(3), "settings, state"),
        _row("plan", 3, {"artifacts": [{"source": "missing"}]}),
        _row("build demo", 3, _error(3)),
        _row("resolve demo", 3, _error(3)),
        _row("build demo --render {root}/etc", 2, _error(2)),
    ],
    "wanted, of an ended branch": [
        _row("plan", 0, {"artifacts": [{"source": "registry", "notices": [{}, {}]}]}),
    ],
    # Without an engine, nothing is asked of a mirror, and no image is missed.
    "no engine, a mirror": [
        _row("build demo", 3, _error(3, details="…no-engine.sock")),
        _row("plan", 3, _instead("[engine] host")),
    ],
    # What the recipe knows of the kernel is so for what others have built too.
    "wanted, fails here": [
        _row("apply", 3, _refused("missing", "missing", 3), "settings, state"),
        _row("plan", 3, {"artifacts": [{"source": "missing"}]}),
    ],
    "wanted, newest fails here": [_row("plan", 0, {"artifacts": [{"version": "1.2"}]})],
    "wanted, untried": [_row("apply", 0, _applied("ready", *_FULL), _READY)],
    "wanted, untried and refused": [
        _row("apply", 3, _refused("missing", "missing", 3), "settings, state"),
    ],
    "carried, fails here": [
        _row(f"{_INSTALL} --dry-run", 3, _error(3)),
        _row(f"{_INSTALL} --force", 0, _DONE, _STORED | _ACTIVE),
    ],
    # What is misspelt is not waited for: what was meant, or is there, is said.
    "wanted, misspelt flavour": [
        _row("status", 0, _state("missing", drivers=[{"kernels": [{"resolution": "…'open'"}]}])),
        _row("status --check", 3, _state("missing")),
        _row("plan", 3, _instead("'open'")),
        _row("doctor", 1, {"states": {"fail": 1}}),
        _row("apply", 3, _refused("missing", "missing", 3), "settings, state"),
    ],
    "wanted, misspelt version": [
        _row("status --check", 3, _state("missing")),
        _row("plan", 3, _instead("'production'")),
    ],
    "wanted, no such version": [_row("plan", 3, _instead("1.2"))],
    "its recipe broken": [_row("plan", 1, {"artifacts": [{"details": "…flavours"}]})],
    # What others have on the host stays, and is named.
    "wanted, vendor file of an admin": [
        _row("apply", 1, _applied("failed", *_FULL), _STORED | {"modules", "settings"}),
    ],
    "wanted, DKMS has it too": [
        _row("status", 0, _state("pending", drivers=[{"other": {"driver": DRIVER}}])),
        _row("plan", 0, {"others": [{"driver": DRIVER}]}),
        _row("apply", 0, {"others": [{"driver": DRIVER}]}, _READY),
    ],
    # The kernel says no.
    "wanted, the kernel refuses it": [_row("apply", 1, _applied("failed", *_FULL), _READY)],
    "wanted, conflict": [_row("apply", 0, _applied("ready", *_FULL), _READY)],
    "wanted, conflict in use": [
        _row("apply", 4, _applied("reboot-required", *_FULL), _READY - {"modules"}),
    ],
    # What may be made is no matter of what is in use.
    "ready, other policy": [
        _row("status --check", 0, _state("ready")),
        _row("plan", 0, _NO_ACTIONS),
        _row("apply", 0, _applied("ready") | _UNCHANGED, "settings"),
    ],
    # What was built against the other one need not load after a reboot.
    "kernel built again": [_row("status --check", 1, _state("pending"))],
    "rebooted": [
        _row("status --check", 1, _state("pending", drivers=[{"loaded": "no"}])),
        _row("apply --boot", 0, _applied("ready", "load"), "modules"),
        _row("load", 0, {"drivers": [{"modules": [DRIVER], "changed": True}]}, "modules"),
        _row("load --dry-run", 0, {"drivers": [{"modules": [DRIVER], "changed": False}]}),
        _row("load nothing demo", 3, _error(3), "modules"),
        _row("doctor", 1, {"states": {"fail": 1}}),
    ],
    "rebooted, mistakes": [_row("apply --boot", 2, _error(2), "modules")],
    "in use": [
        _row("unload", 4, _error(4, users=[{"module": DRIVER}])),
        _row("unload --dry-run", 4, _error(4)),
        _row("apply", 0, _applied("ready")),
        _row("uninstall", 4, _DONE | {"reboot_required": True}, _READY - {"modules"}),
    ],
    # Another version: switched to while nobody uses the old one.
    "newer": [
        _row("plan", 0, _actions(*_SWITCH)),
        _row("apply", 0, _applied("ready", *_SWITCH), _READY - {"host"} | {"previous"}),
        # What is named is all that it is about.
        _row("plan dem", 3, _error(3)),
        _row(f"plan {DRIVER}", 0, _actions(*_SWITCH)),
    ],
    # It is still to be made; once it is there, only the reboot is missing.
    "newer, in use": [
        _row("status --check", 1, _state("reboot-required")),
        _row("apply", 4, _applied("reboot-required", "prepare"), _STORED | {"settings"}),
    ],
    "newer, in use, made": [_row("status --check", 4, _state("reboot-required"))],
    "wanted, conflict in use, made": [_row("status --check", 4, _state("reboot-required"))],
    **{
        f"wanted, conflict in use, {end}": [
            _row("apply", 0, _applied("ready", "load"), "modules, state")
        ]
        for end in ("let go", "rebooted")
    },
    "two versions": [
        _row("status", 0, _state("ready", drivers=[{"version": "2.0"}])),
        _row("rollback demo --dry-run", 0, {"driver": DRIVER}),
        _row("rollback demo", 0, _applied("ready", "unload", "activate", "load"), _BACK),
        _row("rollback other", 3, _error(3)),
        _row("gc", 0, {"artifacts": []}),
    ],
    # Of the same size: only its checksum says so.
    "two versions, previous library altered": [_row("rollback demo", 3, _error(3))],
    "two versions, none whole, booted": [_row("apply --boot", 1, _applied("pending"), "state")],
    "two versions, a third while in use": [
        _row("apply", 4, _applied("reboot-required", "prepare"), _STORED | {"settings"}),
    ],
    "two versions, keep none": [
        _row("gc --dry-run", 0, {"artifacts": [{"driver": DRIVER}]}),
        _row("gc", 0, {"artifacts": [{"driver": DRIVER}]}, "entry, previous"),
        _row("apply --timer", 0, _applied("ready"), "entry, previous, settings"),
    ],
    "two versions, not wanted any more": [
        _row("rollback demo", 3, _error(3)),
        _row("rollback demo --dry-run", 3, _error(3)),
        _row("uninstall", 0, _DONE, _READY | {"previous"}),
    ],
    "two versions, newest altered, booted": [
        _row("apply --boot", 0, _applied("pending", "activate", "load"), _BACK),
    ],
    "rolled back": [
        _row("apply", 0, _applied("ready") | _UNCHANGED),
        _row("apply --update --retry", 0, _applied("ready", *_SWITCH), _BACK),
        _row("apply --retry", 0, _applied("ready", *_SWITCH), _BACK),
        # A kernel that is named is that kernel's matter.
        _row(f"apply --kernel {NEXT}", 3, _actions("prepare", kernel=NEXT), "state"),
    ],
    # What was rolled back to stays, whatever it is made of by now.
    "updated, rolled back, recipe changed": [
        _row("plan", 0, {"artifacts": [{"version": "1.2"}]}),
    ],
    # The next kernel gets what this one went back to.
    "updated, rolled back, next kernel": [
        _row("plan", 0, {"artifacts": [..., {"kernel": NEXT, "version": "1.2"}]}),
    ],
    # What the kernel refused is remembered as that, and the driver that worked works on.
    "newest refused": [
        _row("rollback demo", 3, _error(3)),
        _row("status --check", 0, _SAYS_NEWEST),
    ],
    "newest refused, at boot": [_row("status --check", 0, _SAYS_NEWEST)],
    "newest refused, rebooted": [_row("apply --boot", 0, _actions("load"), "modules")],
    "newest refused, next kernel": [
        _row("apply", 1, {"status": _kernels({"version": "1.2"}, {"version": "1.2"})}, _STORED),
    ],
    "newest refused, named, next kernel": [
        _row(
            "apply",
            1,
            {"status": _kernels({"version": "1.2"}, {"version": None, "state": "failed"})},
            "state",
        ),
    ],
    # Without a driver, the version that another kernel refused is tried.
    "newest refused, named, next kernel runs": [
        _row(
            "apply",
            0,
            _applied("ready", *_FULL, kernel=NEXT),
            _STORED | {"in use", "previous", "modules", "vendor file"},
        ),
    ],
    "two versions, older refused": [_row("rollback demo", 1, _error(1), "modules, state")],
    "two versions, not rolled back": [
        _row("status --check", 0, _WORKS),
        _row("apply", 0, _applied("ready")),
    ],
    "two versions, older refused, waits for the boot": [
        _row("apply --boot", 1, {"status": _WORKS}, "modules, kernels, state"),
    ],
    # What failed its own check is tried again by a retry, named or not, and by nothing else.
    "check failed": [
        _row("apply", 1, {"actions": [], "status": _FAILS}),
        _row("status --check", 0, _state("failed")),
        _row("apply --retry", 1, {"status": _FAILS}, "state"),
    ],
    "check failed, not named": [_row("apply --retry", 1, {"status": _FAILS}, "state")],
    **{
        f"check failed, {named}works now": [_row("apply --retry", 0, {"status": _TAKEN}, _BACK)]
        for named in ("", "not named, ")
    },
    "older named": [_row("apply", 0, _applied("ready", *_SWITCH), _BACK | {"settings"})],
    "named, newer offered": [_row("apply --update", 0, _applied("ready") | _UNCHANGED)],
    "store gone": [
        _row("apply", 0, _applied("ready", "prepare", "activate"), _STORED | {"in use"}),
    ],
    # Neither takes a driver out of use: a crash may have emptied the file.
    "settings gone": [_row("apply", 0, {"actions": []}, "settings")],
    "settings emptied": [_row("apply", 0, {"actions": []}, "settings")],
    # A version goes back only if that is asked for; what can't be had costs nothing.
    "ready, older offered": [
        _row("plan", 1, {"artifacts": [{"source": "missing"}]}),
        _row("apply", 1, _applied("failed", "prepare"), "state"),
        _row("apply --allow-downgrade --retry", 0, _applied("ready", *_SWITCH), _SWITCHED),
    ],
    "ready, older offered, next kernel": [
        _row("plan", 1, {"artifacts": [{"source": "missing"}, {"kernel": NEXT, "version": "1.2"}]}),
    ],
    # What is wrong with a newer version is in the status, and what works stays.
    "newest, signed by a stranger": [
        _row(
            "apply --update",
            1,
            _applied("failed", "prepare")
            | {"status": {"drivers": [{"is_ready": True, "kernels": [_UNTRUSTED]}]}},
            "state",
        ),
    ],
    "next kernel, refuses a newer version": [
        _row(
            "apply --update",
            1,
            {"status": {"drivers": [{"is_ready": True, "kernels": [{}, _REFUSES]}]}},
            "state, entry",
        ),
    ],
    "next kernel, refused a newer version": [_row("status --check", 0, {})],
    # The next kernel has its modules before the reboot, or that is said.
    "next kernel": [
        _row("status --check", 1, _state("pending")),
        _row("plan", 3, _actions("prepare", kernel=NEXT)),
        _row("apply", 3, _applied("next-kernel-not-ready", "prepare", kernel=NEXT), "state"),
        _row("doctor", 1, {"states": {"fail": 1}}),
        _row(_TRY, 3, _error(3)),
    ],
    "next kernel, offered": [
        _row(
            "plan",
            0,
            {
                "artifacts": [
                    {"kernel": KERNEL, "source": "store", "version": "1.2"},
                    {"kernel": NEXT, "source": "registry", "version": "1.2"},
                ]
            },
        ),
        _row("apply", 0, _applied("ready", "prepare", kernel=NEXT), _STORED),
    ],
    # A reboot would cost the driver, whoever decided on it.
    "next kernel, not made before": [
        _row("status --check", 1, _state("pending")),
        _row("apply", 0, _applied("pending"), "settings"),
        _row(
            "plan", 0, {"artifacts": [{"source": "store"}, {"kernel": NEXT, "source": "missing"}]}
        ),
    ],
    # A kernel that does not take the modules is known before the reboot; what there was stays.
    "next kernel, refuses": [
        _row("apply", 1, _applied("next-kernel-not-ready", "prepare", kernel=NEXT), "entry, state"),
    ],
    "next kernel, refused": [
        _row("status --check", 1, _state("next-kernel-not-ready")),
        _row("plan", 1, {"actions": []}),
        _row("load", 0, {"drivers": [{"changed": False}]}),
        # What the kernel refused can be tried again, and is in use nowhere.
        _row(_TRY, 1, _REFUSED_IN_GUEST),
    ],
    "next kernel, refused, trials off": [
        _row("apply", 0, {"status": {"state": "ready"}}, _STORED | {"settings"}),
    ],
    "next kernel, ready": [
        _row(
            _TRY,
            0,
            {"boot": {"kernel": NEXT, "outcomes": [{"module": DRIVER, "state": "loaded"}]}},
        ),
        # What is for one kernel is nothing that another can go back to.
        _row("rollback demo", 3, _error(3)),
        _row(f"verify --kernel {NEXT} demo", 2, _error(2)),
        _row("status --check", 0, _state("ready")),
        _row("gc", 0, {"artifacts": []}),
    ],
    # What was made without a trial is tried as soon as that is possible, and said to be untried.
    "next kernel, made without a trial": [
        _row("status --check", 0, _state("ready", drivers=[{"kernels": [{}, {"reason": ANY}]}])),
        _row("plan", 0, _actions("try", kernel=NEXT)),
        _row("apply", 0, _applied("ready", "try", kernel=NEXT), "state"),
    ],
    "next kernel, made without a trial, refuses": [
        _row("apply", 1, _applied("next-kernel-not-ready", "try", kernel=NEXT), "state, kernels"),
    ],
    "next kernel, can't be tried": [
        _row("status", 0, _kernels({}, {"resolution": "…verify --boot"})),
        _row("apply", 0, _applied("ready")),
        _row("apply --retry", 0, _applied("ready", "try", kernel=NEXT), "state"),
        _row("doctor", 0, {"states": {"warn": 2}}),
    ],
    # A guest enforces what the host does, whoever made it do so, or that is said to be untried.
    "next kernel, ready, locked down": [
        _row(_TRY, 1, _REFUSED_IN_GUEST),
    ],
    "next kernel, ready, beside another driver": [
        _row(_TRY, 0, {"boot": {"kernel": NEXT}}),
    ],
    "next kernel, ready, not locked down": [
        _row(_TRY, 0, {"boot": {"untried": []}}),
    ],
    "next kernel, ready, locked down, signed here": [
        _row(_TRY, 0, {"boot": {"untried": [ANY]}}),
    ],
    "next kernel, ready, Secure Boot": [
        _row(_TRY, 0, {"boot": {"untried": [ANY]}}),
    ],
    # Of a kernel that may boot and can't be looked at, every command says the same.
    "next kernel, unfinished": [
        _row("status", 0, _state("next-kernel-not-ready")),
        _row("status --check", 3, _state("next-kernel-not-ready")),
        _row("plan", 3, _NO_ACTIONS),
        _row("apply", 3, _applied("next-kernel-not-ready") | _error(3)),
        _row("apply --boot", 0, _applied("next-kernel-not-ready")),
    ],
    "next kernel runs": [
        _row(
            "apply --boot",
            0,
            _applied("ready", "activate", "load", kernel=NEXT),
            "in use, previous, modules, state",
        ),
        _row("load", 0, {"drivers": [{"modules": [DRIVER]}]}, "modules"),
    ],
    "unprepared kernel runs": [
        _row("load", 3, _error(3)),
        _row("apply --boot", 0, _applied("pending")),
        _row("gc", 0, {"artifacts": []}),
    ],
    "units": [
        _row("uninstall", 0, _DONE, _UNITS),
        # Units and the vendor file.
        _row("units install", 0, _UNCHANGED),
        _row("units remove", 0, _DONE, _UNITS),
        _row("doctor", 3, {"states": {"unknown": 1}}),
    ],
    "left by 0.1.0": [
        _row("uninstall", 0, _DONE, _READY | {"previous"}),
        # As a release left it: nothing is built, loaded or switched, and all of it works. Its files
        # were unpacked here, and so have another fingerprint; its loaders are today's, and it tried
        # no kernel.
        _row("status --check", 0, _state("ready")),
        _row("plan", 0, _actions("try", kernel=NEXT)),
        _row("apply", 0, _applied("ready", "try", kernel=NEXT), "entry, state"),
        _row("apply --boot", 0, _applied("ready"), "state"),
        _row("verify demo", 0, {"findings": []}),
        _row("gc", 0, {"artifacts": []}),
        # Links to programs were absolute then.
        _row(
            "rollback demo",
            0,
            _applied("ready", "unload", "activate", "load"),
            {"entry", "in use", "previous", "kernels", "state", "vendor file", "modules"}
            | {"host"},
        ),
    ],
    "broken state": [
        _row("uninstall", 0, _DONE, _READY),
        _row("status --check", 1, _state("pending")),
        _row("apply", 0, _applied("ready", "prepare", "activate"), "state"),
    ],
    "state of a newer provision": [
        _row("uninstall", 1, _error(1)),
        _row("status --check", 1, _state("failed")),
        _row("plan", 1, {"blocked": [{"driver": DRIVER}]}),
        _row("doctor", 1, {"states": {"fail": 1}}),
        _row("apply", 1, _applied("failed") | _error(1)),
        _row("rollback demo", 1, _error(1)),
    ],
    # A driver goes as it came.
    "not wanted any more": [
        _row("status", 0, _state("pending", unnamed=[{"driver": DRIVER, "version": "1.2"}])),
        _row("plan", 0, _actions("unload", "retire")),
        _row(f"plan {DRIVER}", 0, _actions("unload", "retire")),
        _row("apply", 0, _applied("not-configured", "unload", "retire"), _READY - {"entry"}),
    ],
    "ready, beside a misspelt": [
        _row("plan", 3, {"blocked": []}),
        _row(f"plan {DRIVER}", 0, _NO_ACTIONS),
    ],
    # Damage is found before it is loaded, and healed.
    "damaged": [
        _row("verify demo", 1, _error(1, findings=[{"kind": "altered"}])),
        _row("status --check", 1, _state("pending")),
        _row("doctor", 1, {"states": {"fail": 1}}),
        _row("plan", 0, {"artifacts": [{"source": "registry"}]}),
        _row("apply", 0, _applied("ready", "prepare"), "entry, state"),
    ],
    "blacklist changed": [
        _row("status --check", 0, {"drivers": [{"notes": [...]}]}),
        _row("apply", 0, _applied("ready")),
        _row("doctor", 0, {"states": {"warn": 2}}),
    ],
    "rebooted, altered": [
        _row("load", 1, _error(1, findings=[{"kind": "altered"}])),
        _row("apply", 0, _applied("ready", "prepare", "load"), "entry, state, modules"),
        # At boot, what the store should have and has not is a failure.
        _row("apply --boot", 1, _applied("pending"), "state"),
    ],
    "rebooted, entry gone": [
        _row("load", 1, _error(1)),
        _row("apply", 0, _applied("ready", "prepare", "load"), "entry, state, modules"),
        _row("apply --boot", 1, _applied("pending"), "state"),
    ],
    "list of modules emptied": [
        _row("status --check", 1, _state("pending")),
        _row("verify demo", 1, _error(1)),
        _row("apply", 0, _applied("ready", "prepare"), "entry, state"),
        _row("apply --retry", 0, _applied("ready", "prepare"), "entry, state"),
    ],
    "next kernel, ready, list of modules emptied": [
        _row("status --check", 1, _kernels({"state": "pending"}, {"state": "pending"})),
    ],
    # A boot follows the links, which every version understands.
    "state of a newer provision, booted": [_row("apply --boot", 0, _actions("load"), "modules")],
    "state of a newer provision, next kernel runs": [
        _row(
            "apply --boot",
            0,
            _actions("activate", "load", kernel=NEXT),
            "in use, previous, modules",
        ),
    ],
    "state of a newer provision, not wanted": [
        _row("apply", 1, {"status": {"state": "failed", "error": ...}}, "modules, settings"),
    ],
    # At boot, nothing is made, and nobody is asked.
    "rebooted, the kernel refuses it": [
        _row("apply --boot", 1, _applied("failed", "load"), "modules, state"),
    ],
    "rebooted, conflict in use": [
        _row("apply --boot", 4, _applied("reboot-required", "load"), "state"),
    ],
    # What a reboot ends is no reason to go back.
    "rebooted, conflict of the newer in use": [
        _row("apply --boot", 4, _applied("reboot-required", "load"), "state"),
    ],
    # The timer follows new versions where the policy says so.
    # A new kernel gets the version that is in use; an older one that is offered replaces none.
    "newest, not followed, next kernel": [
        _row("plan", 0, {"artifacts": [{"version": "1.2"}, {"kernel": NEXT, "version": "1.2"}]}),
    ],
    "newest, offered no more": [_row("apply --update", 0, _applied("ready", "prepare"))],
    "newest, not followed": [
        _row("apply --timer", 0, _applied("ready") | _UNCHANGED),
        _row("apply --update", 0, _applied("ready", *_SWITCH), _SWITCHED),
    ],
    "newest, followed": [
        _row("apply", 0, _applied("ready") | _UNCHANGED),
        _row("apply --timer", 0, _applied("ready", *_SWITCH), _SWITCHED),
    ],
    "newest, followed, in use": [
        _row("apply --timer", 4, _applied("reboot-required", "prepare"), _STORED),
    ],
    "newest, followed, waits for the boot": [
        _row(
            "apply --boot",
            0,
            _applied("ready", "activate", "load"),
            _READY - {"entry", "kernels", "host", "settings"} | {"previous"},
        ),
    ],
    # Kernels that are still to come.
    "wanted, offered for the next kernel": [
        _row(f"apply --kernel {NEXT}", 0, {"lacking": [], "extra_kernels": [NEXT]}, _STORED),
    ],
    "kernel to come": [
        _row("apply --usr {folder}/usr", 0, {"lacking": [], "extra_kernels": [NEXT]}, _STORED),
        _row("apply --usr {folder}", 2, _error(2)),
        _row("plan --usr {folder}/usr", 0, _actions("prepare", kernel=NEXT)),
        _row(f"apply --kernel {NEXT} --dry-run", 0, _actions("prepare", kernel=NEXT)),
    ],
    "result of a matrix": [_row("matrix", 0, {"counts": {"failed": 1}})],
    # A folder that was carried here.
    "carried": [
        _row("verify oci:{folder}/carried/demo:1", 0, {"findings": []}),
        _row(f"{_INSTALL} --dry-run", 0, _UNCHANGED | {"changes": [{"kind": "unpack"}]}),
        _row(_INSTALL, 0, _DONE, _STORED | _ACTIVE),
        _row(_PULL, 0, _DONE | {"signed_by": "fleet.pub"}, "entry, state"),
        _row("install oci:{folder}/none/demo:1", 3, _error(3)),
        _row(f"{_PULL} --dry-run", 0, {"entry": None}),
    ],
    "carried, pulled": [_row("plan", 0, {"artifacts": [{"source": "store"}]})],
    # What the agent would take back is refused.
    "carried, not named": [_row(_INSTALL, 2, _error(2))],
    "carried, another version named": [_row(_INSTALL, 2, _error(2))],
    "carried, for the next kernel": [
        _row(_INSTALL, 0, _DONE, _STORED),
    ],
    "carried of a stranger": [
        _row(_INSTALL, 1, _error(1)),
        _row(_PULL, 1, _error(1)),
        _row("verify oci:{folder}/carried/demo:1", 1, _error(1)),
    ],
    "carried, not signed": [
        _row(_INSTALL, 1, _error(1)),
        _row(f"{_INSTALL} --insecure", 0, _DONE, _STORED | _ACTIVE),
        _row(f"{_PULL} --insecure", 0, {"signed_by": None, "facts": None}, "entry"),
    ],
    "carried, no trust": [_row(_INSTALL, 1, _error(1))],
    "carried, installed": [
        _row(_INSTALL, 0, _UNCHANGED),
        _row("apply", 0, _applied("ready", "load"), "modules, settings"),
    ],
    "carried, installed, damaged": [_row(_INSTALL, 0, _DONE, "entry")],
    # What the host and the catalogue are.
    "device": [
        _row(
            "facts",
            0,
            {"distro": {"id": "debian", "version": "12"}, "pci": [{"catalogue": [DRIVER]}]},
        ),
        _row(f"drivers {DRIVER}", 0, {"default_flavour": "open"}),
    ],
    # A version that is named is taken if it drives a card; the others are named.
    "device, too new a version named": [
        _row("plan", 3, {"artifacts": [{"source": "missing", "reason": ...}]}),
        _row("apply", 3, _refused("missing", "no-card", 3), "settings, state"),
    ],
    "devices, too new a version for one named": [
        _row("plan", 0, {"artifacts": [{"source": "registry", "version": "2.0", "notices": [{}]}]}),
    ],
    "device, of a generation": [
        _row(
            f"drivers {DRIVER}",
            0,
            {
                "generations": [{"name": "Old", "versions": "<2"}],
                "cards": ["Old 0000:01:00.0 [1234:0001]"],
            },
        ),
    ],
    "devices that nothing serves together": [
        _row("plan", 3, {"artifacts": [{"source": "missing"}]}),
        _row("status --check", 3, _state("missing")),
        _row("apply", 3, _refused("missing", "missing", 3), "settings, state"),
    ],
    # What was built says itself which cards it drives.
    "device, driver for others": [
        _row(_INSTALL, 3, _error(3), "entry, state"),
        _row("apply", 3, _refused("missing", "no-card", 3), "settings, state, entry"),
        _row(f"{_INSTALL} --force", 0, _DONE, _STORED | _ACTIVE),
    ],
    "device, driver for others pulled": [_row("plan", 3, {"artifacts": [{"source": "missing"}]})],
    "devices, driver for one": [
        _row(_INSTALL, 0, _DONE, _STORED | _ACTIVE),
    ],
    "device, driver for others in use": [
        _row(
            "plan",
            1,
            {
                "actions": [],
                "blocked": [{"obstacle": "unserved"}],
                "artifacts": [{"source": "store"}],
            },
        ),
        _row("status --check", 1, _state("failed")),
        _row("doctor", 1, {"states": {"fail": 1}}),
    ],
    "broken recipe": [
        _row("drivers", 2, {"problems": [{"file": "{root}/srv/drivers/broken/driver.toml"}]}),
    ],
    "units of a package": [
        _row("units install", 0, _DONE, _UNITS),
        # Our own overrule none of them.
        _row("units install --program /opt/p/bin/provision", 0, _DONE, _UNITS),
    ],
    # What no one offers any more works on; plan and apply say the same.
    "ready, offered by nobody any more": [
        _row(f"{words} --update", 0, _actions("prepare")) for words in ("plan", "apply")
    ],
    # Damage to its files on the host is found and healed too; what an admin has changed is said,
    # and stays.
    **{
        state: [
            _row("status --check", 1, _state("pending")),
            _row("plan", 0, _actions("activate")),
            _row("verify demo", 1, _error(1, findings=[{"kind": "missing"}])),
            _row("doctor", 1, {"states": {"fail": 1}}),
            _row("apply", 0, _applied("ready", "activate"), area),
            _row("apply --boot", 0, _applied("ready", "activate"), area),
        ]
        for state, area in {
            "blacklist emptied": "host",
            "library folder gone": "host",
            "program gone": "host",
            "vendor file emptied": "vendor file",
        }.items()
    },
}


@pytest.mark.parametrize(
    ("state", "words", "code", "document", "changed"),
    [(state, *row) for state, rows in _ROWS.items() for row in rows],
    ids=[f"{state}: {row[0]}" for state, rows in _ROWS.items() for row in rows],
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
    given = [word.format(folder=host.folder, root=host.root) for word in words.split()]
    outcome = run(*given, "--json")
    after = host.listing()
    assert (outcome.code, _missing(outcome.document, document)) == (code, [])
    assert outcome.document["exit_code"] == code
    # A word of Python's, where a value is missing from a text.
    assert "None" not in json.dumps(outcome.document)
    found = {
        _area(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    }
    # The agent's runs write its status, and nothing else does; at the same time, it is the same.
    writes = re.match("(apply|rollback|uninstall)(?!.*(--dry-run|--usr {folder}$))", words)
    assert found - ({"status"} if writes else set()) == changed
    published = host.root / "run/provision/status.json"
    if published.is_file():
        jsonschema.validate(json.loads(published.read_text()), _SCHEMA)
    # Of a driver that is not there, not even a lock is left.
    assert not (host.root / "var/lib/provision/demmo").exists()
    if not changed and not writes:
        # What people read has the same end, and is no JSON.
        plain = run(*given)
        assert plain.code == code
        assert not plain.out.startswith("{")
        assert host.listing() == after


def test_every_state_has_a_row() -> None:
    assert _ROWS.keys() == STATES.keys()


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
