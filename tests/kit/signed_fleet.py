"""A registry with one signed image, and hosts that pull it: what a fleet is at its smallest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.agent_host import AgentHost
from kit.engine import Engine
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.probe import need_programs
from kit.product import Provision
from kit.registry import serving_registry

TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
PASSWORD = "of a test"  # noqa: S105 - of no one


@dataclass(frozen=True, slots=True)
class Fleet:
    """A registry with one signed image, and the keys that it is signed with."""

    # Of the registry, with the prefix.
    address: str
    folder: Path
    # What 'provision build --push --sign' printed.
    built: dict[str, Any]

    @property
    def by_digest(self) -> str:
        """The image, by its digest."""
        reference = str(self.built["signed"]["reference"])
        return f"{self.address}/{SMALL_DRIVER}@{reference.rsplit('@', 1)[1]}"

    def settings(self, more: str = "") -> str:
        """A provision.toml that pulls from the registry and never builds."""
        return (
            f'[drivers.{SMALL_DRIVER}]\n[registry]\naddress = "{self.address}"\n'
            f'[trust]\nkeys = "/etc/provision/trust.d"\n{more}[policy]\nbuild = "never"\n'
        )

    def host(self, folder: Path, *keys: str, more: str = "") -> AgentHost:
        """A host with these settings, which trusts these keys."""
        host = AgentHost.make(folder, running=OLD_KERNEL)
        host.configure(self.settings(more))
        for key in keys:
            host.write(f"etc/provision/trust.d/{key}", (self.folder / key).read_text())
        return host


@contextmanager
def signed_fleet(engine: Engine, folder: Path) -> Iterator[Fleet]:
    """Serve the small driver's image from a registry; the first of two keys has signed it."""
    need_programs("docker-registry")
    provision = Provision(engine.host)
    password = folder / "password"
    password.write_text(f"{PASSWORD}\n")
    for name in ("fleet", "other"):
        provision("registry", "key", "--output", folder / name, "--password-file", password)
    (folder / "registry").mkdir()
    with serving_registry(folder / "registry") as registry:
        address = f"{registry}/drivers"
        facts = provision.json("resolve", *TARGET)
        tag = f"{facts['driver']['version']}-{facts['driver']['flavour']}-{OLD_KERNEL}.debian12"
        name = f"{address}/{SMALL_DRIVER}:{tag}"
        signing = ("--sign", "--key", folder / "fleet.key", "--password-file", password)
        built = provision.build(*TARGET, "--push", name, *signing)
        yield Fleet(address, folder, built)
