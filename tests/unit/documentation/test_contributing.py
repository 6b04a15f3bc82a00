"""What the pages for contributors name is there: files, folders, targets."""

from __future__ import annotations

import re

import pytest
import yaml

from kit.cache import REPOSITORY

_TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
_EXAMPLES = _TEXT.split("## Changes, and")[1].split("\n## ")[0]
_SECTIONS = dict(re.findall(r"(?ms)^### (.+?)\n(.*?)(?=^### |\Z)", _EXAMPLES))
# A word with a slash or an ending, and nothing that a reader fills in.
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:md|toml|yml))`")


def _files(text: str) -> list[str]:
    return [name for name in _FILE.findall(text) if "NNNN" not in name and name != "driver.toml"]


@pytest.mark.parametrize("title", _SECTIONS)
def test_the_files_of_an_example_are_there(title: str) -> None:
    named = [name for name in _files(_SECTIONS[title]) if "/" in name]
    assert len(named) > 4
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_there_are_examples() -> None:
    assert len(_SECTIONS) > 4


def test_the_map_names_folders_that_are_there() -> None:
    table = _TEXT.split("## Map of the tree")[1].split("\n## ")[0]
    folders = re.findall(r"(?m)^\| `([^`]+)/`", table)
    assert len(folders) > 7
    assert [name for name in folders if not (REPOSITORY / name).is_dir()] == []


def test_workflows_run_what_the_repository_says() -> None:
    runs: list[str] = []
    for file in (REPOSITORY / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text())["jobs"].values()
        runs += [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"(?m)^([a-z-]+):", (REPOSITORY / "Makefile").read_text()))
    made = re.findall(r"(?m)\bmake ([a-z -]+)$", "\n".join(runs))
    assert (
        {"check", "dist", "test"} <= {word for words in made for word in words.split()} <= targets
    )
    assert ".ci/run" in runs


def test_help_lists_every_target() -> None:
    made = (REPOSITORY / "Makefile").read_text()
    (shown,) = re.findall(r"(?ms)^help:.*?(?=^\w)", made)
    targets = set(re.findall(r"(?m)^([a-z-]+):", made))
    said = set(re.findall(r"(?m)^([a-z-]+):.*?## ", made)) | set(re.findall(r"[a-z-]+", shown))
    steps = {"demo-setup", "check-setup", "first-setup", "all-setup", "nightly-setup"}
    assert targets - said - steps == set()
