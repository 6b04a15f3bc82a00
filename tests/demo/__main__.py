"""Entry of `make demo`."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from demo.screen import DemoError, Screen
from demo.steps import Demo
from kit.cache import cache_dir
from kit.probe import is_root


def main() -> int:
    """Run the demo; 0 when every step was as it has to be."""
    screen = Screen()
    if not is_root():
        screen.console.print("error: the demo starts engines and makes base images: run it as root")
        return 1
    try:
        with ExitStack() as opened:
            Demo(screen, opened).run()
    except DemoError as error:
        screen.console.print(f"\ndemo failed in {error}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        screen.console.print("\ninterrupted; everything that was started has been stopped")
        return 130
    screen.say(f"\nRemoved again, except the cache that makes a second run quick: {cache_dir()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
