"""Bundles that are unsigned, damaged or contradictory: the host refuses each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.errors import ProvisionError
from provision.fleet.bundle_index import (
    INDEX,
    SIGNATURE,
    SUMS,
    check_files,
    open_bundle,
    sums_text,
)
from provision.fleet.bundle_load import for_host, push_bundle, store_bundle
from provision.pipeline.registries import Consent
from provision.registry.image_signature import UntrustedError
from unit.fleet.air_gap import (
    DEFAULT,
    INNER,
    Make,
    host_of,
    reaching,
    settings_at,
    signer,
)
from unit.fleet.air_gap import make as make  # noqa: PLC0414 - a fixture
from unit.fleet.registries import Registries
from unit.fleet.test_selection import OTHER, PIN
from unit.fleet.test_selection import registries as registries  # noqa: PLC0414 - a fixture
from unit.fleet.test_selection import settings as settings  # noqa: PLC0414 - a fixture
from unit.registry.memory import public_pem


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
