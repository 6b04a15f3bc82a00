"""Entry of `make bench`: `python -m bench [--json] [--quick]`."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from bench import agent, hook, playbook, product, starts
from bench.rows import as_documents, as_table
from bench.scene import Scene


def main() -> int:
    """Measure and print; 0 however the figures are: a slow machine is no failure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--quick", action="store_true", help="without the build of the modules")
    wanted = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    console.print("NVIDIA's driver is built first where the cache lacks it: some minutes")
    with Scene() as scene:
        rows = [*hook.rows(scene), *starts.rows(scene), *product.rows(scene), *agent.rows(scene)]
        rows += playbook.rows(scene)
        if not wanted.quick:
            console.print("building NVIDIA's modules twice: in a container and outside")
            rows += product.build_rows(scene)
    if wanted.json:
        sys.stdout.write(f"{json.dumps(as_documents(rows), indent=2)}\n")
    else:
        Console(highlight=False).print(as_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
