"""The move from Debian's packages of NVIDIA's driver, and back: docs/how-to/move-from-nvidia.md.

The old driver is the real one. The new one is a small module under its name, in a recipe that knows
the real one by the files which the shipped recipe names: how it is built is not the matter here.
The old toolkit is NVIDIA's, in packages as its own are (`kit.nvidia_toolkit`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hosts.conftest import ENGINE
from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.cache import REPOSITORY
from kit.debian import apt_sources
from kit.engine import Engine
from kit.fileserver import served
from kit.made_up import MADE_UP, MADE_UP_VERSION, made_up_source, write_made_up
from kit.nvidia_toolkit import TOOLKIT_PACKAGES, toolkit_archive
from kit.pages import snippet
from kit.playbooks import SITE, Ansible, Played
from kit.product import DECORATOR, DISTRO

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_PAGE = "how-to/move-from-nvidia.md"
_DRIVER = "nvidia"
# Without X, as on a host of a cluster.
_OLD = "nvidia-driver nvidia-kernel-dkms nvidia-smi libcuda1"
_APT = "DEBIAN_FRONTEND=noninteractive apt-get"
_PROVISION = "/opt/provision/bin/provision"
# Modules can't be loaded in a container: provision says so, by its exit code.
_APPLY = f"{_PROVISION} apply || true"
_SETTINGS = "/etc/provision/provision.toml"
# Where the host sees the archive of the toolkit's packages, and a clone after `make build`.
_ARCHIVE, _CLONE = "/srv/toolkit", "/srv/clone"
_CDI = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits: {env: [A=b]}
"""


@dataclass(frozen=True, slots=True)
class _Moved:
    """A host with the old driver, and a controller that gives it the new one."""

    machine: SshHost
    ansible: Ansible
    config: dict[str, Any]
    # What it was before.
    packages: set[str]
    settings: dict[str, str]

    def play(self, *, replace: bool = False) -> Played:
        """Run the playbook."""
        words = {"provision_driver_config": self.config, "provision_driver_replace": replace}
        return self.ansible.play(SITE, check=True, **words)

    def other(self) -> Any:  # noqa: ANN401 - any JSON
        """What `status` says of the old driver."""
        status = json.loads(self.machine.sh(f"{_PROVISION} status --json"))
        (driver,) = status["drivers"]
        return driver["other"]

    def is_as_before(self) -> bool:
        """Whether the host has the old driver, all of it."""
        return _packages(self.machine) == self.packages and _settings(self.machine) == self.settings


def _packages(machine: SshHost) -> set[str]:
    shown = machine.sh("dpkg-query -W -f '${db:Status-Abbrev}${binary:Package}=${Version}\\n'")
    return {line[3:] for line in shown.splitlines() if line.startswith("ii ")}


def _settings(machine: SshHost) -> dict[str, str]:
    found = machine.snapshot("/etc/modprobe.d", "/etc/modules-load.d", "/var/lib/dkms", "/usr/src")
    return {path: what for path, what in found.items() if "provision" not in path}


def _toolkit(machine: SshHost) -> dict[str, str]:
    """What the toolkit left on the host; our program stays when it comes back."""
    found = machine.snapshot("/etc/nvidia-container-runtime", "/etc/systemd/system", "/usr/bin")
    return {path: what for path, what in found.items() if "oci-decorator" not in path}


def _recipe(folder: Path, source: Path, url: str) -> None:
    """Write a recipe of the old driver's name, which knows that one as the shipped recipe does."""
    recipe = write_made_up(folder, {MADE_UP_VERSION: source}, url)
    shipped = tomllib.loads((REPOSITORY / "driver_images/nvidia/driver.toml").read_text())
    known = shipped["installed"]
    text = recipe.read_text().replace(f'name = "{MADE_UP}"', f'name = "{_DRIVER}"')
    text += (
        f"\n[installed]\nlibrary = {json.dumps(known['library'])}\n"
        f"libraries = {json.dumps(known['libraries'])}\n[installed.features.tool]\n"
    )
    recipe.write_text(text)
    recipe.parent.rename(folder / _DRIVER)


