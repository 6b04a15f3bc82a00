"""Programs of Go modules, built once by versions and sums that `tests/data/go` pins."""

from __future__ import annotations

import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

from kit.cache import REPOSITORY, cached
from kit.engine import remove_tree
from kit.probe import need_programs
from kit.process import run

__all__ = ["go_programs"]

_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}


def go_programs(name: str, *packages: str) -> Path:
    """A folder with the programs of these packages, which the module `name` requires."""
    need_programs("go")
    module = REPOSITORY / "tests/data/go" / name
    files = sorted(module.iterdir())
    digest = sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def make(draft: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="provision-go-"))
        try:
            for file in files:
                shutil.copy(file, folder)
            draft.mkdir()
            words = ["go", "build", "-ldflags", "-s -w", "-o", str(draft), *packages]
            run(words, cwd=folder, env=_ENVIRONMENT)
        finally:
            remove_tree(folder)

    return cached(f"go-{name}-{digest}", make)
