"""``python -m shipping.publish``: sign a release that was made before, perhaps elsewhere.

It needs gpg's key, and neither what a release is made with nor a package of Python's: who signs
runs nothing that was downloaded for the build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from provision.errors import ExitCode, ProvisionError, UsageError
from provision.run import run
from shipping import SUMS, repositories, say_error


def main() -> int:
    """Run the command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m shipping.publish", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the folder of the release")
    parser.add_argument("--key", required=True, help="gpg's key that signs sums and repositories")
    parser.add_argument(
        "--url", required=True, help="where hosts will find the repositories: https://…"
    )
    parser.add_argument("--previous", type=Path, help="where earlier packages are, to offer too")
    given = parser.parse_args()
    # Web servers serve it.
    os.umask(0o022)
    try:
        _publish(given.output, given.key, given.url.rstrip("/"), given.previous)
    except ProvisionError as error:
        return say_error(error)
    return ExitCode.DONE


def _publish(release: Path, key: str, url: str, previous: Path | None) -> None:
    if not (release / SUMS).is_file():
        raise ProvisionError(f"'{release}' has no {SUMS}.", resolution="make dist")
    if previous is not None and not previous.is_dir():
        raise UsageError(f"'{previous}' is no folder.", resolution="Name another PREVIOUS.")
    repositories.public_key(key)
    # What is signed is what was listed when it was made.
    check = ["env", f"--chdir={release}", "sha256sum", "--check", "--strict", "--quiet", SUMS]
    run(check, why="compare the release with its checksums")
    listed = [line.split()[1] for line in (release / SUMS).read_text().splitlines()]
    earlier = previous.rglob("*.*") if previous else ()
    target = release / "repository"
    with TemporaryDirectory(prefix=".repository-", dir=release) as name:
        draft = Path(name) / "repository"
        draft.mkdir()
        # Of two with one name, the new one is offered.
        packages = [*earlier, *(release / name for name in listed)]
        repositories.make(packages, draft, key=key, url=url)
        shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)
    repositories.sign(release / SUMS, key=key)
    print(f"{target}, signed by {key}")


if __name__ == "__main__":
    sys.exit(main())
