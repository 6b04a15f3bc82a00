"""What tests of a tier begin with, made while others run: `python -m kit.prepare 1`, or `prune`.

Nothing fails here: a test that needs what could not be made says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from _pytest.outcomes import OutcomeException

from kit.cache import prune
from kit.engine import Engine
from kit.engine_tree import DEBIAN_12, DEBIAN_13
from kit.guest import DEBIAN_12 as GUEST
from kit.guest import guest_of
from kit.probe import is_root
from kit.product import load_base
from kit.toolchains import load_toolchains


def _toolchains() -> None:
    with Engine() as engine:
        load_base(engine)
        load_toolchains(engine)


# By tier.
_STEPS: dict[str, tuple[Callable[[], object], ...]] = {
    "1": (_toolchains, DEBIAN_12.path),
    "2": (_toolchains, partial(guest_of, GUEST), DEBIAN_12.path, DEBIAN_13.path),
}


def main(word: str) -> None:
    """Make one after the other; each is made by one process only, here or in a test."""
    if word == "prune":
        prune()
        return
    for step in _STEPS[word] if is_root() else ():
        try:
            step()
        except (Exception, OutcomeException) as error:  # such as a program that a test would need
            sys.stderr.write(f"not prepared: {str(error)[:200]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
