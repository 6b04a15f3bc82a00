"""Source tarballs of made-up drivers, as upstreams publish them: one folder, `name-version`."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_tarball"]


def write_tarball(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """Pack texts as `folder/name.tar.gz`, each as `name/FILE`, executable; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            content = text.encode()
            info = tarfile.TarInfo(f"{name}/{file}")
            info.size = len(content)
            info.mode = 0o755
            archive.addfile(info, io.BytesIO(content))
    return path
