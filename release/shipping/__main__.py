"""``python -m shipping``: make a release, or compare one with what this checkout gives."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from provision.errors import ExitCode, ProvisionError, UsageError
from shipping import image, release, repositories
from shipping.source import ROOT, read_source

SUMS = "SHA256SUMS"


def main() -> int:
    """Run the command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m shipping", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build/dist", help="the folder")
    parser.add_argument(
        "--verify", action="store_true", help="make it again elsewhere, and compare every byte"
    )
    parser.add_argument("--base", default=image.BASE, help="what the agent's image is made on")
    parser.add_argument("--key", help="gpg's key that signs the sums and the repositories")
    parser.add_argument("--url", help="where hosts will find the repositories: https://…")
    parser.add_argument("--previous", type=Path, help="where earlier packages are, to offer too")
    given = parser.parse_args()
    # What tools write on the way has permissions of its own.
    os.umask(0o022)
    try:
        with TemporaryDirectory(prefix="release-") as name:
            return (
                _verify(Path(name), given.output)
                if given.verify
                else _make(given.output, given.base, _publisher(given))
            )
    except ProvisionError as error:
        print(f"Error: {error.message}", file=sys.stderr)
        for line in (error.details or "").splitlines():
            print(f"  {line}", file=sys.stderr)
        if error.resolution:
            print(f"What to do: {error.resolution}", file=sys.stderr)
        return int(error.exit_code)


@dataclass(frozen=True, slots=True)
class _Publisher:
    """Who signs a release, and where its repositories will be."""

    key: str
    url: str
    previous: Path | None


def _publisher(given: argparse.Namespace) -> _Publisher | None:
    if not (given.key or given.url or given.previous):
        return None
    if not (given.key and given.url):
        raise UsageError(
            "Repositories need a key and an address.",
            resolution="Name both, or neither: make dist KEY=FINGERPRINT URL=https://…",
        )
    if given.previous and not given.previous.is_dir():
        raise UsageError(f"'{given.previous}' is no folder.", resolution="Name another PREVIOUS.")
    # What takes minutes comes after what can be wrong at once.
    repositories.public_key(given.key)
    return _Publisher(given.key, given.url.rstrip("/"), given.previous)


def _make(output: Path, base: str, publisher: _Publisher | None) -> int:
    _fill(output, base, publisher, say=lambda line: print(line, flush=True))
    for line in (output / SUMS).read_text().splitlines():
        print(f"{output / line.split()[1]}")
    return ExitCode.DONE


def _verify(folder: Path, output: Path) -> int:
    if not (output / SUMS).is_file():
        raise ProvisionError(f"'{output}' has no {SUMS}.", resolution="make dist")
    _fill(folder, None, None, say=lambda line: print(line, file=sys.stderr, flush=True))
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


def _fill(
    output: Path, base: str | None, publisher: _Publisher | None, *, say: Callable[[str], None]
) -> None:
    """Make a release in a fresh folder that then takes the place of `output`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".dist-", dir=output.parent) as name:
        draft = Path(name) / "dist"
        draft.mkdir()
        for line in release.make(read_source(), draft, base=base):
            say(line)
        (draft / SUMS).write_text("".join(f"{one}\n" for one in _sums(draft)))
        if publisher is not None:
            say(f"repositories for apt and dnf, signed by {publisher.key}")
            earlier = publisher.previous.rglob("*.*") if publisher.previous else ()
            folder = draft / "repository"
            # Of two with one name, the new one is offered.
            packages = [*earlier, *draft.iterdir()]
            folder.mkdir()
            repositories.make(packages, folder, key=publisher.key, url=publisher.url)
            repositories.sign(draft / SUMS, key=publisher.key)
        shutil.rmtree(output, ignore_errors=True)
        draft.replace(output)


def _sums(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        with path.open("rb") as stream:
            yield f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {path.name}"


if __name__ == "__main__":
    sys.exit(main())
