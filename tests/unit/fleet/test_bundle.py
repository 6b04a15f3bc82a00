"""Bundles: what a host takes out of one, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import IO

import pytest

from kit.artifact import KERNEL, write
from kit.memory_registry import public_pem
from provision.build.package_store import Closure, PackageStore
from provision.build.request import VersionRequest
from provision.build.workspace import Settings
from provision.engine.docker_api import Image
from provision.errors import NotFoundError, ProvisionError
from provision.fleet.bundle import (
    SIGNATURE,
    SUMS,
    ImageSelection,
    RegistryAccess,
    gather,
    seal,
)
from provision.fleet.bundle_load import (
    Loaded,
    artifacts_of,
    check_files,
    for_host,
    open_bundle,
    store_bundle,
)
from provision.pin import ClosurePackage, Pin
from provision.registry.find import ArtifactQuery, SearchOptions, TrustOverride, find_in_registries
from provision.registry.signatures import UntrustedError
from unit.engine.fake_engine import FakeEngine, using
from unit.fleet.air_gap import DEFAULT, Make, host_of, reaching, settings_at, signer
from unit.fleet.air_gap import make as make  # noqa: PLC0414 - a fixture
from unit.fleet.registries import Registries
from unit.fleet.test_selection import NEXT, OLD, OTHER, PIN, have
from unit.fleet.test_selection import registries as registries  # noqa: PLC0414 - a fixture
from unit.fleet.test_selection import settings as settings  # noqa: PLC0414 - a fixture

PACKAGE = b"a package"
SHA256 = hashlib.sha256(PACKAGE).hexdigest()


def test_the_store_gets_what_is_for_the_hosts_kernels(
    make: Make, registries: Registries, settings: Settings, tmp_path: Path
) -> None:
    have(registries, settings, NEXT)
    host = host_of(tmp_path)
    bundle = open_bundle(host, make(), DEFAULT)
    check_files(bundle)
    images = artifacts_of(reaching(host), bundle)
    assert len(for_host(host, images, all_kernels=True)) == 2
    mine = for_host(host, images)
    stored, again = Loaded(), Loaded()
    store_bundle(reaching(host), bundle, mine, stored)
    assert [Path(entry).name for entry in stored.entries] == [PIN.short_digest]
    store_bundle(reaching(host), bundle, mine, again)
    assert (stored.changed, again.changed) == (True, False)


def test_the_agent_looks_into_a_folder(make: Make, tmp_path: Path) -> None:
    host = host_of(tmp_path)
    make(host.root / "media")
    registry = host.config.registry.model_copy(update={"folders": ("/none", "/media")})
    host = replace(host, config=host.config.model_copy(update={"registry": registry}))
    sought = ArtifactQuery("demo", VersionRequest(), "open", KERNEL, "debian:12", "x86_64")
    trusted = find_in_registries(host, sought, SearchOptions(DEFAULT))
    assert trusted is not None
    assert trusted.pin == PIN
    assert trusted.verified is not None
    unsigned(host.root / "media")
    with pytest.raises(UntrustedError):
        find_in_registries(host, sought, SearchOptions(DEFAULT))


def unsigned(bundle: Path) -> None:
    """Remove the signatures of a bundle's artifacts."""
    path = bundle / "images/demo/index.json"
    index = json.loads(path.read_text())
    kept = [m for m in index["manifests"] if "sig" not in json.dumps(m["annotations"])]
    path.write_text(json.dumps({**index, "manifests": kept}))


def test_a_signed_bundle_replaces_no_artifacts_signature(make: Make, tmp_path: Path) -> None:
    bundle, host = make(), host_of(tmp_path)
    unsigned(bundle)
    seal(bundle, signer)
    found = open_bundle(host, bundle, DEFAULT)
    check_files(found)
    with pytest.raises(UntrustedError):
        artifacts_of(reaching(host), found)


