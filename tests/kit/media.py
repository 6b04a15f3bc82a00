"""Archives of images as good and bad media have them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.memory_registry import digest_of
from provision.pin import PIN_LABEL, Pin


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def tar_with(member: tarfile.TarInfo, files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of files, and one member more."""
    buffer = io.BytesIO(tar_of(files))
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def config_of(pin: Pin, layer: bytes, labels: Mapping[str, str] | None = None) -> bytes:
    """Return the configuration of an image with one layer."""
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {PIN_LABEL: pin.canonical_json(), **(labels or {})}},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
        }
    ).encode()


def docker_archive(pin: Pin, layer: bytes, **changes: Any) -> dict[str, bytes]:  # noqa: ANN401 - any member of its index
    """Return the files of what `docker save` writes."""
    config = config_of(pin, layer)
    name = f"{digest_of(config).removeprefix('sha256:')}.json"
    entry = {"Config": name, "RepoTags": [pin.image], "Layers": ["1/layer.tar"], **changes}
    return {
        name: config,
        "1/layer.tar": layer,
        "manifest.json": json.dumps([entry]).encode(),
    }


def files_in(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
