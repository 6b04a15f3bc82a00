"""Programs of Go modules, built once by versions and sums that `tests/data/go` pins."""

from __future__ import annotations

import re
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

from kit.cache import REPOSITORY, cached
from kit.engine import remove_tree
from kit.go_modules import go_module
from kit.probe import need_programs
from kit.process import run

__all__ = ["go_programs"]

_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
# What the modules need; Debian 12 has 1.19.
_OLDEST = (1, 20)
_TOOLCHAIN = ("v0.0.1-go1.22.12.linux-amd64", "h1:Hdh4VJAlDWzMnhKpqDwqJJr+sE7NgsJ86dyR4wrv2oY=")


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
            words = [_go(), "build", "-ldflags", "-s -w", "-o", str(draft), *packages]
            run(words, cwd=folder, env=_ENVIRONMENT)
        finally:
            remove_tree(folder)

    return cached(f"go-{name}-{digest}", make)


def _go() -> str:
    """The machine's Go, or, where that is too old, the one that Go's own proxy has."""
    version = run(["go", "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"}).stdout
    if tuple(map(int, re.findall(r"[0-9]+", version)[:2])) >= _OLDEST:
        return "go"
    root = go_module("golang.org/toolchain", *_TOOLCHAIN)
    # Go's own download sets these modes; that of a module does not.
    for program in (*(root / "bin").iterdir(), *(root / "pkg/tool/linux_amd64").iterdir()):
        program.chmod(0o755)
    return str(root / "bin/go")
