"""The Python for hosts that have none, from the cache: it needs an engine."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from kit.cache import REPOSITORY, cached, key_of
from kit.engine import Engine
from kit.hosts import DISTRO, load_base
from kit.product import BUILD_NETWORK, Provision

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["host_python"]

# What of this project the result is made from; the distro's security updates are let pass.
_PARTS = (
    REPOSITORY / "templates/python",
    REPOSITORY / "src/provision/export/host_python.py",
    REPOSITORY / "src/provision/export/python_tree.py",
)


def host_python(engine: Engine | None = None) -> Path:
    """The archive; made in `engine`, or one that is started for it, where the cache hasn't got it.

    It is an older one's place that it takes.
    """
    name = f"host-python-{key_of(*_PARTS)}.tar.gz"
    return cached(name, lambda draft: _make(engine, draft))


def _make(engine: Engine | None, draft: Path) -> None:
    with ExitStack() as stack:
        if engine is None:
            engine = stack.enter_context(Engine())
            load_base(engine)
        words = ("--distro", DISTRO, "--output", draft, *BUILD_NETWORK)
        Provision(engine.host)("export", "host-python", *words)
