"""Entry of `make bench`: `python -m bench [--only ROW …] [--json] [--quick]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
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
from bench.rows import Group, Row, as_document, as_text
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


def _arguments(groups: Sequence[Group]) -> argparse.Namespace:
    names = [name for group in groups for name in group.names]
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog=f"Rows: {', '.join(names)}."
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--quick", action="store_true", help="without the build of the modules")
    parser.add_argument(
        "--only", metavar="ROW", action="append", help="this row, or those that a pattern names"
    )
    given = parser.parse_args()
    patterns = given.only or ["*"]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            parser.error(f"there is no row {pattern!r}; there are {', '.join(names)}")
    given.names = {name for name in names for pattern in patterns if fnmatchcase(name, pattern)}
    if given.quick:
        given.names -= set(product.BUILD.names)
    return given


def _measured(names: set[str], scene: Scene) -> Iterator[Row]:
    for group in _GROUPS:
        if names & set(group.names):
            yield from (row for row in group.measure(scene) if row.name in names)


def main() -> int:
    """Measure and print; 0 however the figures are: a slow machine is no failure."""
    given = _arguments(_GROUPS)
    console = Console(highlight=False, soft_wrap=True, stderr=given.json)
    if said := replaced():
        console.print(said)
    rows = []
    with Scene(console.print) as scene:
        for row in _measured(given.names, scene):
            console.print(as_text(row))
            rows.append(as_document(row))
    if given.json:
        sys.stdout.write(f"{json.dumps(rows, indent=2)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
