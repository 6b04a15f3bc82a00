"""Exit code 0 means that what a command is for was seen to be so: command x emptied world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kit.host_tree import HostTree
from provision.registry import repositories
from unit.cli.outcome import Outcome
from unit.cli.states import EMPTIED

Call = Callable[..., Outcome]

# These zeros are what a command is for: a status that is shown (`--check` judges it), a boot
# that has nothing to load, a garbage collection that has nothing to remove.
_GRID = """
                          status  --check  plan  doctor  load  back  verify  gc  boot  apply  gone
no kernel                    3       3       3     3     3    3     3     3   3     3      0
kernel without modules.dep   3       3       3     3     3    3     3     3   3     3      0
no engine                    0       1       3     1     3    3     3     0   0     3      0
no network                   0       1       1     1     3    3     3     0   0     1      0
no driver                    3       3       3     3     3    3     3     0   0     0      0
misspelt driver              0       3       3     1     3    3     3     0   0     3      0
its recipe broken            0       1       1     1     3    3     3     0   0     1      0
nothing stored               0       1       3     1     3    3     3     0   0     3      0
unreadable                   1       1       1     1     1    1     0     1   1     1      1
"""
_COMMANDS = {
    "--check": "status --check",
    "back": "rollback demo",
    "gone": "uninstall",
    "verify": "verify demo",
    "boot": "apply --boot",
}
_STATES = {
    "no kernel": "unknown",
    "kernel without modules.dep": "unknown",
    "no driver": "not-configured",
    "misspelt driver": "missing",
    "its recipe broken": "failed",
    "no engine": "pending",
    "no network": "pending",
    "nothing stored": "pending",
    "unreadable": None,
}
_HEAD, *_ROWS = [line.split("  ") for line in _GRID.strip("\n").splitlines()]
_CODES = {
    row[0]: dict(
        zip((cell.strip() for cell in _HEAD if cell), (int(c) for c in row[1:] if c), strict=True)
    )
    for row in _ROWS
}


def test_every_emptied_world_has_a_row() -> None:
    assert _CODES.keys() == _STATES.keys() == EMPTIED.keys()


@pytest.mark.parametrize("world", EMPTIED)
def test_nothing_is_green_that_was_not_seen(
    call: Call, host_tree: HostTree, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    # Between which skopeo waits for seconds.
    monkeypatch.setattr(repositories, "_RETRIES", 0)

    def run(*words: object) -> Outcome:
        return call(*words, "--root", host_tree.root)

    EMPTIED[world](host_tree, run)
    found: dict[str, int] = {}
    documents: dict[str, dict[str, Any]] = {}
    for name in _CODES[world]:
        outcome = run(*_COMMANDS.get(name, name).split(), "--json")
        documents[name] = outcome.document
        found[name] = outcome.code
        # Programs read one or the other.
        assert outcome.document["exit_code"] == outcome.code
        assert ("error" in outcome.document and bool(outcome.document["error"])) <= bool(
            outcome.code
        )
    assert found == _CODES[world]
    if world == "no network":
        # A host that never builds misses no engine.
        assert "engine" not in str(documents["apply"]["error"])
    assert documents["status"].get("state") == _STATES[world]
