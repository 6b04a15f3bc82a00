"""Step 7: the closing tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from demo.containers import Received
from demo.screen import Screen

_MIB = 1 << 20


def print_summary(
    screen: Screen,
    built: dict[str, Any],
    manifest: dict[str, Any],
    received: Received,
    image_bytes: int,
) -> None:
    """Times, image, modules, and what a container got."""
    screen.console.print(_times(screen.seconds, built))
    screen.console.print(_modules(manifest))
    got = Table(title="What the container got", title_justify="left")
    for kind in ("what", "how many", "for example"):
        got.add_column(kind, overflow="fold")
    for kind, paths in (
        ("binaries", received.binaries),
        ("libraries, found through the library cache", received.libraries),
        ("devices, where the host has them", received.devices),
    ):
        got.add_row(kind, str(len(paths)), paths[0] if paths else "")
    screen.console.print(got)
    screen.say(f"image {built['image']}: {image_bytes / _MIB:.1f} MiB")


def _times(seconds: dict[str, float], built: dict[str, Any]) -> Table:
    table = Table(title="Time", title_justify="left")
    table.add_column("step")
    table.add_column("seconds", justify="right")
    for title, taken in seconds.items():
        table.add_row(title, f"{taken:.1f}")
        if title.startswith("3.") and built["built"]:
            for name, part in built["seconds"].items():
                table.add_row(f"     {name}", f"{part:.1f}", style="dim")
    return table


def _modules(manifest: dict[str, Any]) -> Table:
    table = Table(title="Modules", title_justify="left")
    table.add_column("module")
    table.add_column("vermagic")
    table.add_column("MiB", justify="right")
    for module in manifest["modules"]:
        table.add_row(module["name"], module["vermagic"], f"{module['size'] / _MIB:.1f}")
    return table