def test_who_trusts_another_key_or_none_takes_no_bundle(make: Make, tmp_path: Path) -> None:
    bundle, host, other = make(), host_of(tmp_path), tmp_path / "other.pub"
    other.write_bytes(public_pem(OTHER))
    with pytest.raises(UntrustedError):
        open_bundle(host, bundle, TrustOverride(public_key=other))
    with pytest.raises(ProvisionError):
        open_bundle(settings_at(tmp_path / "x", "{}"), bundle, DEFAULT)
    assert open_bundle(host, bundle, TrustOverride(insecure=True)).signed_by is None
    (bundle / SIGNATURE).unlink()
    with pytest.raises(UntrustedError):
        open_bundle(host, bundle, DEFAULT)


def _damage(folder: Path, place: str) -> None:
    path = next(p for p in sorted((folder / place).rglob("*")) if p.is_file())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _lead_out(folder: Path) -> None:
    """A trusted signer of bundles who names files elsewhere."""
    (folder / SUMS).write_bytes(b"0" * 64 + b"  ../../etc/passwd\n")
    (folder / SIGNATURE).write_bytes(signer((folder / SUMS).read_bytes()))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a blob with other bytes": lambda f: _damage(f, "images/demo/blobs"),
    "a blob that is missing": lambda f: next((f / "images/demo/blobs/sha256").iterdir()).unlink(),
    "a list with other sums": lambda f: (f / SUMS).write_bytes((f / SUMS).read_bytes() + b"\n"),
    "a list of megabytes": lambda f: (f / SUMS).write_bytes(bytes(17 << 20)),
    "a signature of megabytes": lambda f: (f / SIGNATURE).write_bytes(bytes(1 << 20)),
    "a signature that is a link": lambda f: _link(f / SIGNATURE),
    "a folder in place of the list": lambda f: _folder(f / SUMS),
    "names that lead out": _lead_out,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_medium_that_was_altered_is_refused(make: Make, tmp_path: Path, case: str) -> None:
    bundle, host = make(), host_of(tmp_path)
    HOSTILE[case](bundle)
    with pytest.raises(ProvisionError):
        check_files(open_bundle(host, bundle, DEFAULT))


class EngineWithBase(FakeEngine):
    """An engine with one base image, or none."""

    def __init__(self, *, has_base: bool = True) -> None:
        super().__init__()
        if has_base:
            self.have(Image(PIN.base.digest, ("debian:bookworm",), size=10))

    def save(self, image_id: str) -> Iterator[bytes]:
        yield f"saved {image_id}".encode()

    def load(self, archive: IO[bytes]) -> None:
        super().load(archive)
        self.have(Image(PIN.base.digest, ("debian:bookworm",), size=10))


def built(pin: Pin) -> Pin:
    """A Pin with a closure of one package."""
    package = ClosurePackage(
        name="gcc",
        version="1",
        arch="amd64",
        sha256=SHA256,
        size=len(PACKAGE),
        repository="main",
        location="pool/gcc.deb",
    )
    return pin.model_copy(update={"closure": (package,)})


