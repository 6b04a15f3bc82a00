"""Pages that name the tests of what they say: each exists, and nothing is said without one."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
THREATS = REPOSITORY / "docs/explanation/threat-model.md"
SUPPORT = REPOSITORY / "docs/reference/support.md"
_NAMED = re.compile(r"`((?:hooks/)?(?:tests|src)/[\w/]+\.(?:rs|py))::(\w+)`")
NAMED = sorted({*_NAMED.findall(THREATS.read_text()), *_NAMED.findall(SUPPORT.read_text())})


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_promise_is_held_by_a_test_that_exists(file: str, test: str) -> None:
    text = (REPOSITORY / file).read_text()
    assert re.search(rf"^\s*(?:fn|def) {test}\(", text, re.MULTILINE)


def test_every_promise_names_a_test() -> None:
    lines = THREATS.read_text().splitlines()
    rows: list[str] = []
    holds = False
    for line in lines:
        holds = line.endswith("| held by |") or (holds and line.startswith("|"))
        if holds and not line.endswith(("| held by |", "|---|")):
            rows.append(line)
    assert len(rows) > 60
    assert [row for row in rows if not _NAMED.search(row)] == []


def test_unsafe_code_is_in_two_modules() -> None:
    crate = REPOSITORY / "hooks"
    assert 'unsafe_code = "deny"' in (crate / "Cargo.toml").read_text()
    allowed = {
        str(path.relative_to(crate / "src"))
        for path in crate.glob("src/**/*.rs")
        if path.name != "tests.rs" and "allow(unsafe_code)" in path.read_text()
    }
    assert allowed == {"apply/namespace.rs", "apply/namespace/cgroup.rs"}


def test_what_is_real_names_a_test() -> None:
    lines = SUPPORT.read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if "| real | tests of *real* |" in line]
    assert len(heads) > 3
    for head in heads:
        for row in takewhile(lambda line: line.startswith("|"), lines[head + 2 :]):
            _, name, real, tests, *_ = (cell.strip() for cell in row.split("|"))
            assert bool(real) == bool(_NAMED.search(tests)), name
