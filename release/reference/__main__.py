"""``python -m reference``: write what is generated in docs/reference, or say what is stale."""

from __future__ import annotations

import argparse
import sys

from provision.errors import ExitCode, ProvisionError
from reference.pages import REPOSITORY, stale


def main() -> int:
    """Run the command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; 1 where it is stale")
    given = parser.parse_args()
    try:
        found = stale()
    except ProvisionError as error:
        print(f"Error: {error.message}\nWhat to do: {error.resolution}", file=sys.stderr)
        return int(error.exit_code)
    for page, text in found.items():
        print(f"{page.relative_to(REPOSITORY)}: {'stale' if given.check else 'written'}")
        if not given.check:
            page.write_text(text)
    if found and given.check:
        print("What to do: make reference", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
