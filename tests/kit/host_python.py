"""The Python for hosts that have none, from the cache: compiling it takes minutes."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kit.cache import REPOSITORY, cache_dir, cached
from kit.engine import Engine
from kit.hosts import DISTRO, load_base
from kit.product import BUILD_NETWORK, Provision

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["host_python"]

# What of this project the result is made from; the distro's security updates are let pass.
_PARTS = ("templates/python/*", "src/provision/hostpython/*.py")


def host_python(engine: Engine | None = None) -> Path:
    """The archive; made in `engine`, or one that is started for it, where the cache hasn't got it.

    It is an older one's place that it takes.
    """
    digest = hashlib.sha256()
    for path in sorted(p for part in _PARTS for p in REPOSITORY.glob(part)):
        digest.update(path.read_bytes())
    name = f"host-python-{digest.hexdigest()[:12]}.tar.gz"
    if not (cache_dir() / name).exists():
        for old in cache_dir().glob("host-python-*.tar.gz"):
            # Another process may be at it, too.
            old.unlink(missing_ok=True)
    return cached(name, lambda draft: _make(engine, draft))


def _make(engine: Engine | None, draft: Path) -> None:
    with ExitStack() as stack:
        if engine is None:
            engine = stack.enter_context(Engine())
            load_base(engine)
        words = ("--distro", DISTRO, "--output", draft, *BUILD_NETWORK)
        Provision(engine.host)("host-python", *words)