@pytest.fixture(scope="module")
def moved(
    engine: Engine,
    settings: dict[str, Any],
    config: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[_Moved]:
    """A host that has Debian's packages of NVIDIA's driver."""
    folder = tmp_path_factory.mktemp("move")
    source = made_up_source(folder / "files", MADE_UP_VERSION)
    wanted = {
        **config,
        "kernel_distro": DISTRO,
        "drivers": {_DRIVER: {"version": MADE_UP_VERSION}},
    }
    variables = {
        **settings,
        "provision_driver_require": "prepared",
        "provision_driver_catalogue": str(folder / "catalogue"),
        "provision_hook_engines": [],
    }
    with served(source.parent) as url:
        _recipe(folder / "catalogue", source, url)
        with SshHost(DEBIAN_12, binds={engine.folder: ENGINE}) as machine:
            components = "main contrib non-free non-free-firmware"
            machine.write("/etc/apt/sources.list", apt_sources("bookworm", components))
            machine.sh(f"{_APT} update -q; {_APT} install -q -y --no-install-recommends {_OLD}")
            ansible = Ansible(folder, [machine], variables)
            before = (_packages(machine), _settings(machine))
            yield _Moved(machine, ansible, wanted, *before)


def test_the_new_driver_is_made_beside_the_old_one_and_status_says_what_is_there(
    moved: _Moved,
) -> None:
    moved.play()
    assert moved.is_as_before()
    other = moved.other()
    assert {"nvidia-kernel-dkms", "nvidia-current"} <= set(other["seen"].replace("/", " ").split())
    # What the page has for Debian's packages is what the program says.
    assert "".join(f"{line}\n" for line in other["remove"]) == snippet(_PAGE, "### 2.")


def test_by_hand_all_of_the_old_driver_goes_and_all_of_it_comes_back(moved: _Moved) -> None:
    machine = moved.machine
    machine.sh(snippet(_PAGE, "### 2."))
    gone = moved.packages - _packages(machine)
    names = {name.partition("=")[0].partition(":")[0] for name in gone}
    assert {"nvidia-driver", "nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1"} <= names
    # What others may use.
    assert "dkms" not in names
    assert moved.other() is None
    kept = machine.read(_SETTINGS)
    machine.write(_SETTINGS, "# none\n")
    back = snippet(_PAGE, "Then the driver.", {"provision apply": _APPLY})
    machine.sh(f"export DEBIAN_FRONTEND=noninteractive\n{back}")
    assert moved.is_as_before()
    machine.write(_SETTINGS, kept)


def test_by_ansible_it_goes_once_the_new_one_is_there(moved: _Moved) -> None:
    broken = {**moved.config, "drivers": {_DRIVER: {"version": "0.0"}}}
    play = moved.ansible.play
    wrong = play(SITE, check=False, provision_driver_config=broken, provision_driver_replace=True)
    assert (wrong.code == 0, moved.is_as_before()) == (False, True)
    moved.play(replace=True)
    assert moved.other() is None
    gone = moved.packages - _packages(moved.machine)
    listed = moved.machine.read("/var/lib/provision/replaced-nvidia").split()
    assert {name.partition("=")[0].partition(":")[0] for name in gone} == set(listed)
    assert moved.play(replace=True).changed_tasks() == []


@pytest.fixture
def with_toolkit(tmp_path: Path) -> Iterator[SshHost]:
    """A host that has NVIDIA's toolkit, which apt knows, and a clone after `make build`."""
    toolkit_archive(tmp_path / "toolkit")
    binds = {tmp_path / "toolkit": _ARCHIVE, DECORATOR.parent: f"{_CLONE}/build"}
    with SshHost(DEBIAN_12, binds=binds) as machine:
        machine.write("/etc/apt/sources.list", f"deb [trusted=yes] file:{_ARCHIVE} ./\n")
        machine.sh(f"{_APT} update -q; {_APT} install -q -y nvidia-container-toolkit")
        yield machine


def test_by_hand_nvidias_toolkit_goes_and_comes_back(with_toolkit: SshHost) -> None:
    machine = with_toolkit
    packages, files = _packages(machine), _toolkit(machine)
    steps = "\n".join(snippet(_PAGE, f"### {number}.") for number in (4, 5, 6, 7))
    # `snippet` gives the build's path for the installed one, which it is here.
    machine.sh(f"cd {_CLONE}\n{steps.replace(str(DECORATOR), '/usr/bin/oci-decorator')}")
    gone = {name.partition("=")[0].partition(":")[0] for name in packages - _packages(machine)}
    assert gone == set(TOOLKIT_PACKAGES)
    # Without the service, which comes with `provision`, and without a driver to write it of.
    machine.write("/etc/cdi/nvidia.yaml", _CDI)
    check = snippet(_PAGE, "### 9.", {"docker run --rm --gpus all IMAGE nvidia-smi": ""})
    said = machine.sh(check)
    assert "config.toml: ok" in said
    assert "nvidia.com/gpu=0" in said
    machine.sh(snippet(_PAGE, "The toolkit first:"))
    assert (_packages(machine), _toolkit(machine)) == (packages, files)
