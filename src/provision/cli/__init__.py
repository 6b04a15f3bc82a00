"""The command ``provision``: the only place that prints, and that turns errors into exit codes."""

from __future__ import annotations

from provision.cli.entry import main

__all__ = ["main"]
