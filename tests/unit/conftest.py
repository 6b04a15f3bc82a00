"""Command lines in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provision.cli.entry import run
from unit.cli.outcome import Outcome


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line."""

    def call(*words: object) -> Outcome:
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
