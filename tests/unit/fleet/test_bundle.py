"""Bundles over an air gap: made, signed, damaged, refused, and used on the other side."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature

from provision.build.package_store import Closure, PackageStore
from provision.engine.docker_api import Image
from provision.errors import NotFoundError, ProvisionError
from provision.fleet.bundle import create
from provision.fleet.bundle_contents import Contents, Extras, Order, gather
from provision.fleet.bundle_index import (
    INDEX,
    SIGNATURE,
    SUMS,
    BundleIndex,
    check_files,
    open_bundle,
    sums_text,
)
from provision.fleet.bundle_load import for_host, push_bundle, store_bundle
from provision.fleet.mirror import ImageSelection, RegistryAccess
from provision.pin import ClosurePackage, Pin
from provision.pipeline.registries import Consent, tag_of
from provision.pipeline.registry_search import ArtifactQuery, Lookup, seek
from provision.pipeline.workspace import Settings
from provision.registry.image_signature import UntrustedError
from provision.sources.market import VersionRequest
from unit.engine.fake_engine import FakeEngine
from unit.fleet.registries import Registries
from unit.fleet.test_mirror import KEY, NEXT, OLD, OTHER, PIN, have
from unit.fleet.test_mirror import registries as registries  # noqa: PLC0414 - a fixture
from unit.fleet.test_mirror import settings as settings  # noqa: PLC0414 - a fixture
from unit.kmod.artifact import KERNEL, write
from unit.registry.media import files_in
from unit.registry.memory import ECDSA, public_pem

DEFAULT = Consent()
PACKAGE = b"a package"
SHA256 = hashlib.sha256(PACKAGE).hexdigest()
INNER = "inner.example/drivers"
DEMO, NOTHING = ImageSelection(("demo",)), Extras()


def built(pin: Pin) -> Pin:
    """A Pin with a closure of one package."""
    package = ClosurePackage.model_validate(
        {
            "name": "gcc",
            "version": "1",
            "arch": "amd64",
            "sha256": SHA256,
            "size": len(PACKAGE),
            "repository": "main",
            "location": "pool/gcc.deb",
        }
    )
    return pin.model_copy(update={"closure": (package,)})


class SavingEngine(FakeEngine):
    """An engine with one base image, or none."""

    loaded: list[bytes]

    def __init__(self, *, has_base: bool = True) -> None:
        super().__init__()
        self.loaded = []
        if has_base:
            self.have(Image(PIN.base.digest, ("debian:bookworm",), size=10))

    def save(self, image_id: str) -> Iterator[bytes]:
        yield f"saved {image_id}".encode()

    def load(self, archive: BytesIO) -> None:  # type: ignore[override] # any stream
        self.loaded.append(archive.read())
        self.have(Image(PIN.base.digest, ("debian:bookworm",), size=10))


def signer(data: bytes) -> bytes:
    return KEY.sign(data, ECDSA)


Make = Callable[..., BundleIndex]


@pytest.fixture
def make(registries: Registries, settings: Settings, tmp_path: Path) -> Make:
    """Makes a bundle as the command does."""
    have(registries, settings, PIN)

    def made(
        output: Path = tmp_path / "bundle",
        *,
        selection: ImageSelection = DEMO,
        extras: Extras = NOTHING,
        builds: bool = False,
        key: bool = True,
        engine: FakeEngine | None = None,
    ) -> BundleIndex:
        order = Order(OLD, selection, extras, builds)
        one = engine or SavingEngine()
        access = RegistryAccess(settings, DEFAULT, registries.connect)
        contents: Contents = gather(access, order, lambda: one)
        return create(access, order, contents, output, signer if key else None)

    return made


def host_of(tmp_path: Path, kernel: str = KERNEL) -> Settings:
    """A host in the gap, which trusts the same key."""
    settings = settings_at(tmp_path / "inner")
    write(settings.root / f"lib/modules/{kernel}/modules.dep", b"")
    write(settings.root / f"boot/vmlinuz-{kernel}", b"")
    return settings


def settings_at(folder: Path, trust: str = '{"keys": "/etc/provision/trust.d"}') -> Settings:
    from provision.catalogue import Catalogue  # noqa: PLC0415 - beside its one use
    from provision.config import Config  # noqa: PLC0415 - as above

    write(folder / "host/etc/provision/trust.d/fleet.pub", public_pem(KEY))
    config = Config.model_validate_json(f'{{"trust": {trust}}}')
    return Settings(folder / "host", config, Catalogue([]), folder / "state")


def reaching(host: Settings, registries: Registries | None = None) -> RegistryAccess:
    return RegistryAccess(host, DEFAULT, (registries or Registries()).connect)


@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
def test_a_bundle_goes_over_the_gap(make: Make, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    index = make(output)
    assert [one.kernel for one in index.artifacts] == [KERNEL]
    assert [key.name for key in index.keys] == ["fleet.pub"]
    host = host_of(tmp_path)
    bundle = open_bundle(host, output, DEFAULT)
    assert bundle.signed_by == "fleet.pub"
    check_files(bundle)
    inner = Registries()
    done = push_bundle(reaching(host, inner), bundle, INNER)
    assert done.pushed == [f"{INNER}/demo:{tag_of(PIN).text}"]
    assert push_bundle(reaching(host, inner), bundle, INNER).sent == 0
    stored = store_bundle(reaching(host), bundle, for_host(host, bundle))
    assert [Path(entry).name for entry in stored.entries] == [PIN.short_digest]
    assert store_bundle(reaching(host), bundle, for_host(host, bundle)).changed is False
    assert not list(tmp_path.glob(".bundle*"))


def test_a_host_gets_what_is_for_its_kernels(
    make: Make, registries: Registries, settings: Settings, tmp_path: Path
) -> None:
    have(registries, settings, NEXT)
    make()
    host = host_of(tmp_path, NEXT.kernel.release)
    bundle = open_bundle(host, tmp_path / "bundle", DEFAULT)
    assert [one.pin for one in for_host(host, bundle)] == [NEXT.digest]
    assert len(for_host(host, bundle, all_kernels=True)) == 2


def test_the_agent_looks_into_a_folder(make: Make, tmp_path: Path) -> None:
    host = host_of(tmp_path)
    make(host.root / "media")
    registry = host.config.registry.model_copy(update={"folders": ("/none", "/media")})
    host = replace(host, config=host.config.model_copy(update={"registry": registry}))
    sought = ArtifactQuery("demo", VersionRequest(), "open", KERNEL, "debian:12", "x86_64")
    trusted = seek(host, sought, Lookup(DEFAULT))
    assert trusted is not None
    assert trusted.image.pin == PIN
    assert trusted.verified is not None
    # What was not signed is refused there too.
    layout = host.root / "media/images/demo"
    index = json.loads((layout / "index.json").read_text())
    kept = [m for m in index["manifests"] if "sig" not in json.dumps(m["annotations"])]
    (layout / "index.json").write_text(json.dumps({**index, "manifests": kept}))
    with pytest.raises(UntrustedError, match="no signature of it counts"):
        seek(host, sought, Lookup(DEFAULT))


def test_standard_programs_can_verify_it(make: Make, tmp_path: Path) -> None:
    index = make()
    sums = (tmp_path / "bundle" / SUMS).read_bytes()
    KEY.public_key().verify((tmp_path / "bundle" / SIGNATURE).read_bytes(), sums, ECDSA)
    with pytest.raises(InvalidSignature):
        OTHER.public_key().verify((tmp_path / "bundle" / SIGNATURE).read_bytes(), sums, ECDSA)
    assert f"{hashlib.sha256((tmp_path / 'bundle' / INDEX).read_bytes()).hexdigest()}  {INDEX}" in (
        sums.decode().splitlines()
    )
    assert len(sums.splitlines()) == len(index.files) + 1


def test_what_builds_need_comes_along(
    registries: Registries, settings: Settings, make: Make, tmp_path: Path
) -> None:
    pin = built(NEXT)
    have(registries, settings, pin)
    selection = ImageSelection(("demo",), (pin.kernel.release,))
    with pytest.raises(NotFoundError, match="lacks files that builds need") as caught:
        make(selection=selection, builds=True, engine=SavingEngine(has_base=False))
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
    make(selection=selection, builds=True)
    everything = b"".join(files_in(tmp_path / "bundle").values())
    assert b"secret" not in everything
    host, engine = host_of(tmp_path), SavingEngine(has_base=False)
    bundle = open_bundle(host, tmp_path / "bundle", DEFAULT)
    done = store_bundle(reaching(host), bundle, (), engine=lambda: engine)
    assert (done.packages, done.closures, len(done.bases)) == (1, 1, 1)
    assert engine.loaded == [f"saved {PIN.base.digest}".encode()]
    inner = PackageStore(host.state)
    assert inner.whole(SHA256) is not None
    found = inner.closure("5" * 64)
    assert found is not None
    assert found.packages == pin.closure
    assert store_bundle(reaching(host), bundle, (), engine=lambda: engine).changed is False


def test_a_bundle_is_made_again_in_place(
    make: Make, registries: Registries, settings: Settings, tmp_path: Path
) -> None:
    have(registries, settings, NEXT)
    wheels = tmp_path / "wheels"
    write(wheels / "demo-1-py3-none-any.whl", b"wheel")
    first = make(extras=Extras(wheels=wheels))
    assert any(file.path.startswith("wheels/") for file in first.files)
    fewer = make(selection=ImageSelection(("demo",), (KERNEL,)))
    assert len(fewer.artifacts) == 1
    assert fewer.size < first.size
    on_disk = {name for name in files_in(tmp_path / "bundle") if not name.startswith(".")}
    assert on_disk == {f.path for f in fewer.files} | {INDEX, SUMS, SIGNATURE}
    check_files(open_bundle(settings, tmp_path / "bundle", DEFAULT))


def test_an_interrupted_bundle_is_none_and_goes_on(
    make: Make, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("provision.fleet.bundle._tidy", broken)
        with pytest.raises(OSError, match="No space"):
            make()
    with pytest.raises(NotFoundError, match="is no bundle"):
        open_bundle(settings, tmp_path / "bundle", DEFAULT)
    make()
    check_files(open_bundle(settings, tmp_path / "bundle", DEFAULT))


def test_a_folder_of_others_is_left_alone(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "bundle/letters.txt", b"x")
    with pytest.raises(ProvisionError, match="so no bundle is written"):
        make()
    assert files_in(tmp_path / "bundle") == {"letters.txt": b"x"}


def test_without_room_nothing_is_written(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("provision.fleet.bundle.shutil.disk_usage", lambda _: usage)
    with pytest.raises(ProvisionError, match="MB left"):
        make()
    assert not (tmp_path / "bundle").exists()


def test_who_trusts_another_key_or_none_takes_no_bundle(make: Make, tmp_path: Path) -> None:
    make()
    other = tmp_path / "other.pub"
    other.write_bytes(public_pem(OTHER))
    host = host_of(tmp_path)
    with pytest.raises(UntrustedError, match="no key that this host trusts"):
        open_bundle(host, tmp_path / "bundle", Consent(public_key=other))
    with pytest.raises(ProvisionError, match="whose signatures count"):
        open_bundle(settings_at(tmp_path / "x", "{}"), tmp_path / "bundle", DEFAULT)
    assert open_bundle(host, tmp_path / "bundle", Consent(insecure=True)).signed_by is None


def test_an_unsigned_bundle_is_refused(make: Make, tmp_path: Path) -> None:
    make(key=False)
    with pytest.raises(UntrustedError, match="is not signed"):
        open_bundle(host_of(tmp_path), tmp_path / "bundle", DEFAULT)


def sealed(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change the index of a bundle and sign it again: an insider's bundle."""
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))
    listed = {one["path"]: one["sha256"] for one in index["files"]}
    listed[INDEX] = hashlib.sha256((folder / INDEX).read_bytes()).hexdigest()
    (folder / SUMS).write_bytes(sums_text(listed))
    (folder / SIGNATURE).write_bytes(signer((folder / SUMS).read_bytes()))


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


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a blob with other bytes": (lambda f: _damage(f, "images/demo/blobs"), "is damaged: 1 of"),
    "a blob that is missing": (
        lambda f: next((f / "images/demo/blobs/sha256").iterdir()).unlink(),
        "is damaged: 1 of",
    ),
    "an index with other bytes": (
        lambda f: (f / INDEX).write_text((f / INDEX).read_text() + " "),
        "not the one that is signed",
    ),
    "a list with other sums": (
        lambda f: (f / SUMS).write_bytes((f / SUMS).read_bytes() + b"\n"),
        "no key that this host trusts",
    ),
    "a list of megabytes": (lambda f: (f / SUMS).write_bytes(bytes(17 << 20)), "larger than"),
    "a signature of megabytes": (lambda f: (f / SIGNATURE).write_bytes(bytes(1 << 20)), "larger"),
    "a signature that is a link": (
        lambda f: _link(f / SIGNATURE),
        "can't be read",
    ),
    "a folder in place of the list": (
        lambda f: _folder(f / SUMS),
        "no regular file",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_medium_that_was_altered_is_refused(make: Make, tmp_path: Path, case: str) -> None:
    make()
    change, said = HOSTILE[case]
    change(tmp_path / "bundle")
    with pytest.raises(ProvisionError, match=said):
        check_files(open_bundle(host_of(tmp_path), tmp_path / "bundle", DEFAULT))


INSIDERS: dict[str, tuple[Callable[[dict[str, object]], object], str]] = {
    "names that lead out": (
        lambda index: index["files"][0].update(path="../../etc/passwd"),  # type: ignore[index] # JSON
        "mistake",
    ),
    "unknown members": (lambda index: index.update(run="rm"), "mistake"),
    "another Pin": (
        lambda index: index["artifacts"][0].update(pin=f"sha256:{'0' * 64}"),  # type: ignore[index] # JSON
        "is not the image that the index describes|no signature of it counts",
    ),
    "another driver": (
        lambda index: index["artifacts"][0].update(driver="other"),  # type: ignore[index] # JSON
        "has no file|and so no image",
    ),
    "an image that is missing": (
        lambda index: index["artifacts"][0].update(digest=f"sha256:{'0' * 64}"),  # type: ignore[index] # JSON
        "which is not in it",
    ),
}


@pytest.mark.parametrize("case", INSIDERS)
def test_a_signed_index_that_lies_is_refused_too(make: Make, tmp_path: Path, case: str) -> None:
    """A bundle's signature adds nothing to an artifact's own."""
    make()
    change, said = INSIDERS[case]
    sealed(tmp_path / "bundle", change)
    host = host_of(tmp_path)
    inner = Registries()
    with pytest.raises(ProvisionError, match=said):
        push_bundle(reaching(host, inner), open_bundle(host, tmp_path / "bundle", DEFAULT), INNER)
    assert not inner.stored

    def store() -> None:
        bundle = open_bundle(host, tmp_path / "bundle", DEFAULT)
        store_bundle(reaching(host), bundle, for_host(host, bundle))

    with pytest.raises(ProvisionError, match=said):
        store()
    assert not (host.root / "var/lib/provision/demo" / PIN.short_digest).exists()


def test_an_unsigned_artifact_in_a_signed_bundle_is_refused(make: Make, tmp_path: Path) -> None:
    make()
    layout = tmp_path / "bundle/images/demo/index.json"
    index = json.loads(layout.read_text())
    kept = [m for m in index["manifests"] if "sig" not in json.dumps(m["annotations"])]
    layout.write_text(json.dumps({**index, "manifests": kept}))
    digest, size = hashlib.sha256(layout.read_bytes()).hexdigest(), layout.stat().st_size

    def change(index: dict[str, object]) -> None:
        for one in index["files"]:  # type: ignore[attr-defined] # JSON
            if one["path"] == "images/demo/index.json":
                one.update(sha256=digest, size=size)

    sealed(tmp_path / "bundle", change)
    host = host_of(tmp_path)
    bundle = open_bundle(host, tmp_path / "bundle", DEFAULT)
    check_files(bundle)
    with pytest.raises(UntrustedError, match="no signature of it counts"):
        store_bundle(reaching(host), bundle, for_host(host, bundle))