def test_what_builds_need_comes_along(
    registries: Registries, settings: Settings, make: Make, tmp_path: Path
) -> None:
    pin = built(NEXT)
    have(registries, settings, pin)
    selection = ImageSelection(("demo",), (pin.kernel.release,))
    without = using(settings, EngineWithBase(has_base=False))
    access = RegistryAccess(without, DEFAULT, registries.connect)
    with pytest.raises(NotFoundError) as caught:
        gather(access, OLD, selection)
    assert "gcc" in str(caught.value.details)
    assert "debian:bookworm@" in str(caught.value.details)
    store = PackageStore(settings.state)
    store.add(BytesIO(PACKAGE), sha256=SHA256, name="gcc")
    closure = Closure(
        distro=pin.distro,
        kernel=pin.kernel.release,
        architecture="x86_64",
        cc_version_text="gcc",
        compiler=None,
        headers=(),
        packages=pin.closure,
        urls={SHA256: ("https://me:secret@mirror.example/gcc.deb",)},
    )
    store.keep("5" * 64, closure)
    contents = gather(replace(access, settings=using(settings, EngineWithBase)), OLD, selection)
    assert [base for base, _image in contents.bases] == [PIN.base]
    assert "secret" not in "".join(contents.texts.values())
    folder = make()
    for place, text in contents.texts.items():
        write(folder / place, text.encode())
    for place, source in contents.copies.items():
        write(folder / place, source.read_bytes())
    base = folder / f"bases/{PIN.base.digest.removeprefix('sha256:')}.tar"
    saved = saved_image()
    write(base, saved)
    seal(folder, signer)
    engine = EngineWithBase(has_base=False)
    host = using(host_of(tmp_path), engine)
    bundle = open_bundle(host, folder, DEFAULT)
    done, again = Loaded(), Loaded()
    store_bundle(reaching(host), bundle, (), done, with_bases=True)
    assert (done.packages, done.closures, done.bases) == (1, 1, [PIN.base.digest])
    assert engine.loaded == [saved]
    inner = PackageStore(host.state)
    assert inner.whole(SHA256) is not None
    found = inner.closure("5" * 64)
    assert found is not None
    assert found.packages == pin.closure
    store_bundle(reaching(host), bundle, (), again, with_bases=True)
    assert again.changed is False


def saved_image(*, index: object = None, **more: object) -> bytes:
    """Return an archive as an engine saves an image by its id, with further files of JSON."""
    indexes = {"manifest.json": index or [{"Config": "config.json", "RepoTags": None}], **more}
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, document in indexes.items():
            content = json.dumps(document).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))
    return buffer.getvalue()


_OWN = {"Config": "config.json", "RepoTags": None}


@pytest.mark.parametrize(
    "saved",
    [
        saved_image(index=[{**_OWN, "RepoTags": ["debian:bookworm"]}]),
        saved_image(index=[_OWN, {**_OWN, "RepoTags": ["debian:bookworm"]}]),
        saved_image(index=[_OWN, _OWN]),
        saved_image(index=[{**_OWN, "Parent": f"sha256:{'1' * 64}"}]),
        saved_image(repositories={"debian": {"bookworm": "1" * 64}}),
        saved_image(
            **{
                "./index.json": {
                    "manifests": [{"annotations": {"io.containerd.image.name": "debian:bookworm"}}]
                }
            }
        ),
        saved_image(**{"./manifest.json": [{**_OWN, "RepoTags": ["debian:bookworm"]}]}),
        b"no archive",
    ],
    ids=["tag", "second image", "two", "parent", "old format", "layout", "twice", "none"],
)
def test_a_base_image_of_a_bundle_brings_no_name_along(
    make: Make, tmp_path: Path, saved: bytes
) -> None:
    """Signed, so that only the names count."""
    folder = make()
    write(folder / f"bases/{PIN.base.digest.removeprefix('sha256:')}.tar", saved)
    seal(folder, signer)
    engine = EngineWithBase(has_base=False)
    host = using(host_of(tmp_path), engine)
    bundle = open_bundle(host, folder, DEFAULT)
    check_files(bundle)
    with pytest.raises(ProvisionError):
        store_bundle(reaching(host), bundle, (), Loaded(), with_bases=True)
    assert engine.loaded == []


def test_a_medium_that_changes_after_it_was_checked_is_refused(make: Make, tmp_path: Path) -> None:
    folder = make()
    base = folder / f"bases/{PIN.base.digest.removeprefix('sha256:')}.tar"
    write(base, saved_image())
    seal(folder, signer)
    engine = EngineWithBase(has_base=False)
    host = using(host_of(tmp_path), engine)
    bundle = open_bundle(host, folder, DEFAULT)
    check_files(bundle)
    write(base, saved_image(index=[{**_OWN, "Config": "another.json"}]))
    with pytest.raises(ProvisionError):
        store_bundle(reaching(host), bundle, (), Loaded(), with_bases=True)
    assert engine.loaded == []
