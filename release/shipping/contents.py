"""What lies where in the packages; Debian's and RPM distros' differ in a few places only."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from provision.store.layout import UNITS
from provision.store.units import (
    DEBIAN_HOOKS,
    KERNEL_INSTALL_HOOKS,
    PACKAGED_UNITS,
    WATCHERS,
    UnitSettings,
    unit_files,
)
from reference import completion, manual
from shipping.bundled import PYTHONS, merged
from shipping.source import Source
from shipping.tree import Entry, File, Folder, Link, Tree, compressed, read, text, under

# Like the units, not in /etc, where `provision units install` writes.
_PACKAGED_RULES = "usr/lib/udev/rules.d"
_WRITTEN_BY = re.compile(r"^# Written by 'provision units install'[;.]?", re.MULTILINE)
_PAGE = "file:///usr/share/provision/docs/how-to/keep-drivers-loaded.md"
_ENVIRONMENT = "usr/lib/provision"
_PROGRAM = f"""\
#!/{_ENVIRONMENT}/bin/python -I
# SPDX-License-Identifier: Apache-2.0
from provision.cli import main

main()
"""
# PEP 405. `home` is where the base Python is, of whatever version.
_VENV = "home = /usr/bin\ninclude-system-site-packages = {system}\n"
_NVIDIA_NAMES = (
    *("nvidia-cdi-hook", "nvidia-container-runtime", "nvidia-container-runtime-hook"),
    *("nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy", "nvidia-container-cli"),
    *("nvidia-container-toolkit", "nvidia-ctk"),
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a family of distros wants what.

    Attributes:
        zsh: Folder of completions that packages bring.
        hooks: What kernels' packages run.
        wants_podman: Whether podman is the engine that its distros package.
    """

    zsh: str
    hooks: Collection[str]
    wants_podman: bool


DEBIAN = Places(
    "usr/share/zsh/vendor-completions", [str(hook) for hook in DEBIAN_HOOKS], wants_podman=False
)
RPM = Places(
    "usr/share/zsh/site-functions", [str(hook) for hook in KERNEL_INSTALL_HOOKS], wants_podman=True
)
# What a package enables; the others are started by these.
ENABLED = (
    *("provision-apply.timer", "provision-boot.service", "provision-cdi.path"),
    *("provision-cdi.service", "provision-devices.path", "provision-devices.service"),
    *("provision-kernel.path", "provision-repeat.timer"),
)
# What runs at once, without waiting for a boot.
STARTED = WATCHERS


def program(source: Source, machine: str) -> Path:
    """Return where ``hooks/build.sh`` puts ``oci-decorator`` for a machine."""
    below = "build" if machine == platform.machine() else f"build/{machine}"
    return source.root / below / "oci-decorator"


def decorator(source: Source, places: Places, machine: str) -> dict[str, Entry]:
    """Return the files of ``oci-decorator`` for a machine, as ``uname -m`` prints it."""
    hooks = source.root / "hooks"
    tree: dict[str, Entry] = {
        "usr/bin/oci-decorator": File(program(source, machine).read_bytes(), 0o755),
        "usr/bin/oci-decorator-runtime": Link("oci-decorator"),
        "usr/share/man/man8/oci-decorator.8.gz": compressed(
            (hooks / "man/oci-decorator.8").read_text()
        ),
        "usr/share/man/man8/oci-decorator-runtime.8.gz": Link("oci-decorator.8.gz"),
        "usr/share/oci-decorator/config.toml": read(hooks / "config/config.toml"),
        "usr/share/oci-decorator/vendor.schema.json": read(hooks / "schema/vendor.schema.json"),
        "etc/oci-decorator/oci-decorator.d": Folder(),
    }
    for folder in ("vendors", "hooks.d", "sarus"):
        for file in source.below("hooks"):
            if file.parts[1] == folder:
                tree[f"usr/share/oci-decorator/{folder}/{file.name}"] = read(source.root / file)
    scripts = {shell: completion.of_decorator(shell) for shell in ("bash", "zsh", "fish")}
    return tree | _completions("oci-decorator", scripts, places)


