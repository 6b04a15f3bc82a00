"""What a machine has after Ignition has run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from provision.ignition.engine_files import (
    BIN,
    PROGRAM,
    PROVISION_TOML,
    RUNTIME,
    VENDORS,
    ledgers,
    render,
)
from provision.ignition.engine_files import FOLDER as LEDGERS
from provision.ignition.spec import (
    Contents,
    Directory,
    File,
    IgnitionConfig,
    Link,
    Storage,
    Systemd,
    Unit,
    inline,
)

Variant = Literal["fcos", "flatcar"]

# Butane's name for the distro, and the version of its format that makes Ignition's 3.3.0.
# Source: https://coreos.github.io/butane/specs/
BUTANE: Mapping[Variant, str] = {"fcos": "1.4.0", "flatcar": "1.0.0"}

_FOLDER = "/opt/provision"
_STAGED = f"{_FOLDER}/first-boot"
_UNIT = "provision-first-boot.service"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine shall get.

    Attributes:
        provision_toml: The text of its provision.toml.
        environment: Name of the environment that it makes.
        python: Where it gets its Python from.
        bundle: Where it gets the wheels from.
        hook: Where it gets oci-decorator from; None: its containers get no drivers.
        texts: Further files, by path.
        daemon_json: What Docker's would be if it was not among these; None: there would be none.
    """

    provision_toml: str
    environment: str
    python: Contents
    bundle: Contents
    hook: Contents | None = None
    texts: Mapping[str, str] | None = None
    daemon_json: str | None = None


def configuration(machine: Machine) -> IgnitionConfig:
    """Return what makes a machine so."""
    texts = {**(machine.texts or {}), PROVISION_TOML: machine.provision_toml}
    kept = ledgers(texts, daemon_json=machine.daemon_json)
    files = {
        f"{_FOLDER}/provision.tar": (0o644, machine.bundle),
        f"{_STAGED}/python.tar.gz": (0o644, machine.python),
        f"{_STAGED}/first-boot.sh": (0o755, inline(render("first-boot.sh"))),
        **{path: (0o644, inline(text)) for path, text in texts.items()},
        **{path: (0o600, inline(text)) for path, text in kept.items()},
    }
    folders = {_FOLDER, _STAGED, BIN, "/etc/provision", LEDGERS}
    links: tuple[Link, ...] = ()
    if machine.hook is not None:
        files[PROGRAM] = (0o755, machine.hook)
        folders |= {"/etc/oci-decorator", VENDORS}
        links = (Link(path=RUNTIME, target="oci-decorator"),)
    unit = render(f"{_UNIT}.j2", staged=_STAGED, environment=machine.environment)
    return IgnitionConfig(
        storage=Storage(
            directories=tuple(Directory(path=path, mode=0o755) for path in sorted(folders)),
            files=tuple(
                File(path=path, mode=mode, contents=contents)
                for path, (mode, contents) in sorted(files.items())
            ),
            links=links,
        ),
        systemd=Systemd(units=(Unit(name=_UNIT, enabled=True, contents=unit),)),
    )


def butane(variant: Variant, *, source: str, sha512: str) -> str:
    """Return the text for Butane that takes a configuration in."""
    return render(
        "provision.bu.j2",
        variant=variant,
        version=BUTANE[variant],
        source=source,
        hash=f"sha512-{sha512}",
    )
