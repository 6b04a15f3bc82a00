"""`provision` in a process of its own, which stops where a test says until the test lets it go on.

Run as `python -m engine.paused WORDS…`.

    PAUSE_AT   where it stops: a function of _FUNCTIONS, or a file (state, status) that is written
    PAUSE_IN   folder in which `reached` appears then, and `go` lets it go on
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import provision.cli
from kit.process import wait_for
from provision.agent import actions, prepare, rollback

LIMIT_S = 120.0
_FUNCTIONS = {"store_pulled": prepare, "activate": actions, "reject": rollback}


def _pausing(real: Callable[..., Any], draft: str = "") -> Callable[..., Any]:
    """Return a function that stops before its work; one that renames, only for such a draft."""
    folder = Path(os.environ["PAUSE_IN"])

    @wraps(real)
    def pausing(*given: Any, **more: Any) -> Any:  # noqa: ANN401 - handed on
        if not draft or Path(given[0]).name.startswith(draft):
            (folder / "reached").touch()
            wait_for("leave to go on", (folder / "go").exists, within_s=LIMIT_S, pause_s=0.02)
        return real(*given, **more)

    return pausing


if __name__ == "__main__":
    at = os.environ["PAUSE_AT"]
    module, name = (_FUNCTIONS[at], at) if at in _FUNCTIONS else (os, "replace")
    draft = "" if at in _FUNCTIONS else f".{at}.json."
    setattr(module, name, _pausing(getattr(module, name), draft))
    provision.cli.main(sys.argv[1:])
