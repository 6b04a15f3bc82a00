"""Bundles over an air gap: made, signed, interrupted, and used on the other side."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature

from provision.build.package_store import Closure, PackageStore
from provision.errors import NotFoundError, ProvisionError
from provision.fleet.bundle_contents import Extras
from provision.fleet.bundle_index import (
    INDEX,
    SIGNATURE,
    SUMS,
    check_files,
    open_bundle,
)
from provision.fleet.bundle_load import for_host, push_bundle, store_bundle
from provision.fleet.selection import ImageSelection
from provision.pipeline.registries import tag_of
from provision.pipeline.registry_search import ArtifactQuery, Lookup, seek
from provision.pipeline.workspace import Settings
from provision.registry.image_signature import UntrustedError
from provision.sources.market import VersionRequest
from unit.fleet.air_gap import (
    DEFAULT,
    INNER,
    PACKAGE,
    SHA256,
    Make,
    SavingEngine,
    built,
    host_of,
    reaching,
)
from unit.fleet.air_gap import make as make  # noqa: PLC0414 - a fixture
from unit.fleet.registries import Registries
from unit.fleet.test_selection import KEY, NEXT, OTHER, PIN, have
from unit.fleet.test_selection import registries as registries  # noqa: PLC0414 - a fixture
from unit.fleet.test_selection import settings as settings  # noqa: PLC0414 - a fixture
from unit.kmod.artifact import KERNEL, write
from unit.registry.media import files_in
from unit.registry.memory import ECDSA


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
