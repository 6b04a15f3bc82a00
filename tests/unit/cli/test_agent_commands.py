"""What the commands of the agent do beside the table: the journal, the package store."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.cache import REPOSITORY
from kit.host_tree import DRIVER, HostTree
from provision.build import package_store
from provision.build.package_store import PackageStore
from provision.build.workspace import default_cache
from unit.cli.outcome import Outcome
from unit.cli.states import STATES

Call = Callable[..., Outcome]


@pytest.fixture
def ready(host_tree: HostTree, call: Call) -> HostTree:
    STATES["ready"](host_tree, lambda *words: call(*words, "--root", host_tree.root))
    return host_tree


@pytest.mark.parametrize(
    ("is_unit", "line"), [(True, f"<3>{DRIVER} for "), (False, f"{DRIVER} for ")]
)
def test_the_journal_of_a_unit_keeps_failures_as_errors(
    host_tree: HostTree, tmp_path: Path, *, is_unit: bool, line: str
) -> None:
    host_tree.want()
    with (tmp_path / "output").open("w+") as output:
        place = os.fstat(output.fileno())
        journal = f"{place.st_dev}:{place.st_ino}" if is_unit else "8:1"
        argv = [sys.executable, "-m", "provision", "apply", "--root", str(host_tree.root)]
        environment = {**os.environ, "JOURNAL_STREAM": journal}
        done = subprocess.run(argv, stdout=output, env=environment, check=False)
        output.seek(0)
        assert done.returncode == 3
        assert output.read().startswith(line)


def test_an_upgrade_of_provision_alone_leaves_nothing_to_do(
    ready: HostTree, tmp_path: Path
) -> None:
    def plan(python_path: Path) -> Any:  # noqa: ANN401 - JSON
        argv = [sys.executable, "-m", "provision", "plan", "--json", "--root", str(ready.root)]
        environment = {**os.environ, "PYTHONPATH": str(python_path)}
        done = subprocess.run(argv, stdout=subprocess.PIPE, env=environment, check=False)
        return json.loads(done.stdout)

    program = tmp_path / "newer"
    for name in ("src", "templates", "driver_images"):
        shutil.copytree(REPOSITORY / name, program / name)
    shutil.copy(REPOSITORY / "pyproject.toml", program)
    for name, more in {
        "src/provision/__init__.py": '__version__ = "9.9.9"',
        "src/provision/build/collector.py": "# Another comment.",
        "src/provision/distros/debian.toml": "# Another comment.",
        "templates/Dockerfile.apt.j2": "{# Another comment. #}",
    }.items():
        path = program / name
        path.write_text(f"{path.read_text()}{more}\n")
    assert plan(program / "src") == plan(REPOSITORY / "src")
    assert plan(program / "src")["actions"] == []


@pytest.mark.parametrize("umask", ["000", "027", "077"])
def test_a_driver_is_for_all_to_read_whatever_the_umask(host_tree: HostTree, umask: str) -> None:
    """Users and rootless hooks read it; who may write there decides what is loaded."""
    host_tree.want()
    host_tree.offer()
    command = f"umask {umask}; exec {sys.executable} -m provision apply --root {host_tree.root}"
    subprocess.run(["/bin/sh", "-c", command], check=True)
    store = host_tree.store()
    folders = [store, *store.parents[:2], *(path for path in store.rglob("*") if path.is_dir())]
    assert len(folders) > 10
    assert {oct(path.stat().st_mode & 0o777) for path in folders} == {"0o755"}


def test_the_timers_run_makes_room_in_the_package_store(
    ready: HostTree, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackageStore(default_cache())
    path = store.add(io.BytesIO(b"deb"), sha256=hashlib.sha256(b"deb").hexdigest(), name="a.deb")
    call("apply", "--timer", "--root", ready.root)
    assert path.exists()
    # The time of a file's last change can't be set.
    monkeypatch.setattr(package_store, "_last_use", lambda _status: 0.0)
    call("apply", "--root", ready.root)
    assert path.exists()
    call("apply", "--timer", "--root", ready.root)
    assert not path.exists()
