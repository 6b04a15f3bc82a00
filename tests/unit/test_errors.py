"""Every error of the package says what to do."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import provision
from provision import errors
from provision.errors import ConfigError, Mistake, ProvisionError, redact
from unit.secret_forms import IN_MESSAGES, IN_SETTINGS, PUBLIC

_PACKAGE = Path(provision.__file__).parent
# A ConfigError without one shows each mistake at its key, which says what is wanted there.
_CLASSES = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type)
    and issubclass(value, ProvisionError)
    and not issubclass(value, ConfigError)
}


def _without_resolution(source: str) -> Iterator[str]:
    """Yield the errors that a text makes without the argument ``resolution``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = {keyword.arg for keyword in node.keywords}
            if node.func.id in _CLASSES and "resolution" not in given:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise ProvisionError('x')", ["ProvisionError('x')"]),
        ("return NotFoundError('x', details='y')", ["NotFoundError('x', details='y')"]),
        ("raise UsageError('x', resolution='y')", []),
        ("raise ConfigError('x', [])", []),
        ("raise click.UsageError('x')", []),
    ],
)
def test_an_error_without_a_resolution_is_found(source: str, found: list[str]) -> None:
    assert list(_without_resolution(source)) == found


def test_every_error_says_what_to_do() -> None:
    assert {"ProvisionError", "UsageError", "NotFoundError", "InUseError"} <= _CLASSES
    found = {
        f"{path.relative_to(_PACKAGE)}: {error}"
        for path in _PACKAGE.rglob("*.py")
        for error in _without_resolution(path.read_text())
    }
    assert not found


@pytest.mark.parametrize(("text", "secret", "shown"), [*IN_SETTINGS, *IN_MESSAGES])
def test_secrets_are_not_shown(text: str, secret: str, shown: str) -> None:
    assert redact(text) == shown
    assert secret not in str(ProvisionError(text, resolution="None."))
    assert secret not in str(ConfigError("file", [Mistake(text, text)]).members())


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("part", ["https://a", "://a:b", "x-", "eyJ-", '"a-', "?a=", "bearer a"])
def test_a_long_line_is_looked_at_in_time(part: str) -> None:
    """Builds and servers print what they like, and each line is looked at."""
    line = part * (100_000 // len(part))
    begun = time.process_time()
    redact(line)
    assert time.process_time() - begun < 10
