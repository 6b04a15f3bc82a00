"""The workflows for a forge, by actionlint: syntax and expressions, and shellcheck's opinion."""

from __future__ import annotations

import pytest

from kit.cache import REPOSITORY
from kit.go_modules import go_programs
from kit.probe import need_programs
from kit.process import run

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(2)]


def test_the_workflows_have_no_mistake() -> None:
    need_programs("shellcheck")
    package = "github.com/rhysd/actionlint/cmd/actionlint"
    program = go_programs("actionlint", package) / "actionlint"
    files = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
    assert files
    run([program, "-no-color", *files], cwd=REPOSITORY)
