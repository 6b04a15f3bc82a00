"""The threat model's last column: every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/explanation/threat-model.md"
_NAMED = re.compile(r"`((?:hooks/)?(?:tests|src)/[\w/]+\.(?:rs|py))::(\w+)`")
NAMED = _NAMED.findall(PAGE.read_text())


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_promise_is_held_by_a_test_that_exists(file: str, test: str) -> None:
    text = (REPOSITORY / file).read_text()
    assert re.search(rf"^\s*(?:fn|def) {test}\(", text, re.MULTILINE)


def test_every_promise_names_a_test() -> None:
    promises = PAGE.read_text().split("## What is promised")[1].split("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    assert [row for row in rows if not _NAMED.search(row)] == []
