"""The Ignition configuration of a machine. Pure.

Source: https://coreos.github.io/ignition/configuration-v3_3/
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from provision.export.ignition.engine_files import (
    BIN,
    PROGRAM,
    PROVISION_TOML,
    RUNTIME,
    VENDORS,
    managed_records,
    render,
)
from provision.export.ignition.engine_files import FOLDER as RECORDS

Variant = Literal["fcos", "flatcar"]
# Butane's name for the distro, and the version of its format that makes Ignition's 3.3.0.
# Source: https://coreos.github.io/butane/specs/
BUTANE: Mapping[Variant, str] = {"fcos": "1.4.0", "flatcar": "1.0.0"}
_FOLDER = "/opt/provision"
_STAGED = f"{_FOLDER}/first-boot"
_UNIT = "provision-first-boot.service"


def inline(text: str) -> dict[str, Any]:
    """Return a text as inline content.

    Source: https://www.rfc-editor.org/rfc/rfc2397
    """
    return {"source": f"data:,{quote(text, safe='')}"}


def fetched(url: str, sha512: str) -> dict[str, Any]:
    """Return the content of a file that the machine fetches and verifies."""
    return {"source": url, "verification": {"hash": f"sha512-{sha512}"}}


@dataclass(frozen=True, slots=True)
class Machine:
    """The contents of a machine."""

    provision_toml: str
    environment: str
    python: dict[str, Any]
    bundle: dict[str, Any]
    hook: dict[str, Any] | None = None
    texts: Mapping[str, str] | None = None
    # Docker's original daemon.json; None where the host has no such file.
    daemon_json: str | None = None


def configuration(machine: Machine) -> str:
    """Return the configuration of a machine; the same contents give the same text.

    3.3.0 is the newest version of the format that Ignition 2.14 reads.
    """
    texts = {**(machine.texts or {}), PROVISION_TOML: machine.provision_toml}
    kept = managed_records(texts, daemon_json=machine.daemon_json)
    files = {
        f"{_FOLDER}/provision.tar": (0o644, machine.bundle),
        f"{_STAGED}/python.tar.gz": (0o644, machine.python),
        f"{_STAGED}/first-boot.sh": (0o755, inline(render("first-boot.sh"))),
        **{path: (0o644, inline(text)) for path, text in texts.items()},
        **{path: (0o600, inline(text)) for path, text in kept.items()},
    }
    folders = {_FOLDER, _STAGED, BIN, "/etc/provision", RECORDS}
    links = []
    if machine.hook is not None:
        files[PROGRAM] = (0o755, machine.hook)
        folders |= {"/etc/oci-decorator", VENDORS}
        links = [{"path": RUNTIME, "target": "oci-decorator", "overwrite": True}]
    unit = render(f"{_UNIT}.j2", staged=_STAGED, environment=machine.environment)
    document = {
        "ignition": {"version": "3.3.0"},
        "storage": {
            "directories": [{"path": path, "mode": 0o755} for path in sorted(folders)],
            # An existing file is replaced, so that Ignition can run again after a failure.
            "files": [
                {"path": path, "mode": mode, "contents": contents, "overwrite": True}
                for path, (mode, contents) in sorted(files.items())
            ],
            "links": links,
        },
        "systemd": {"units": [{"name": _UNIT, "enabled": True, "contents": unit}]},
    }
    return json.dumps(document, indent=2) + "\n"


def butane(variant: Variant, *, source: str, sha512: str) -> str:
    """Return a Butane file that merges a configuration."""
    return render(
        "provision.bu.j2",
        variant=variant,
        version=BUTANE[variant],
        source=source,
        hash=f"sha512-{sha512}",
    )
