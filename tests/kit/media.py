"""Images as OCI's specification has them, and archives as good and bad media have them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.pin import PIN_LABEL, Pin
from provision.registry import OCI_CONFIG, OCI_MANIFEST, content_digest


@dataclass(frozen=True, slots=True)
class OciImage:
    """What a registry or a layout has of an image."""

    manifest: bytes
    config: bytes
    layers: tuple[bytes, ...]

    @property
    def blobs(self) -> list[bytes]:
        """All but the manifest."""
        return [self.config, *self.layers]


def image_of(
    pin: Pin,
    tars: Iterable[bytes],
    *,
    labels: Mapping[str, str] | None = None,
    **changes: object,
) -> OciImage:
    """Return an image of tar files with a Pin, or with other labels.

    `changes` are of its manifest.
    """
    plain = tuple(tars)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": dict(labels or {PIN_LABEL: pin.canonical_json()})},
            "rootfs": {"type": "layers", "diff_ids": [content_digest(tar) for tar in plain]},
        }
    ).encode()
    layers = tuple(gzip.compress(tar, 6, mtime=0) for tar in plain)
    kinds = [OCI_CONFIG, *["application/vnd.oci.image.layer.v1.tar+gzip"] * len(layers)]
    described = [
        {"mediaType": kind, "digest": content_digest(blob), "size": len(blob)}
        for kind, blob in zip(kinds, (config, *layers), strict=True)
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": described[0],
        "layers": described[1:],
        **changes,
    }
    return OciImage(json.dumps(manifest).encode(), config, layers)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
