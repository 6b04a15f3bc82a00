"""One life of a host, by Ansible from the packed collection: checked, set up, upgraded, removed.

The tests are stages of it, in their order; the first failure ends it. The older collection is the
one of this checkout with older parts: another package of Python, unit, program and template.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hosts.conftest import CONTAINERD, DAEMON, ENGINE
from hosts.ssh_hosts import DEBIAN_12, DEBIAN_13, KERNEL, SshHost
from kit.cache import REPOSITORY, cache_dir
from kit.engine import Engine
from kit.fileserver import served
from kit.made_up import MADE_UP, made_up_source, write_made_up
from kit.playbooks import Ansible, Played
from kit.process import run
from kit.product import DISTRO

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(3)]

_PROGRAMS = Path(sys.executable).parent
_DRIVERS = "ansible_collections/oci_decorator/drivers"
_PROVISION = "/opt/provision/bin/provision"
_PASSWORD = "not-f0r-everyone"  # noqa: S105 - of no one
_TOML = "/etc/provision/provision.toml"
_KEY = "/etc/provision/mok.key"
_TIMER = "/etc/systemd/system/provision-repeat.timer"
_DROP_IN = f"{_TIMER}.d/override.conf"
_VENDOR = "/etc/oci-decorator/oci-decorator.d/mine.json"
_DOCKER = "/etc/docker/daemon.json"
_PODMAN = "/etc/containers/containers.conf.d/50-oci-decorator.conf"
_TOOL = f"/var/lib/provision/{MADE_UP}/current/driver/usr/bin/hello-tool"
_MINE = {
    "version": "1",
    "activation_flag": "OCI_MINE",
    "driver_feature": ["tool"],
    "inventory": {"tool": {"devices": ["null"]}},
}
# All that a playbook may touch.
_FOLDERS = ("/etc", "/opt", "/usr/bin", "/usr/share/containers", "/var/lib", "/run/systemd/system")
# Written by whatever runs.
_NOISE = (
    "/var/lib/systemd",
    "/etc/systemd/system/multi-user.target.wants/ssh",
    "/etc/ld.so.cache",
    "/var/lib/private",
    "/var/lib/containerd",
    "/var/lib/containers/storage",
    "/etc/docker/key.json",
)
# What the older wheel has otherwise, by the end of a file's name.
_PINNED = (REPOSITORY / "constraints.txt").read_text()
_PIN = _PINNED[_PINNED.index("distro==") : _PINNED.index("\ndocker==")]
_OLDER_PIN = (
    "distro==1.8.0 --hash=sha256:99522ca3e365cac527b44bde033f64c6945d90eb9f769703caaec52b09bbd3ff"
)
_OLDER = {
    "/constraints.txt": (_PIN, _OLDER_PIN),
    "/provision-repeat.timer.j2": ("once an hour", "once a day"),
}


@dataclass(slots=True)
class Life:
    """A host, and its controller with both collections."""

    # The host.
    machine: SshHost
    # The controller, with the collection that it has now.
    ansible: Ansible
    # The folder of the newer collection.
    newer: Path
    # What provision.toml should say.
    config: dict[str, Any]
    # What was on the host before anything ran.
    before: dict[str, str]
    # The artifact that the host has.
    entry: str = field(default="")

    def play(self, name: str, *words: str, check: bool = True, **variables: object) -> Played:
        """Run a playbook of the collection."""
        playbook = self.ansible.collections / _DRIVERS / "playbooks" / f"{name}.yml"
        given = {"provision_driver_config": self.config, **variables}
        return self.ansible.play(playbook, *words, check=check, **given)

    def status(self) -> dict[str, Any]:
        """What provision says of the driver for the kernel that runs."""
        document = json.loads(self.machine(_PROVISION, "status", "--json").stdout)
        ((slot,),) = (driver["kernels"] for driver in document["drivers"])
        return dict(slot)

    def docker(self) -> tuple[str, set[str]]:
        """The default runtime of the Docker that runs, and all that it knows."""
        info = json.loads(self.machine("docker", "info", "--format", "{{json .}}").stdout)
        return info["DefaultRuntime"], set(info["Runtimes"])

    def environments(self) -> list[str]:
        """The virtual environments on the host."""
        return self.machine.sh("ls -d /opt/provision/venv-*").split()


def _files(machine: SshHost) -> dict[str, str]:
    found = machine.snapshot(*_FOLDERS)
    return {path: what for path, what in found.items() if not path.startswith(_NOISE)}


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders that the older and the newer collection were installed into."""
    folder = tmp_path_factory.mktemp("packed")
    build: list[str | Path] = [
        sys.executable,
        REPOSITORY / "ansible/build_collection.py",
        "--output",
        folder,
    ]
    run(build, env={"XDG_CACHE_HOME": str(cache_dir())})
    (packed,) = folder.glob("oci_decorator-drivers-*.tar.gz")
    newer, older = folder / "newer", folder / "older"
    words = ("collection", "install", "--offline", "-p", newer, packed)
    # Not in the checkout, whose ansible.cfg says that the collection is there already.
    galaxy: list[str | Path] = [_PROGRAMS / "ansible-galaxy", *words]
    run(galaxy, cwd=folder, env={"ANSIBLE_HOME": str(folder / "home")})
    shutil.copytree(newer, older)
    _make_older(older / _DRIVERS)
    return older, newer


