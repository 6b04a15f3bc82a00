"""Images of container engines from a folder with a root's files, without an engine."""

from __future__ import annotations

import io
import json
import tarfile
from hashlib import file_digest, sha256
from typing import TYPE_CHECKING

from kit.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["write_images"]


def write_images(tree: Path, archive: Path, commands: Mapping[str, Sequence[str]]) -> None:
    """Write an archive as `docker save` does: a tree under several names, each with a command."""
    layer = archive.with_suffix(".layer")
    run(("tar", "--create", "--numeric-owner", "--file", layer, "--directory", tree, "."))
    with layer.open("rb") as stream:
        digest = file_digest(stream, "sha256").hexdigest()
    images = []
    with tarfile.open(archive, "w") as tar:
        tar.add(layer, f"{digest}.tar")
        for name, command in commands.items():
            config = json.dumps(
                {
                    "architecture": "amd64",
                    "os": "linux",
                    "config": {"Cmd": list(command), "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                }
            ).encode()
            file = f"{sha256(config).hexdigest()}.json"
            _add(tar, file, config)
            images.append({"Config": file, "RepoTags": [name], "Layers": [f"{digest}.tar"]})
        _add(tar, "manifest.json", json.dumps(images).encode())
    layer.unlink()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
