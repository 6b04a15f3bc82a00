"""A host's tree that `provision apply --root` keeps: os-release, kernels, provision.toml."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.debian import mirror, security_mirror
from kit.files import BOOKWORM, HostFiles

_KEYRING = Path("usr/share/keyrings/debian-archive-keyring.gpg")
_CONFIG = """\
[engine]
network = "host"

[distros.debian.archive]
mirror = "{mirror}"
security_mirror = "{security}"

"""


class AgentHost(HostFiles):
    """A Debian host below a folder, whose kernel does not run here."""

    @classmethod
    def make(
        cls, root: Path, *, running: str, others: Sequence[str] = (), os_release: str = BOOKWORM
    ) -> AgentHost:
        host = cls(root)
        host.write("etc/os-release", os_release)
        (root / _KEYRING.parent).mkdir(parents=True)
        shutil.copy(Path("/") / _KEYRING, root / _KEYRING)
        for release in (running, *others):
            host.add_kernel(release)
        host.boot(running)
        host.configure("")
        return host

    def remove_kernel(self, release: str) -> None:
        shutil.rmtree(self.root / "lib/modules" / release)
        (self.root / f"boot/vmlinuz-{release}").unlink()

    def configure(self, drivers: str) -> None:
        """Write provision.toml: where packages come from, and what is given."""
        head = _CONFIG.format(mirror=mirror(), security=security_mirror())
        self.write("etc/provision/provision.toml", head + drivers)

    def trust(self, key: Path) -> None:
        """Trust a public key, under its name."""
        self.write(f"etc/provision/trust.d/{key.name}", key.read_text())

    def store(self, driver: str) -> Path:
        return self.root / "var/lib/provision" / driver

    def entries(self, driver: str) -> list[str]:
        """The short digests of a driver's artifacts."""
        return sorted(p.name for p in self.store(driver).glob("????????????") if p.is_dir())

    def link(self, driver: str, release: str) -> str:
        """The short digest of a kernel's artifact."""
        return (self.store(driver) / "kernels" / release).readlink().name

    def current(self, driver: str) -> str:
        """The short digest of the artifact in use."""
        return (self.store(driver) / "current").readlink().name

    def leftovers(self) -> list[Path]:
        """What a run left behind that it should not have."""
        store = self.root / "var/lib/provision"
        kept = {".lock", ".provision.toml"}
        return [path for path in store.rglob(".*") if path.name not in kept]

    @staticmethod
    def slot(status: dict[str, Any], driver: str, release: str) -> dict[str, Any]:
        """One kernel's part of a driver in a status document."""
        (found,) = (d for d in status["drivers"] if d["name"] == driver)
        slots: list[dict[str, Any]] = found["kernels"]
        (slot,) = (slot for slot in slots if slot["release"] == release)
        return slot