def _make_older(collection: Path) -> None:
    (program,) = (collection / "files").glob("oci-decorator-*")
    with program.open("ab") as opened:
        opened.write(b"older")
    template = collection / "roles/provision_hook/templates/containers.conf.j2"
    template.write_text(f"# Older.\n{template.read_text()}")
    (wheel,) = (collection / "files").glob("provision-*.whl")
    draft, changed = wheel.with_suffix(".draft"), 0
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(draft, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            for end, (new, old) in _OLDER.items():
                if entry.filename.endswith(end):
                    assert new.encode() in content
                    content, changed = content.replace(new.encode(), old.encode()), changed + 1
            target.writestr(entry, content)
    assert changed == len(_OLDER)
    draft.rename(wheel)


# Those of the second release at night.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(DEBIAN_12, id="bookworm"),
        pytest.param(DEBIAN_13, id="trixie", marks=pytest.mark.nightly),
    ],
)
def life(
    request: pytest.FixtureRequest,
    engine: Engine,
    config: dict[str, Any],
    collections: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Life]:
    """A bare host whose admin has configured engines already."""
    folder = tmp_path_factory.mktemp("life")
    sources = {version: made_up_source(folder / "files", version) for version in ("1.2", "1.3")}
    older, newer = collections
    distros = {
        **config["distros"],
        "ubuntu": {"archive": {"mirror": f"https://me:{_PASSWORD}@mirror.example/ubuntu"}},
    }
    wanted = {
        **config,
        # The kernel that the host believes to run is one of Debian 12's.
        "kernel_distro": DISTRO,
        "catalogue": ["/srv/drivers"],
        "distros": distros,
        "drivers": {MADE_UP: {"version": "1.2"}},
    }
    variables = {
        "provision_driver_cache": str(folder / "bundles"),
        # Its module can't be loaded in a container.
        "provision_driver_require": "prepared",
        "provision_hook_docker_default": True,
        "provision_hook_engines": ["docker", "containerd", "podman"],
    }
    with served(folder / "files") as url:
        write_made_up(folder / "catalogue", sources, url)
        binds = {engine.folder: ENGINE, folder / "catalogue": "/srv/drivers"}
        with SshHost(request.param, binds=binds) as machine:
            machine.write(_DOCKER, json.dumps(DAEMON, indent=2) + "\n")
            machine.write("/etc/containerd/config.toml", CONTAINERD)
            machine.write(_KEY, "the admin's key")
            machine("systemctl", "start", "docker")
            ansible = Ansible(folder, [machine], variables, collections=older)
            yield Life(machine, ansible, newer, wanted, _files(machine))


def test_a_check_of_a_bare_host_announces_and_changes_nothing(life: Life) -> None:
    checked = life.play("site", "--check", "--diff")
    assert _files(life.machine) == life.before
    added = [line for line in checked.output.splitlines() if line.startswith("+")]
    for announced in ("/usr/bin/oci-decorator-runtime", "# Written by Ansible"):
        assert any(announced in line for line in added)
    assert checked.recap["host"]["changed"] > 0


