"""``python -m provision``."""

from __future__ import annotations

from provision.cli import main

if __name__ == "__main__":
    main()
