"""Go modules: files of other projects, from the machine's proxy and checked, and programs.

Programs are built once by versions and sums that `tests/data/go` pins.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kit.cache import REPOSITORY, cache_dir, cached, key_of
from kit.files import remove_tree
from kit.probe import need_programs
from kit.process import run

# Two compilers at a time: those of Kubernetes take a gigabyte each.
_ENVIRONMENT = {"GOFLAGS": "-mod=mod -p=2", "GOTOOLCHAIN": "local"}
# Whether a program has parts in C, and how it gets its C library: flags of Go's linker. Lazy,
# because NVIDIA's programs open NVML when they run, and lack its functions when they start.
_LINKING = {
    "no": "",
    "shared": "-extldflags -Wl,-z,lazy",
    "static": "-linkmode external -extldflags -static",
}
# What the modules need; Debian 12 has 1.19.
_OLDEST = (1, 26, 6)
_TOOLCHAIN = ("v0.0.1-go1.26.11.linux-amd64", "h1:KyINmJ/FQdKRmDYGuTAAXkumyeR2DyUlSNHZj7XaLFg=")


def go_module(name: str, version: str, digest: str) -> Path:
    """The folder of a module; `digest` is its sum as a go.sum has it (`h1:…`)."""
    need_programs("go")
    # Without a right to write, Go's files can't be removed with the rest of the cache.
    environment = {"GOMODCACHE": str(cache_dir() / "go"), "GOFLAGS": "-modcacherw"}
    argv = ["go", "mod", "download", "-json", f"{name}@{version}"]
    said = json.loads(run(argv, env=environment, cwd=Path("/")).stdout)
    if said["Sum"] != digest:
        raise RuntimeError(f"{name}@{version} is {said['Sum']}, not {digest}")
    return Path(said["Dir"])


def go_programs(
    name: str,
    *packages: str,
    stamps: Mapping[str, str] | None = None,
    c: Literal["no", "shared", "static"] = "no",
) -> Path:
    """A folder with the programs of these packages, which the module `name` requires.

    `name` is a folder below `tests/data/go`; `stamps` are variables that the linker sets; `c` says
    whether they have parts in C, and how these get the machine's C library.
    """
    need_programs("go")
    module = REPOSITORY / "tests/data/go" / name
    files = sorted(module.iterdir())
    key = key_of(module, packages, stamps, *filter(None, [_LINKING[c]]))

    def make(draft: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="provision-go-"))
        try:
            for file in files:
                shutil.copy(file, folder)
            draft.mkdir()
            flags = " ".join(
                ("-s -w", _LINKING[c], *(f"-X {k}={v}" for k, v in (stamps or {}).items()))
            )
            words = [_go(), "build", "-trimpath", "-ldflags", flags, "-o", str(draft), *packages]
            environment = {**_ENVIRONMENT, "CGO_ENABLED": "0" if c == "no" else "1"}
            # A static program can't look up users by the C library's plugins.
            tags = ["-tags", "netgo osusergo"] if c == "static" else []
            run([*words[:2], *tags, *words[2:]], cwd=folder, env=environment)
        finally:
            remove_tree(folder)

    return cached(f"go-{name}-{key}", make)


def _go() -> str:
    """The machine's Go, or, where that is too old, the one that Go's own proxy has."""
    version = run(["go", "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"}).stdout
    if tuple(map(int, re.findall(r"[0-9]+", version))) >= _OLDEST:
        return "go"
    root = go_module("golang.org/toolchain", *_TOOLCHAIN)
    # Go's own download sets these modes; that of a module does not.
    for program in (*(root / "bin").iterdir(), *(root / "pkg/tool/linux_amd64").iterdir()):
        program.chmod(0o755)
    return str(root / "bin/go")
