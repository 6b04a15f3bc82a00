"""`.ci/run` with a `make` that does nothing: each part is in the table, and may fail the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.files import write
from kit.process import run

_PARTS = (
    *("test", "test-all", "demo test"),
    *("packages-test", "test-nightly"),
)
_PASSED = ("passed",) * 5


@pytest.mark.parametrize(
    ("minutes", "failing", "results"),
    [
        (75, None, _PASSED),
        (75, "demo", (*_PASSED[:2], "FAILED", *_PASSED[:2])),
        (75, "test", ("FAILED", *_PASSED[:4])),
        (5, None, (*_PASSED[:4], "not run")),
        (1, None, (*["FAILED"] * 4, "not run")),
    ],
)
def test_ci_says_what_became_of_each_part(
    tmp_path: Path, minutes: int, failing: str | None, results: tuple[str, ...]
) -> None:
    text = f'#!/bin/sh\necho "$@" >>"${{0%/*}}/called"\n[ "$1" != "{failing}" ]\n'
    write(tmp_path / "make", text, 0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CI_MINUTES": str(minutes)}
    done = run([REPOSITORY / ".ci/run"], env=variables, check=False)
    failed = "FAILED" in results
    assert done.returncode == int(failed), done.output
    table = done.stdout.partition("| minutes | result\n")[2].splitlines()
    said = [line.split("|")[2].strip().partition(":")[0] for line in table]
    assert said == [*results, "FAILED" if failed else "passed"]
    called = (tmp_path / "called").read_text().splitlines() if minutes > 1 else []
    ran = [part for part, said in zip(_PARTS, results, strict=True) if said != "not run"]
    assert [line.partition(" WORLD=")[0].partition(" MINUTES=")[0] for line in called] == (
        ran if minutes > 1 else []
    )
    assert all(" WORLD=debian:13" in line for line in called if "demo" in line)
    assert all(" MINUTES=" in line for line in called if "nightly" in line)
