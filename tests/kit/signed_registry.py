"""The outer side of an air gap: a real registry with a signed image, without any engine.

The image's module is made up, and is never loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.agent_host import AgentHost
from kit.artifact import make_artifact, make_pin
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
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
_MADE_UP = make_pin(driver=SMALL_DRIVER, kernel=OLD_KERNEL)
# Of the flavour that hosts look for unasked.
_DRIVER = _MADE_UP.driver.model_copy(update={"flavour": "dkms"})
PIN = _MADE_UP.model_copy(update={"driver": _DRIVER})
TAG = tag_of(PIN).text


@dataclass(frozen=True, slots=True)
class SignedRegistry:
    """The outer side of a gap: a registry with a signed image."""

    # Of the registry, with the prefix.
    address: str
    # A machine that trusts the key.
    root: Path
    folder: Path
    digest: str

    @property
    def key(self) -> Path:
        return self.folder / "fleet.key"

    @property
    def public(self) -> Path:
        return self.folder / "fleet.pub"

    def carry(self, output: Path) -> Path:
        """Copy what is there into a folder."""
        name = f"{self.address}/{SMALL_DRIVER}:{TAG}"
        NO_ENGINE("registry", "push", name, f"oci:{output}", "--root", self.root)
        return output


@contextmanager
def signed_registry(folder: Path) -> Iterator[SignedRegistry]:
    """Serve a registry with one signed image; keys and all else are below `folder`."""
    root = _host(folder)
    (folder / "outer").mkdir()
    with serving_registry(folder / "outer") as registry:
        address = f"{registry}/drivers"
        digest = _push(root, address, folder)
        name = f"{address}/{SMALL_DRIVER}@{digest}"
        NO_ENGINE("registry", "sign", name, "--key", folder / "fleet.key", "--root", root)
        yield SignedRegistry(address, root, folder, digest)


def _host(folder: Path) -> Path:
    NO_ENGINE("registry", "key", "--output", folder / "fleet", "--no-password")
    host = AgentHost.make(folder / "host", running=OLD_KERNEL)
    host.write("etc/provision/trust.d/fleet.pub", (folder / "fleet.pub").read_text())
    host.configure('[trust]\nkeys = "/etc/provision/trust.d"\n')
    return host.root


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
