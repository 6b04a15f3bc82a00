"""What a forge lets the jobs of the workflows do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

_WORKFLOWS = sorted((Path(__file__).parents[3] / ".github/workflows").glob("*.yml"))
# What runs code that was downloaded for it: tests, tools, the build.
_FOREIGN = re.compile(r"\bmake (?!dist-sign\b)|\.ci/|\bpip\b|\bcargo\b|\bcurl\b")


def _jobs() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    read = [(path, yaml.safe_load(path.read_text())) for path in _WORKFLOWS]
    return [
        (f"{path.name}: {name}", job, job.get("permissions", workflow["permissions"]))
        for path, workflow in read
        for name, job in workflow["jobs"].items()
    ]


@pytest.mark.parametrize(("name", "job", "permissions"), _jobs(), ids=lambda one: str(one)[:40])
def test_a_job_that_may_publish_runs_nothing_that_was_downloaded(
    name: str, job: dict[str, Any], permissions: dict[str, str]
) -> None:
    is_trusted = "write" in permissions.values() or "secrets." in str(job)
    ran = [step["run"] for step in job["steps"] if "run" in step]
    assert ran
    found = [text for text in ran if _FOREIGN.search(text)]
    assert not is_trusted or not found, name


def test_a_release_is_signed_by_a_job_of_its_own() -> None:
    trusted = [name for name, job, _ in _jobs() if "secrets." in str(job)]
    assert trusted == ["release.yml: draft"]


def test_actions_are_named_by_digest_and_a_runner_of_ours_gets_no_pull_request() -> None:
    for name, job, _ in _jobs():
        used = [step["uses"] for step in job.get("steps", ()) if "uses" in step]
        assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == [], name
        if "self-hosted" in job["runs-on"]:
            assert job["if"].startswith("github.event_name == 'push' && "), name
