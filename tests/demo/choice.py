"""Which kernel the demo builds for: the running one where that can be, else a packaged one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from demo.screen import DemoError
from kit.product import Provision
from provision.catalogue import version_matches

# What the project builds for today; an own kernel of another distro has no packaged headers here.
_DISTROS = ("debian:12", "debian:13")


@dataclass(frozen=True, slots=True)
class Choice:
    """What to build, for which kernel of which distro, and why that one."""

    driver: str
    distro: str
    kernel: str
    why: str


def choose(provision: Provision, facts: dict[str, Any]) -> Choice:
    """Follow DEMO_DRIVER, DEMO_DISTRO and DEMO_KERNEL where they are set.

    Raises:
        DemoError: the catalogue knows no packaged kernel that the driver builds on.
    """
    driver = os.environ.get("DEMO_DRIVER", "nvidia")
    running = facts["kernel"]
    own = f"{facts['distro']['id']}:{facts['distro']['version']}"
    distro = os.environ.get("DEMO_DISTRO") or (own if own in _DISTROS else _DISTROS[0])
    named = os.environ.get("DEMO_KERNEL")
    if named:
        return Choice(driver, distro, named, "DEMO_KERNEL names it")
    rows = provision.json("drivers", "kernels", driver, "--distro", distro)["kernels"]
    usable = usable_kernels(provision, driver, rows)
    if running in usable:
        return Choice(
            driver, distro, running, "it is the running kernel, and its headers are packaged"
        )
    if not usable:
        raise DemoError(f"the catalogue has no packaged kernel of {distro} that {driver} builds on")
    why = f"no packaged headers of the running kernel {running} suit it; this is the newest that do"
    return Choice(driver, distro, usable[0], why)


def usable_kernels(provision: Provision, driver: str, rows: list[dict[str, Any]]) -> list[str]:
    """Kernels that the driver builds on; where the distro packages it, in a packaged version.

    The demo needs the archive only: for other kernels the recipe may name a vendor's server.
    """
    found = [row for row in rows if row["known"] == "works"]
    described = provision.json("drivers")["drivers"]
    sources = next(one["sources"] for one in described if one["name"] == driver)
    packaged = [source["versions"] for source in sources if source["kind"] == "deb"]
    from_packages = [
        row for row in found if any(version_matches(row["version"], v) for v in packaged)
    ]
    return [row["release"] for row in from_packages or found]
