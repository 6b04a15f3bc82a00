"""How a host finds an artifact image in a registry, verifies it and unpacks it."""

from __future__ import annotations

import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kit.memory_registry import (
    MemoryRegistry,
    digest_of,
)
from provision.errors import NotFoundError, ProvisionError
from provision.registry import OCI_INDEX, OCI_MANIFEST
from provision.registry.find import read_image
from unit.registry.signed_images import (
    FACTS,
    KEY,
    PIN,
    changed_layer,
    pull,
    signed_image,
    tar_of,
)
from unit.registry.signed_images import layer as layer  # noqa: PLC0414 - a fixture
from unit.registry.signed_images import registry as registry  # noqa: PLC0414 - a fixture
from unit.zstd_program import Zstd


def test_an_index_leads_to_the_hosts_architecture(registry: MemoryRegistry, tmp_path: Path) -> None:
    def entry(architecture: str, digest: str) -> dict[str, Any]:
        size = len(registry.manifests[digest])
        platform = {"architecture": architecture, "os": "linux"}
        return {"mediaType": OCI_MANIFEST, "digest": digest, "size": size, "platform": platform}

    digest = digest_of(registry.manifests["1"])
    other = registry.have_manifest({"schemaVersion": 2, "layers": []}, "2")
    manifests = [entry("arm64", other), entry("amd64", digest)]
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}
    registry.have_manifest(index, "1")
    assert pull(registry, tmp_path).reference.digest == digest
    with pytest.raises(NotFoundError):
        read_image(registry.client(), "s390x")


def test_what_an_image_has_for_others_is_passed_over(
    registry: MemoryRegistry, layer: bytes, tmp_path: Path
) -> None:
    """Kubernetes' KMM needs a shell in the image; none of it gets onto a host, whatever it is."""
    shell = tar_of(
        ("./", tarfile.DIRTYPE, ""),
        ("./bin", tarfile.SYMTYPE, "usr/bin"),
        ("lib", tarfile.SYMTYPE, "/usr/lib"),
        ("usr/bin/sh", tarfile.REGTYPE, ""),
        ("usr/bin/cp", tarfile.LNKTYPE, "usr/bin/sh"),
        ("etc/passwd", tarfile.SYMTYPE, "../../../etc/passwd"),
        ("dev/sda", tarfile.BLKTYPE, ""),
        ("usr/.wh.share", tarfile.REGTYPE, ""),
        ("usr/bin/sh", tarfile.REGTYPE, ""),
    )
    signed_image(registry, shell, layer, shell)
    pull(registry, tmp_path)
    assert {path.name for path in (tmp_path / "entry").iterdir()} == {"driver", "lib"}
    assert not (tmp_path / "entry/lib").is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


@pytest.mark.parametrize(
    ("status", "stderr"),
    [
        (0, ""),
        (1, "zstd: corrupt"),
        (-signal.SIGXFSZ, ""),
        (1, "zstd: File too large"),
    ],
)
def test_a_layer_of_zstd_is_left_to_the_distros_program(
    registry: MemoryRegistry,
    layer: bytes,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    stderr: str,
) -> None:
    packed = b"\x28\xb5\x2f\xfd" + layer
    stored = {"digest": registry.have_blob(packed), "size": len(packed)}
    changed_layer(registry, mediaType="application/vnd.oci.image.layer.v1.tar+zstd", **stored)
    zstd = Zstd.put(tmp_path_factory.mktemp("zstd"), monkeypatch, packed, layer)
    zstd.end(status, stderr)
    if status == 0:
        pull(registry, tmp_path)
        assert (tmp_path / "entry/driver/manifest.json").is_file()
    else:
        with pytest.raises(ProvisionError):
            pull(registry, tmp_path)
    # Neither bytes nor memory without a limit.
    assert zstd.called[0] == 16 << 30
    assert "--memory=128MB" in zstd.called[1]
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_what_is_verified_is_what_is_unpacked(registry: MemoryRegistry, tmp_path: Path) -> None:
    """From the first answer on, everything is asked for by digest."""
    pull(registry, tmp_path)
    names = [asked.split()[1] for asked in registry.asked if asked.startswith("manifest ")]
    pulled = names[names.index("1") :]
    assert pulled.count("1") == 1
    assert all(name.startswith("sha256") for name in pulled[1:])


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"[" * 100_000, b"\xff"])
def test_a_manifest_that_is_none(registry: MemoryRegistry, tmp_path: Path, body: bytes) -> None:
    registry.manifests["1"] = body
    registry.sign(digest_of(body), FACTS, KEY)
    with pytest.raises(ProvisionError):
        pull(registry, tmp_path)


def test_an_image_of_another_program_is_named_so(
    registry: MemoryRegistry, tmp_path: Path, layer: bytes
) -> None:
    registry.sign(registry.have_image(PIN, [layer], labels={"a": "b"}), FACTS, KEY)
    with pytest.raises(ProvisionError):
        pull(registry, tmp_path)
