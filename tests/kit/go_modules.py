"""Files of other projects, out of their Go modules: from the machine's proxy, checked, and kept."""

from __future__ import annotations

import json
from pathlib import Path

from kit.cache import cache_dir
from kit.probe import need_programs
from kit.process import run

__all__ = ["go_module"]


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
