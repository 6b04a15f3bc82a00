"""Entry of `make bench`: `python -m bench [--only ROW …]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase

from rich.console import Console

from bench import (
    agent,
    beside,
    fleet,
    hook,
    nvidia,
    product,
    registry,
    starts,
    trial,
)
from bench.rows import Group, Row, as_text
from bench.scene import Scene
from kit.kernels import replaced

# What needs least first: the last ones compile for minutes.
_GROUPS: tuple[Group, ...] = (
    *hook.FIRST,
    *product.FIRST,
    *fleet.GROUPS,
    *hook.GROUPS,
    *starts.GROUPS,
    *nvidia.GROUPS,
    *product.GROUPS,
    *agent.GROUPS,
    *beside.GROUPS,
    *trial.GROUPS,
    *registry.GROUPS,
)


def _names() -> set[str]:
    """The rows that the command line wants."""
    names = [name for group in _GROUPS for name in group.names]
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog=f"Rows: {', '.join(names)}."
    )
    parser.add_argument(
        "--only", metavar="ROW", action="append", help="this row, or those that a pattern names"
    )
    patterns = parser.parse_args().only or ["*"]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            parser.error(f"there is no row {pattern!r}; there are {', '.join(names)}")
    return {name for name in names for pattern in patterns if fnmatchcase(name, pattern)}


def _measured(names: set[str], scene: Scene) -> Iterator[Row]:
    for group in _GROUPS:
        if names & set(group.names):
            yield from (row for row in group.measure(scene) if row.name in names)


def main() -> int:
    """Measure and print; 0 however the figures are: a slow machine is no failure."""
    names = _names()
    console = Console(highlight=False, soft_wrap=True)
    if said := replaced():
        console.print(said)
    with Scene(console.print) as scene:
        for row in _measured(names, scene):
            console.print(as_text(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
