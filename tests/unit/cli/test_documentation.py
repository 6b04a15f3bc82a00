"""The reference names every command, option and exit code."""

from __future__ import annotations

import re
from pathlib import Path

from provision.errors import ExitCode

_REFERENCE = Path(__file__).parents[3] / "docs/reference"


def test_the_reference_names_every_exit_code() -> None:
    text = (_REFERENCE / "provision.md").read_text()
    for code in ExitCode:
        assert f"| {int(code)} |" in text


def test_the_reference_names_every_variable_of_the_environment() -> None:
    """Those that are asked for by name, or stand in a list of what is passed on."""
    reads = re.compile(r"environ(?:ment)?(?:\.get\(|\[|\.pop\()\"([A-Za-z_]+)\"")
    lists = re.compile(r"(?m)^_(?:INHERITED|PROXIES|SETTINGS|TOKEN_VARIABLES) = \(([^)]*)\)")
    found: set[str] = set()
    for path in (_REFERENCE.parents[1] / "src/provision").rglob("*.py"):
        text = path.read_text()
        found.update(reads.findall(text))
        for names in lists.findall(text):
            found.update(re.findall(r'"([A-Za-z_]+)"', names))
    assert len(found) > 20
    section = (_REFERENCE / "provision.md").read_text().partition("\n## Environment\n")[2]
    table = section.partition("\n## ")[0]
    assert {name for name in found if f"`{name.lower()}`" not in table.lower()} == set()
