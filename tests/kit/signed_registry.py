"""A real registry with one signed image of the small driver, and hosts that trust its key.

The image is a build, or, for the outer side of an air gap, made up without any engine; its module
is never loaded then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.agent_host import AgentHost
from kit.artifact import make_artifact, make_pin
from kit.engine import Engine
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.media import image_of
from kit.memory_registry import layer_of
from kit.product import Provision
from kit.registry import serving_registry
from provision.build.dockerfile import OPERATOR_LABEL
from provision.build.workspace import load_settings
from provision.pin import PIN_LABEL
from provision.registry import parse_reference
from provision.registry.find import registry_of, tag_of
from provision.registry.repositories import copy, writable_layout

# An address at which no engine is: what is run here needs none.
NO_ENGINE = Provision("unix:///nonexistent/docker.sock")
TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
PASSWORD = "of a test"  # noqa: S105 - of no one
# The made-up one, of the flavour that hosts look for unasked.
_MADE_UP = make_pin(driver=SMALL_DRIVER, kernel=OLD_KERNEL)
PIN = _MADE_UP.model_copy(update={"driver": _MADE_UP.driver.model_copy(update={"flavour": "dkms"})})
TAG = tag_of(PIN).text


@dataclass(frozen=True, slots=True)
class SignedRegistry:
    """The registry, and beside it the keys: `fleet`, which has signed the image, and others."""

    # Of the registry, with the prefix.
    address: str
    folder: Path
    digest: str

    @property
    def name(self) -> str:
        """The image, by its digest."""
        return f"{self.address}/{SMALL_DRIVER}@{self.digest}"

    @property
    def public(self) -> Path:
        return self.folder / "fleet.pub"

    @property
    def root(self) -> Path:
        """A machine that trusts the key; of the outer side of a gap."""
        return self.folder / "host"

    def settings(self) -> str:
        """A provision.toml that pulls from the registry and never builds."""
        return (
            f'[drivers.{SMALL_DRIVER}]\n[registry]\naddress = "{self.address}"\n'
            '[trust]\nkeys = "/etc/provision/trust.d"\n[policy]\nbuild = "never"\n'
        )

    def host(self, folder: Path, *keys: str) -> AgentHost:
        """A host with these settings, which trusts these keys."""
        host = AgentHost.make(folder, running=OLD_KERNEL)
        host.configure(self.settings())
        for key in keys:
            host.trust(self.folder / key)
        return host

    def carry(self, output: Path) -> Path:
        """Copy what is there into a folder."""
        name = f"{self.address}/{SMALL_DRIVER}:{TAG}"
        NO_ENGINE("registry", "push", name, f"oci:{output}", "--root", self.root)
        return output


@dataclass(frozen=True, slots=True)
class Fleet(SignedRegistry):
    """The same with a build."""

    # What 'provision build --push --sign' printed.
    built: dict[str, Any]


@contextmanager
def signed_fleet(engine: Engine, folder: Path) -> Iterator[Fleet]:
    """Serve a registry with a build; there is another key, `other`, and both have a password."""
    provision = Provision(engine.host)
    password = folder / "password"
    password.write_text(f"{PASSWORD}\n")
    for name in ("fleet", "other"):
        provision("registry", "key", "--output", folder / name, "--password-file", password)
    with serving_registry(folder / "registry") as registry:
        facts = provision.json("resolve", *TARGET)
        tag = f"{facts['driver']['version']}-{facts['driver']['flavour']}-{OLD_KERNEL}.debian12"
        name = f"{registry}/drivers/{SMALL_DRIVER}:{tag}"
        signing = ("--sign", "--key", folder / "fleet.key", "--password-file", password)
        built = provision.build(*TARGET, "--push", name, *signing)
        digest = str(built["signed"]["reference"]).rpartition("@")[2]
        yield Fleet(f"{registry}/drivers", folder, digest, built)


@contextmanager
def signed_registry(folder: Path) -> Iterator[SignedRegistry]:
    """Serve a registry with a made-up image; keys and all else are below `folder`."""
    NO_ENGINE("registry", "key", "--output", folder / "fleet", "--no-password")
    host = AgentHost.make(folder / "host", running=OLD_KERNEL)
    host.trust(folder / "fleet.pub")
    host.configure('[trust]\nkeys = "/etc/provision/trust.d"\n')
    with serving_registry(folder / "outer") as registry:
        address = f"{registry}/drivers"
        made = SignedRegistry(address, folder, _push(host.root, address, folder))
        key = ("--key", folder / "fleet.key", "--root", host.root)
        NO_ENGINE("registry", "sign", made.name, *key)
        yield made


def _push(root: Path, address: str, folder: Path) -> str:
    """Have an image in a registry without an engine; its digest."""
    make_artifact(folder / "artifact", pin=PIN)
    layer = layer_of(folder / "artifact")
    # One that an operator may run; whoever pushed it had no access to set those tags.
    labels = {PIN_LABEL: PIN.canonical_json(), OPERATOR_LABEL: PIN.driver.version}
    image = image_of(PIN, [layer], labels=labels)
    name = parse_reference(f"{address}/{SMALL_DRIVER}")
    writer = writable_layout(folder / "layout", name)
    digest = writer.put_image(TAG, image.manifest, image.blobs)
    target = registry_of(load_settings(root), name)
    for tag in (TAG, f"{TAG}-{PIN.short_digest}"):
        copy(writer, TAG, target, tag)
    return digest
