"""What the commands do beside the table: units, the journal, the package store."""

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

from kit.artifact import make_artifact, make_pin
from kit.cache import REPOSITORY
from kit.host_tree import DRIVER, HostTree
from provision.build import package_store
from provision.build.package_store import PackageStore
from provision.build.workspace import default_cache
from provision.errors import ExitCode
from provision.files import lock
from provision.store import units as store_units
from provision.store.layout import Layout
from unit.cli.outcome import Outcome
from unit.cli.states import STATES

Call = Callable[..., Outcome]


@pytest.fixture
def host(host_tree: HostTree) -> Path:
    """A host's root."""
    return host_tree.root


def test_a_host_may_want_no_specifications(call: Call, host: Path) -> None:
    units = host / "etc/systemd/system"
    assert call("units", "install", "--root", host).code == 0
    assert (units / "provision-cdi.path").exists()
    settings = host / "etc/provision/provision.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[cdi]\ngenerate = false\n")
    assert call("units", "install", "--root", host).code == 0
    assert not [*units.rglob("provision-cdi*")]
    assert (units / "provision-boot.service").exists()


@pytest.mark.parametrize(
    ("installed", "settings", "wanted"),
    [
        (["podman"], "", True),
        (["podman", "dockerd"], "", False),
        (["dockerd"], "", False),
        ([], "", False),
        (["podman", "dockerd"], "unix:///run/podman/podman.sock", True),
        (["podman"], "ssh://builder.example", False),
    ],
)
def test_units_that_build_start_podmans_socket_where_podman_builds(
    call: Call, host: Path, installed: list[str], settings: str, *, wanted: bool
) -> None:
    (host / "usr/bin").mkdir(parents=True, exist_ok=True)
    for name in installed:
        (host / "usr/bin" / name).touch()
    if settings:
        path = host / "etc/provision/provision.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'[engine]\nhost = "{settings}"\n')
    assert call("units", "install", "--root", host).code == 0
    for name in ("provision-apply.service", "provision-kernel.service"):
        text = (host / "etc/systemd/system" / name).read_text()
        assert ("Wants=podman.socket" in text.splitlines()) == wanted


def test_in_tree_copies_are_blacklisted_while_units_load_the_driver(call: Call, host: Path) -> None:
    layout = Layout(host, "demo")
    digest = make_pin().short_digest
    make_artifact(layout.entry(digest))
    layout.current.symlink_to(digest)
    assert call("units", "install", "--root", host).code == 0
    assert "blacklist demo\n" in layout.modprobe_config.read_text()
    assert call("units", "remove", "--root", host).code == 0
    assert not layout.modprobe_config.exists()


def test_two_at_once_are_not_waited_for_without_a_word_or_an_end(
    call: Call, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_units, "SWITCH_SECONDS", 0.1)
    with lock(host / "run/provision/units.lock"):
        outcome = call("units", "install", "--root", host)
    assert outcome.code == ExitCode.IN_USE
    assert not (host / "etc/systemd").exists()


def test_updates_are_held_only_on_flatcar_and_on_request(call: Call, host: Path) -> None:
    gate = host / "oem/bin/oem-postinst"
    config = host / "etc/provision/provision.toml"
    config.parent.mkdir()
    config.write_text("[policy]\nhold_kernels = true\n")
    assert call("units", "install", "--root", host).code == 0
    assert not gate.exists()
    (host / "etc/os-release").write_text("ID=flatcar\nVERSION_ID=4081.2.0\n")
    assert call("units", "install", "--root", host).code == 0
    assert gate.exists()
    config.write_text("")
    assert call("units", "install", "--root", host).code == 0
    assert not gate.exists()


def test_what_the_removal_of_a_package_runs_leaves_no_store(call: Call, host: Path) -> None:
    store = host / "var/lib/provision"
    for word, is_written in (("install", True), ("remove", False), ("remove", False)):
        assert call("units", word, "--root", host).code == 0
        assert any(path.is_file() for path in store.rglob("*")) is is_written


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

    program, compiled = tmp_path / "newer", shutil.ignore_patterns("__pycache__")
    for name in ("src", "templates", "driver_images"):
        shutil.copytree(REPOSITORY / name, program / name, ignore=compiled)
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


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077], ids=oct)
def test_a_driver_is_for_all_to_read_whatever_the_umask(host_tree: HostTree, umask: int) -> None:
    """Users and rootless hooks read it; who may write there decides what is loaded."""
    host_tree.want()
    host_tree.offer()
    command = [sys.executable, "-m", "provision", "apply", "--root", str(host_tree.root)]
    subprocess.run(command, check=True, umask=umask)
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
