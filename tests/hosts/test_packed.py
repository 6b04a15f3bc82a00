"""The packed collection, installed elsewhere, on a host: it brings all that it needs.

The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hosts.machines import DEBIAN_12, Machine
from kit.cache import REPOSITORY, cache_dir
from kit.playbooks import Ansible, Played
from kit.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.engine import Engine

pytestmark = pytest.mark.minutes(2)

_PROGRAMS = Path(sys.executable).parent
_PASSWORD = "not-f0r-everyone"  # noqa: S105 - of no one
_CONFIG = {
    "drivers": {},
    "distros": {"debian": {"archive": {"mirror": f"https://me:{_PASSWORD}@mirror.example/debian"}}},
}
_TOML = "/etc/provision/provision.toml"
# Another version of a package than the constraints have, and its only wheel.
_OLDER = (
    "distro==1.8.0 --hash=sha256:99522ca3e365cac527b44bde033f64c6945d90eb9f769703caaec52b09bbd3ff\n"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the packed collection was installed into."""
    folder = tmp_path_factory.mktemp("packed")
    build: list[str | Path] = [
        sys.executable,
        REPOSITORY / "ansible/build_collection.py",
        "--output",
        folder,
    ]
    run(build, env={"XDG_CACHE_HOME": str(cache_dir())})
    (packed,) = folder.glob("oci_decorator-drivers-*.tar.gz")
    galaxy: list[str | Path] = [_PROGRAMS / "ansible-galaxy", "collection", "install", "--offline"]
    there = folder / "there"
    # Not in the checkout, whose ansible.cfg says that the collection is there already.
    run([*galaxy, "-p", there, packed], cwd=folder, env={"ANSIBLE_HOME": str(folder / "home")})
    return there


@pytest.fixture(scope="module")
def machine(engine: Engine) -> Iterator[Machine]:
    """A host with a key of the admin's."""
    del engine  # for what it checks of this machine
    with Machine(DEBIAN_12) as machine:
        machine.write("/etc/provision/mok.key", "a key")
        yield machine


@pytest.fixture(scope="module")
def ansible(machine: Machine, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    """A controller that has the collection and no checkout."""
    folder = tmp_path_factory.mktemp("controller")
    variables: dict[str, Any] = {"provision_driver_config": _CONFIG}
    return Ansible(folder, [machine], variables, collections=installed)


def _play(
    ansible: Ansible, name: str, *words: str, check: bool = True, **variables: object
) -> Played:
    playbooks = ansible.collections / "ansible_collections/oci_decorator/drivers/playbooks"
    return ansible.play(playbooks / f"{name}.yml", *words, check=check, **variables)


def _environment(machine: Machine) -> str:
    return machine.sh("readlink /opt/provision/venv").strip()


def test_the_archive_has_everything_and_its_licence(installed: Path) -> None:
    collection = installed / "ansible_collections/oci_decorator/drivers"
    assert (collection / "LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()
    assert len(list((collection / "files").glob("provision-*.whl"))) == 1
    assert len(list((collection / "files").glob("oci-decorator-*"))) == 1
    with tarfile.open(next(installed.parent.glob("*.tar.gz"))) as packed:
        assert not [name for name in packed.getnames() if name.startswith(".") or "cache" in name]


def test_site_yml_of_it_installs_everything(ansible: Ansible, machine: Machine) -> None:
    played = _play(ansible, "site", "--diff", "-vvv")
    assert played.recap["host"]["failed"] == 0
    assert machine.sh("/opt/provision/bin/provision --version").startswith("provision ")
    assert machine.sh("oci-decorator --version").startswith("oci-decorator ")
    pinned = (REPOSITORY / "constraints.txt").read_text()
    listed = machine.sh("ls /opt/provision/venv/lib/python3*/site-packages").split()
    found = [name.removesuffix(".dist-info") for name in listed if name.endswith(".dist-info")]
    versions = dict(name.rsplit("-", 1) for name in found if not name.startswith("provision-"))
    for name, version in versions.items():
        assert f"{name.replace('_', '-').lower()}=={version} " in pinned
    assert _play(ansible, "site").changed_tasks() == []
    assert _PASSWORD not in played.output


def test_a_password_is_nowhere_but_in_a_file_for_root(ansible: Ansible, machine: Machine) -> None:
    text = machine.read(_TOML)
    assert _PASSWORD in text
    assert machine.sh(f"stat -c %a {_TOML}").strip() == "600"
    assert _PASSWORD not in machine.sh("journalctl --no-pager")
    config = json.loads(json.dumps(_CONFIG).replace(_PASSWORD, f"{_PASSWORD}-new"))
    played = _play(ansible, "site", "--check", "--diff", "-vvv", provision_driver_config=config)
    assert "Ensure provision.toml is written" in played.changed_tasks()
    assert _PASSWORD not in played.output


@pytest.mark.nightly
def test_other_packages_make_another_environment(
    ansible: Ansible, machine: Machine, tmp_path: Path
) -> None:
    first = _environment(machine)
    entries = (REPOSITORY / "constraints.txt").read_text().split("\n")
    start = next(number for number, line in enumerate(entries) if line.startswith("distro=="))
    end = next(n for n in range(start + 1, len(entries)) if not entries[n].startswith(" "))
    older = tmp_path / "older.txt"
    older.write_text("\n".join([*entries[:start], _OLDER.strip(), *entries[end:]]))
    # A process of the former one goes on.
    old = f"/opt/provision/{first}"
    machine.sh(f"systemd-run --unit=kit-old {old}/bin/python -c 'import time; time.sleep(900)'")
    played = _play(ansible, "site", provision_driver_constraints=str(older))
    assert "Ensure provision is installed from the archive" in played.changed_tasks()
    second = _environment(machine)
    assert second != first
    assert machine.sh("ls /opt/provision/venv/lib/python3*/site-packages | grep ^distro-") == (
        "distro-1.8.0.dist-info\n"
    )
    # What runs keeps its files; the next run takes them.
    assert machine.sh(f"test -d {old} && echo there") == "there\n"
    machine.sh("systemctl stop kit-old")
    _play(ansible, "site", provision_driver_constraints=str(older))
    assert machine.sh("ls -d /opt/provision/venv-*").split() == [f"/opt/provision/{second}"]
    # Back to the first contents, and so to the first name.
    _play(ansible, "site")
    assert _environment(machine) == first


def test_a_wheel_with_another_checksum_is_refused(ansible: Ansible, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.txt"
    text = (REPOSITORY / "constraints.txt").read_text()
    start = text.index("distro==")
    entry = text[start : text.index("\ndocker==")]
    wrong.write_text(text.replace(entry, f"distro==1.9.0 --hash=sha256:{'0' * 64}"))
    played = _play(ansible, "site", check=False, provision_driver_constraints=str(wrong))
    assert played.code != 0
    assert "DO NOT MATCH THE HASHES" in played.output
    assert played.changed_tasks() == []


def test_remove_yml_of_it_leaves_the_key_and_lists_it(ansible: Ansible, machine: Machine) -> None:
    played = _play(ansible, "remove")
    assert machine.read("/etc/provision/mok.key") == "a key"
    assert machine.sh("ls /etc/provision").split() == ["mok.key"]
    assert machine.sh("ls -A /opt /var/lib/oci-decorator 2>/dev/null || true").split() == ["/opt:"]
    assert "These files stay, because provision did not install them:" in played.output
    assert "/etc/provision/mok.key" in played.output
    assert _play(ansible, "remove").recap["host"]["changed"] == 0