def test_it_is_set_up_with_a_driver(life: Life) -> None:
    converged = life.play("site", "--diff", "-vvv")
    slot = life.status()
    # It is in the store, and it is said why it is not loaded.
    assert (slot["release"], slot["state"]) == (KERNEL, "failed")
    assert slot["reason"] in converged.output
    assert life.machine.read(_TOOL).split()[-1] == "1.2"
    life.entry = slot["digest"]
    assert len(life.environments()) == 1
    # A password is nowhere but in a file for root.
    assert _PASSWORD in life.machine.read(_TOML)
    assert life.machine.sh(f"stat -c '%U %a' {_TOML}") == "root 600\n"
    assert _PASSWORD not in converged.output + life.machine.sh("journalctl --no-pager")


def test_an_upgrade_replaces_what_is_ours_and_keeps_what_is_the_admins(life: Life) -> None:
    (former,) = life.environments()
    sleeping = f"{former}/bin/python -c 'import time; time.sleep(900)'"
    life.machine.sh(f"systemd-run --unit=kit-old {sleeping}")
    daemon = json.loads(life.machine.read(_DOCKER)) | {"log-level": "warn"}
    life.machine.write(_DOCKER, json.dumps(daemon))
    life.machine.write(_DROP_IN, "[Timer]\nRandomizedDelaySec=1min\n")
    life.machine.write(_VENDOR, json.dumps(_MINE))
    mine = {path: _files(life.machine)[path] for path in (_DOCKER, _DROP_IN, _VENDOR, _KEY, _TOML)}
    assert "once a day" in life.machine.read(_TIMER)
    assert "# Older." in life.machine.read(_PODMAN)

    life.ansible = Ansible(
        life.ansible.folder, [life.machine], life.ansible.variables, collections=life.newer
    )
    life.play("site")
    assert "once an hour" in life.machine.read(_TIMER)
    assert "# Older." not in life.machine.read(_PODMAN)
    (program,) = (life.newer / _DRIVERS / "files").glob("oci-decorator-*")
    size = life.machine.sh("stat -c %s /usr/bin/oci-decorator")
    assert int(size) == program.stat().st_size
    packages = life.machine.sh("ls /opt/provision/venv/lib/python3*/site-packages")
    assert f"distro-{_PIN.split()[0].partition('==')[2]}.dist-info" in packages
    # What runs keeps its files; the next run takes them.
    assert former in life.environments()
    life.machine.sh("systemctl stop kit-old")
    # Nothing was built again.
    assert life.status()["digest"] == life.entry
    after = _files(life.machine)
    assert {path: after[path] for path in mine} == mine


def test_another_version_of_the_driver_takes_the_place_of_the_first(life: Life) -> None:
    life.config["drivers"] = {MADE_UP: {"version": "1.3"}}
    life.play("site")
    assert life.status()["digest"] != life.entry
    assert life.machine.read(_TOOL).split()[-1] == "1.3"
    assert len(life.environments()) == 1
    assert life.play("site").changed_tasks() == []


def test_a_removal_leaves_what_the_admin_made_and_nothing_else(life: Life) -> None:
    there = _files(life.machine)
    checked = life.play("remove", "--check", "--diff")
    assert checked.recap["host"]["changed"] > 0
    assert _files(life.machine) == there
    played = life.play("remove")
    left = _files(life.machine)
    changed = {path for path in {*left, *life.before} if left.get(path) != life.before.get(path)}
    assert changed == {_DOCKER, _DROP_IN, _VENDOR}
    assert json.loads(life.machine.read(_DOCKER)) == DAEMON | {"log-level": "warn"}
    default, runtimes = life.docker()
    assert (default, "oci-decorator" in runtimes, "kata" in runtimes) == ("runc", False, True)
    assert _KEY in played.output
    assert life.machine.sh("systemctl list-unit-files 'provision-*' --no-legend || true") == ""
    assert life.play("remove").recap["host"]["changed"] == 0
