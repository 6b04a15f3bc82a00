"""What README.md asks of tests, where a program can see it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from kit.cache import REPOSITORY

_FILES = {
    str(path.relative_to(REPOSITORY)): path.read_text()
    for path in sorted((REPOSITORY / "tests").rglob("*.py"))
}
# The last one reads the time of a file's last change, which can't be set.
_CLOCKS = {"today", "time", "monotonic", "sleep", "_last_use"}
# A function of ours that is replaced: only / has a library cache and an initramfs, and no test's
# folder is that.
_REPLACED = {"tests/unit/store/test_activate.py": ["activate._is_running_host"] * 2}
# Errors of libraries are known by what they say.
_OF_LIBRARIES = {"UndefinedError", "ValidationError", "CommandFailedError"}


def _imported(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the names that a file imports, and whether from `provision`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = node.module if isinstance(node, ast.ImportFrom) else alias.name
                is_ours = (module or "").partition(".")[0] == "provision"
                yield (alias.asname or alias.name).partition(".")[0], is_ours


def _replaced(source: str) -> Iterator[str]:
    """Yield what of `provision` a test replaces, other than clocks and limits.

    What is not written out may be of `provision` too.
    """
    tree = ast.parse(source)
    imported = dict(_imported(tree))
    others = {name for name, is_ours in imported.items() if not is_ours}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr != "setattr" or not node.args:
            continue
        is_path = isinstance(node.args[0], ast.Constant)
        words = node.args[:1] if is_path else node.args[:2]
        path = ".".join(ast.unparse(word).strip("'\"") for word in words)
        first, name = path.partition(".")[0], path.rpartition(".")[2]
        is_foreign = first != "provision" if is_path else first in others
        is_named = isinstance(words[-1], ast.Constant)
        if not (is_foreign or (is_named and (name in _CLOCKS or name.isupper()))):
            yield path


def _worded(source: str) -> Iterator[str]:
    """Yield the sentences that a test looks for in an error of ours."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises":
            error = ast.unparse(node.args[0]).rpartition(".")[2]
            for keyword in node.keywords:
                text = ast.unparse(keyword.value)
                if keyword.arg == "match" and " " in text and not _is_foreign(error):
                    yield text


def _is_foreign(error: str) -> bool:
    return hasattr(builtins, error) or error in _OF_LIBRARIES


def test_no_other_functions_of_ours_are_replaced() -> None:
    found = {name: list(_replaced(text)) for name, text in _FILES.items()}
    replaced = {name: paths for name, paths in found.items() if paths}
    assert replaced == _REPLACED


def test_an_error_is_known_by_its_class_and_not_by_its_words() -> None:
    worded = {
        name: list(_worded(text))
        for name, text in _FILES.items()
        if name.startswith(("tests/unit/", "tests/golden/"))
    }
    assert {name: texts for name, texts in worded.items() if texts} == {}
