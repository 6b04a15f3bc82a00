"""Every import of the package is one that mypy and the check of layers see."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import provision

_PACKAGE = Path(provision.__file__).parent
# Loads the command that was typed, from a folder of commands: none of them is imported by name.
_COMMANDS = "cli/__init__.py"


def _hidden(source: str) -> Iterator[str]:
    """Yield the modules of ours that a text loads by their names as strings."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        name = ast.unparse(node.args[0]).lstrip("f").strip("'\"")
        if called in {"import_module", "__import__"} and name.startswith("provision."):
            yield name


def test_no_import_is_hidden_in_a_string() -> None:
    files = {path.relative_to(_PACKAGE).as_posix(): path for path in _PACKAGE.rglob("*.py")}
    hidden = {name: list(_hidden(path.read_text())) for name, path in files.items()}
    assert {name for name, modules in hidden.items() if modules} == {_COMMANDS}
