"""The second kernel of a driver: its user space is in the store, and only modules are pulled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.artifact import KERNEL as OLD
from kit.artifact import (
    LIBRARY,
    VERMAGIC,
    make_artifact,
    make_module,
    make_pin,
    write_manifest,
)
from kit.memory_registry import MemoryRegistry, layer_of
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config, RegistryConfig, TrustConfig
from provision.errors import ProvisionError
from provision.kmod.verify import verify_artifact
from provision.progress import listening
from provision.registry.find import TrustOverride, read_image
from provision.store.activate import activate_entry
from provision.store.entries import remove
from provision.store.layout import Layout
from provision.store.obtain import Stored, store_pulled

NEW = "6.1.0-50-amd64"
LARGE = os.urandom(200_000)


class Site:
    """A registry with a driver for two kernels, and a host."""

    def __init__(self, folder: Path) -> None:
        self.registry = MemoryRegistry()
        config = Config(
            registry=RegistryConfig(address="registry.example/drivers"),
            trust=TrustConfig(insecure=True),
        )
        self.settings = Settings(folder / "host", config, Catalogue([]), folder / "state")
        self.folder = folder
        self.said: list[str] = []

    def have(self, kernel: str, *, library: bytes = LARGE, **manifest: object) -> None:
        content = self.folder / f"content-{kernel}"
        module = make_module(VERMAGIC.replace(OLD, kernel))
        pin = make_pin(kernel=kernel)
        made = make_artifact(content, pin=pin, module=module, library=library)
        write_manifest(content, made, **manifest)

        def is_userspace(name: str) -> bool:
            return "driver/" in name and not name.endswith("manifest.json")

        modules = layer_of(content, lambda name: not is_userspace(name))
        self.registry.have_image(pin, [layer_of(content, is_userspace), modules], kernel)

    def pull(self, kernel: str, *, replace: bool = False) -> Stored:
        client = self.registry.client(f"registry.example/drivers/demo:{kernel}")
        image = read_image(client, "x86_64")
        self.registry.asked.clear()
        with listening(lambda event: self.said.append(str(event))):
            return store_pulled(self.settings, image, TrustOverride(insecure=True), replace=replace)

    def blobs(self) -> int:
        """How many layers were asked for since the last pull began."""
        return sum(asked.startswith("fetch") for asked in self.registry.asked)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two kernels with the same user space."""
    site = Site(tmp_path)
    site.have(OLD)
    site.have(NEW)
    return site


def test_the_second_kernel_pulls_its_modules_only(site: Site) -> None:
    first = site.pull(OLD)
    assert first.received > len(LARGE)
    assert site.blobs() == 2
    second = site.pull(NEW)
    assert site.blobs() == 1
    assert second.received < 20_000
    assert "are in the store, and not pulled" in " ".join(site.said)
    entry = second.entry
    assert verify_artifact(entry).findings == ()
    assert (entry / "driver/usr/lib64/demo/libdemo.so.1").is_symlink()
    library = f"driver{LIBRARY}"
    assert (entry / library).stat().st_ino == (first.entry / library).stat().st_ino
    # Its modules are its own: hosts sign them.
    assert (entry / f"lib/modules/{NEW}/demo.ko").stat().st_nlink == 1


def test_either_entry_outlives_the_other(site: Site) -> None:
    first = site.pull(OLD).entry
    second = site.pull(NEW).entry
    layout = Layout(site.settings.root, "demo")
    freed = remove(layout, first.name)
    assert freed < len(LARGE), "the library is still there"
    assert verify_artifact(second).findings == ()
    assert remove(layout, second.name) > len(LARGE)


def test_what_is_damaged_in_the_store_is_pulled(site: Site) -> None:
    first = site.pull(OLD).entry
    library = first / f"driver{LIBRARY}"
    library.write_bytes(b"x" * len(LARGE))
    second = site.pull(NEW)
    assert "What the store has of it is damaged; pulling all of it" in " ".join(site.said)
    assert verify_artifact(second.entry).findings == ()
    assert second.received > len(LARGE)
    # The damaged one is repaired by itself, and not from itself.
    site.said.clear()
    site.pull(OLD, replace=True)
    assert verify_artifact(first).findings == ()
    assert not any("damaged" in text for text in site.said)


@pytest.mark.parametrize("change", ["size", "gone", "link", "manifest", "kind", "content"])
def test_what_the_store_lacks_is_pulled(site: Site, change: str) -> None:
    first, kernel = site.pull(OLD).entry, NEW
    library = first / f"driver{LIBRARY}"
    link, manifest = library.with_name("libdemo.so.1"), first / "driver/manifest.json"
    match change:
        case "size":
            library.write_bytes(b"short")
        case "gone":
            library.unlink()
        case "link":
            link.unlink()
            link.symlink_to("/etc/hostname")
        case "manifest":
            manifest.write_bytes(b"{}")
        case "kind":
            # It decides its label under SELinux, and a linked file has one label for both.
            text = manifest.read_text()
            manifest.write_text(text.replace('"library"', '"binary"'))
            assert manifest.read_text() != text
        case "content":
            kernel = "6.1.0-51-amd64"
            site.have(kernel, library=os.urandom(len(LARGE)))
    second = site.pull(kernel)
    assert site.blobs() == 2
    assert verify_artifact(second.entry).findings == ()


def test_an_image_whose_manifest_is_damaged_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.have(OLD)
    site.have(NEW, pin_digest="sha256:" + "0" * 64)
    site.pull(OLD)
    with pytest.raises(ProvisionError):
        site.pull(NEW)
    assert len(list((tmp_path / "host/var/lib/provision/demo").glob("[0-9a-f]*"))) == 1


def test_a_file_system_without_links_has_copies(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("none here")

    first = site.pull(OLD)
    with monkeypatch.context() as without_links:
        without_links.setattr(Path, "hardlink_to", refuse)
        second = site.pull(NEW)
    assert site.blobs() == 1
    assert verify_artifact(second.entry).findings == ()
    library = f"driver{LIBRARY}"
    assert (second.entry / library).stat().st_nlink == 1
    # Of two that have a file, the one that is in use gives it.
    layout = Layout(site.settings.root, "demo")
    for kernel, used in (("6.1.0-51-amd64", first.entry), ("6.1.0-52-amd64", second.entry)):
        activate_entry(layout, used)
        site.have(kernel)
        given = site.pull(kernel).entry / library
        assert given.stat().st_ino == (used / library).stat().st_ino
