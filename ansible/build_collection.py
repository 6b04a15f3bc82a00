"""Packs the collection and all that it brings: ``python ansible/build_collection.py --output DIR``.

``ansible-galaxy collection build`` packs only what lies in the collection's folder. Hosts also get
the wheel of provision and the program oci-decorator, which are made from the rest of the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The collection need not be installed to be packed.
sys.path.insert(0, str(Path(__file__).resolve().parent))
from ansible_collections.oci_decorator.drivers.plugins.module_utils.bundles import (
    source_files,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.preflight import (
    machine_of,
)

_ROOT = Path(__file__).resolve().parents[1]
_COLLECTION = _ROOT / "ansible/ansible_collections/oci_decorator/drivers"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".ansible", "files")
# The first moment that a wheel can name: the same files give the same wheel.
_EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}
_LIMIT_S = 600.0


def main() -> int:
    """Pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path(), help="folder of the archive")
    parser.add_argument(
        "--program",
        type=Path,
        action="append",
        help="an oci-decorator, one for each machine (default: build/oci-decorator)",
    )
    given = parser.parse_args()
    programs = given.program or [_ROOT / "build/oci-decorator"]
    machines = {path: machine_of(path) if path.is_file() else None for path in programs}
    for path, machine in machines.items():
        if machine is None:
            print(f"'{path}' is no program oci-decorator. Run: make build", file=sys.stderr)
            return 3
    with tempfile.TemporaryDirectory(prefix="collection-") as name:
        folder = Path(name) / "drivers"
        shutil.copytree(_COLLECTION, folder, ignore=_LEFT_OUT)
        if homepage := os.environ.get("HOMEPAGE"):
            with (folder / "galaxy.yml").open("a") as galaxy_yml:
                galaxy_yml.write(f"repository: {json.dumps(homepage)}\n")
        files = folder / "files"
        files.mkdir()
        _make_wheel(Path(name), files)
        for path, machine in machines.items():
            shutil.copy(path, files / f"oci-decorator-{machine}")
        given.output.mkdir(parents=True, exist_ok=True)
        galaxy = Path(sys.executable).parent / "ansible-galaxy"
        words = ["collection", "build", "--force", "--output-path", given.output.resolve()]
        _run([galaxy if galaxy.exists() else "ansible-galaxy", *words, folder])
    return 0


def _make_wheel(work: Path, target: Path) -> None:
    """Make the wheel from a copy: setuptools writes into its source."""
    source = work / "source"
    for path in source_files(_ROOT):
        copy = source / path.relative_to(_ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copy.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # setuptools is the environment's own, which `make` has pinned.
    _run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", target, source])


def _run(words: list[str | Path]) -> None:
    subprocess.run(words, check=True, timeout=_LIMIT_S, env={**os.environ, **_EPOCH})


if __name__ == "__main__":
    sys.exit(main())