def nvidia_names() -> dict[str, Entry]:
    """Return the links by which NVIDIA's names are answered."""
    manual_page = Link("oci-decorator.8.gz")
    pages: dict[str, Entry] = {f"usr/share/man/man8/{n}.8.gz": manual_page for n in _NVIDIA_NAMES}
    return pages | {f"usr/bin/{name}": Link("oci-decorator") for name in _NVIDIA_NAMES}


def provision(
    source: Source,
    wheels: Collection[Path],
    places: Places,
    *,
    projects: Collection[str] | None,
) -> dict[str, Entry]:
    """Return the files of ``provision``.

    It is a virtual environment without copies: one ``site-packages`` for every Python, and its
    Python is the distro's.

    Args:
        source: The checkout.
        wheels: What may be bundled.
        places: Of the family.
        projects: Which of them are bundled, where the distro has the others; None: all.
    """
    packages = f"{_ENVIRONMENT}/lib/site-packages"
    own = {
        str(file.relative_to("src")): read(source.root / file)
        for file in source.below("src")
        if file.parts[1] == "provision"
    }
    data = {
        str(file): read(source.root / file)
        for file in source.below("docs", "driver_images", "templates", "constraints.txt")
    }
    system = "true" if projects is not None else "false"
    tree: dict[str, Entry] = {
        "usr/bin/provision": text(_PROGRAM, program=True),
        f"{_ENVIRONMENT}/pyvenv.cfg": text(_VENV.format(system=system)),
        f"{_ENVIRONMENT}/share/provision": Link("../../../share/provision"),
        "etc/provision": Folder(),
        **{
            f"{_ENVIRONMENT}/lib/python{one}/site-packages": Link("../site-packages")
            for one in PYTHONS
        },
        **under(packages, own),
        **under(packages, merged(wheels, projects)),
        **under("usr/share/provision", data),
        **_units(source, places),
        **{
            f"usr/share/man/man8/{name}.gz": compressed(page)
            for name, page in manual.pages(source.version, source.epoch).items()
        },
    }
    if projects is not None:
        tree[f"{_ENVIRONMENT}/bin/python"] = Link("../../../bin/python3")
    scripts = {shell: completion.of_provision(shell) for shell in ("bash", "zsh", "fish")}
    return tree | _completions("provision", scripts, places)


def _units(source: Source, places: Places) -> Tree:
    """Return units, udev's rule and kernel hooks, as a package has them."""
    found: dict[str, Entry] = {}
    hooks = (*DEBIAN_HOOKS, *KERNEL_INSTALL_HOOKS)
    files = unit_files(
        source.root / "templates",
        UnitSettings(
            program="/usr/bin/provision",
            documentation=_PAGE,
            hooks=[hook for hook in hooks if str(hook) in places.hooks],
            wants_podman=places.wants_podman,
        ),
    )
    for file in files:
        content = _WRITTEN_BY.sub("# Part of the package provision;", file.text)
        content = content.replace("provision; changes", "provision: changes")
        folder = str(file.path.parent)
        if file.path.parent == UNITS:
            folder = str(PACKAGED_UNITS)
        elif file.path.suffix == ".rules":
            folder = _PACKAGED_RULES
        found[f"{folder}/{file.path.name}"] = File(content.encode(), file.mode)
    return found


def _completions(name: str, scripts: dict[str, str], places: Places) -> dict[str, Entry]:
    return {
        f"usr/share/bash-completion/completions/{name}": text(scripts["bash"]),
        f"{places.zsh}/_{name}": text(scripts["zsh"]),
        f"usr/share/fish/vendor_completions.d/{name}.fish": text(scripts["fish"]),
    }
