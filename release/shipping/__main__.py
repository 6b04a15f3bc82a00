"""``python -m shipping``: make a release, or compare one with what this checkout gives."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from provision.errors import ExitCode, ProvisionError
from shipping import SUMS, image, release, say_error
from shipping.source import ROOT, read_source


def main() -> int:
    """Run the command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m shipping", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build/dist", help="the folder")
    parser.add_argument(
        "--verify", action="store_true", help="make it again elsewhere, and compare every byte"
    )
    parser.add_argument("--base", default=image.BASE, help="what the agent's image is made on")
    given = parser.parse_args()
    # What tools write on the way has permissions of its own.
    os.umask(0o022)
    try:
        with TemporaryDirectory(prefix="release-") as name:
            return (
                _verify(Path(name), given.output)
                if given.verify
                else _make(given.output, given.base)
            )
    except ProvisionError as error:
        return say_error(error)


def _make(output: Path, base: str) -> int:
    _fill(output, base, say=lambda line: print(line, flush=True))
    for line in (output / SUMS).read_text().splitlines():
        print(f"{output / line.split()[1]}")
    return ExitCode.DONE


def _verify(folder: Path, output: Path) -> int:
    if not (output / SUMS).is_file():
        raise ProvisionError(f"'{output}' has no {SUMS}.", resolution="make dist")
    _fill(folder, None, say=lambda line: print(line, file=sys.stderr, flush=True))
    before, now = ({*(one / SUMS).read_text().splitlines()} for one in (output, folder))
    # An image differs with the base image of the day.
    before = {line for line in before if not line.endswith(image.SUFFIX)}
    if differing := sorted({line.split()[1] for line in before ^ now}):
        raise ProvisionError(
            "The same checkout gives other bytes than before.",
            details="\n".join(differing),
            resolution="make dist, if files were changed since; else diffoscope shows where"
            " they differ.",
        )
    print(f"{len(now)} files, and all of them are the same again.")
    return ExitCode.DONE


def _fill(output: Path, base: str | None, *, say: Callable[[str], None]) -> None:
    """Make a release in a fresh folder that then takes the place of `output`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".dist-", dir=output.parent) as name:
        draft = Path(name) / "dist"
        draft.mkdir()
        for line in release.make(read_source(), draft, base=base):
            say(line)
        (draft / SUMS).write_text("".join(f"{one}\n" for one in _sums(draft)))
        shutil.rmtree(output, ignore_errors=True)
        draft.replace(output)


def _sums(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        with path.open("rb") as stream:
            yield f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {path.name}"


if __name__ == "__main__":
    sys.exit(main())
