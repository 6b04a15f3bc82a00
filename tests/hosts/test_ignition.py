"""First boots of machines without Python, set up by the real Ignition and by a unit of ours.

The machine is a Debian tree that is laid out as Fedora CoreOS's or Flatcar's is. What Ignition does
in the initrd, it does here to the tree, which then boots for the first time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest

from hosts.conftest import ENGINE, podman_files
from kit.bundles import overlaid
from kit.engine import Engine
from kit.engine_tree import EngineTree
from kit.files import write
from kit.hosts import OLD_KERNEL
from kit.immutable import read_only_usr
from kit.probe import need_programs
from kit.process import run, wait_for
from kit.product import Provision
from kit.systemd import SHARED_NETWORK, SystemdContainer

# The agent's image is made. tests/unit/export/test_sysext.py has the configurations.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(3)]

Layout = Literal["fcos", "flatcar"]

# Machines believe to run OLD_KERNEL. Its modules can't be loaded: containers may not.
# Debian's package has the program only for its dracut module.
_IGNITION = Path("/usr/lib/dracut/modules.d/30ignition/ignition")
_BEGIN = read_only_usr("/bin/mount --bind /etc/kernel-release /proc/sys/kernel/osrelease")
_THEN = """\
systemctl enable kit-begin.service
# It wants a console, and isn't there on those distros.
systemctl mask systemd-firstboot.service
# No machine-id: the next boot is the first.
rm -f /etc/machine-id /var/lib/dbus/machine-id
rm -r /opt
if command -v python3; then exit 1; fi
"""
_FILES = {
    # A first boot enables what presets say, and nothing else, as on those distros. Nothing is to
    # touch this machine's network.
    "etc/systemd/system-preset/00-kit.preset": """\
disable systemd-network*
disable systemd-resolved*
disable systemd-timesyncd*
disable getty@*
""",
    "etc/systemd/system-preset/99-kit.preset": "disable *\n",
    "etc/systemd/system/kit-begin.service": _BEGIN,
    "etc/kernel-release": f"{OLD_KERNEL}\n",
    f"usr/lib/modules/{OLD_KERNEL}/modules.dep": "",
    f"boot/vmlinuz-{OLD_KERNEL}": "",
    # In a container, systemd gives units that it protects from the cgroups a /proc of their own.
    "etc/systemd/system/provision-apply.service.d/kit.conf": "[Service]\nProtectControlGroups=no\n",
    # Debian's Ignition asks it for the labels that files get.
    "etc/selinux/config": "SELINUX=disabled\nSELINUXTYPE=targeted\n",
}
_TREE = EngineTree("coreos", "bookworm", files=tuple(_FILES.items()), then=_THEN)


@contextmanager
def _tree(layout: Layout, folder: Path) -> Iterator[Path]:
    """A tree that has not booted yet; what is written to it goes into `folder`."""
    with overlaid(_TREE.path(), folder) as tree:
        if layout == "fcos":
            (tree / "opt").symlink_to("var/opt")
            (tree / "var/opt").mkdir(exist_ok=True)
        else:
            (tree / "opt").mkdir()
        yield tree


def _validate(config: Path) -> None:
    """Have Ignition's own validator read a configuration: it may not warn either."""
    assert run(["ignition-validate", config]).output.strip() == ""


def _ignite(config: Path, tree: Path) -> None:
    """Have Ignition set up a tree: what it does between the initrd's network and its end."""
    with tempfile.TemporaryDirectory(prefix="provision-ignition-") as name:
        folder = Path(name)
        words = [
            str(_IGNITION),
            *("--platform=file", f"--root={tree}", "--log-to-stdout"),
            *(f"--config-cache={folder}/config.json", f"--state-file={folder}/state"),
            f"--neednet={folder}/neednet",
        ]
        # Labels are what it writes last, with a program that wants the distro's policy.
        setfiles = write(folder / "bin/setfiles", "#!/bin/sh\nexec cat\n", 0o755)
        path = f"{setfiles.parent}:{os.environ['PATH']}"
        env = {"IGNITION_CONFIG_FILE": str(config), "PATH": path}
        for stage in ("fetch", "files"):
            run([*words, f"--stage={stage}"], env=env)


_DRIVER = "v4l2loopback"
_PROGRAM = "/opt/provision/bin/provision"
_RUNTIME = "/opt/provision/bin/oci-decorator-runtime"
_FIRST_BOOT = "provision-first-boot.service"
_APPLY = "provision-apply.service"
_UNITS = (
    "provision-boot.service",
    "provision-kernel.path",
    "provision-apply.timer",
    "provision-repeat.timer",
)
# A driver is built before nothing is left that the boot has started.
_BOOT_S = 900
_MODES = {
    "/etc/provision/provision.toml": "644",
    "/etc/oci-decorator/oci-decorator.d": "755",
    "/etc/docker/daemon.json": "644",
    "/opt/provision": "755",
    "/opt/provision/bin/oci-decorator": "755",
    f"/etc/systemd/system/{_FIRST_BOOT}": "644",
}


@dataclass(frozen=True, slots=True)
class Booted:
    """A machine after its first boot."""

    container: SystemdContainer

    def __call__(self, *words: str) -> str:
        """Run a command in it; what it prints."""
        return self.container(*words).stdout

    def unit(self, name: str, field: str) -> str:
        """What systemd says of a unit."""
        return self("systemctl", "show", "--property", field, "--value", name).strip()


def _users_own(config: Path) -> Path:
    """A configuration of someone's, which takes ours in, and has more."""
    text = quote(config.read_text(), safe="")
    motd = {"path": "/etc/motd", "overwrite": True, "contents": {"source": "data:,mine"}}
    path = config.with_name("users.ign")
    document = {
        "ignition": {"version": "3.3.0", "config": {"merge": [{"source": f"data:,{text}"}]}},
        "storage": {"files": [{**motd, "mode": 0o644}]},
    }
    path.write_text(json.dumps(document))
    return path


@contextmanager
def _set_up(agent: str, layout: Layout, toml: str, folder: Path) -> Iterator[Path]:
    """A tree that Ignition has been through."""
    need_programs("ignition-validate")
    settings, config = folder / "provision.toml", folder / "provision.ign"
    settings.write_text(toml)
    words = ("--config", settings, "--image", agent, "--variant", layout, "--output", config)
    Provision()("export", "ignition", *words)
    _validate(config)
    users = _users_own(config)
    _validate(users)
    with _tree(layout, folder) as tree:
        for path, text in podman_files(agent).items():
            write(tree / path.lstrip("/"), text)
        _ignite(users, tree)
        yield tree


@contextmanager
def _booted(tree: Path, *flags: str) -> Iterator[Booted]:
    machine = SystemdContainer(
        tree=tree,
        capabilities=SHARED_NETWORK,
        flags=("--network=host", *flags),
        boot_s=_BOOT_S,
    )
    with machine as container:
        booted = Booted(container)

        def is_set_up() -> bool:
            states = [booted.unit(name, "ActiveState") for name in (_FIRST_BOOT, _APPLY)]
            return not set(states) & {"active", "activating"}

        wait_for("the first boot", is_set_up, within_s=_BOOT_S)
        yield booted


def _toml(config: dict[str, Any]) -> str:
    archive = config["distros"]["debian"]["archive"]
    return (
        f"[drivers.{_DRIVER}]\n"
        f'[engine]\nhost = "{config["engine"]["host"]}"\nnetwork = "host"\n'
        f'[distros.debian.archive]\nmirror = "{archive["mirror"]}"\n'
        f'security_mirror = "{archive["security_mirror"]}"\n'
    )


@pytest.fixture(scope="module")
def coreos(
    agent: str, engine: Engine, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Booted]:
    """A machine that should have a driver, laid out as Fedora CoreOS is."""
    folder = tmp_path_factory.mktemp("coreos")
    with (
        _set_up(agent, "fcos", _toml(config), folder) as tree,
        _booted(tree, f"--volume={engine.folder}:{ENGINE}") as booted,
    ):
        yield booted


def test_the_unit_has_done_its_work(coreos: Booted) -> None:
    assert coreos.unit(_FIRST_BOOT, "Result") == "success"
    assert coreos("readlink", "/opt").strip() == "var/opt"
    assert coreos("ls", "-A", "/opt/provision").split() == ["bin", "python"]
    assert coreos("readlink", _PROGRAM).strip() == "../python/bin/provision"
    # The system's own folder is not written to, and still has no Python.
    assert coreos.container("touch", "/usr/x", check=False).returncode != 0
    assert coreos.container("sh", "-c", "command -v python3", check=False).returncode != 0


def test_nothing_is_left_to_do(coreos: Booted) -> None:
    before = coreos("ls", "-ldi", "/opt/provision/python", _PROGRAM)
    coreos("systemctl", "restart", _FIRST_BOOT)
    assert coreos.unit(_FIRST_BOOT, "ConditionResult") == "no"
    assert coreos("ls", "-ldi", "/opt/provision/python", _PROGRAM) == before


@pytest.mark.parametrize("path", _MODES)
def test_files_are_roots_and_have_their_modes(coreos: Booted, path: str) -> None:
    assert coreos("stat", "-c", "%U:%G %a", path).split() == ["root:root", _MODES[path]]


def test_a_users_own_configuration_counts_too(coreos: Booted) -> None:
    assert coreos("cat", "/etc/motd") == "mine"


@pytest.mark.parametrize("unit", _UNITS)
def test_units_are_enabled(coreos: Booted, unit: str) -> None:
    assert coreos("systemctl", "is-enabled", unit).strip() == "enabled"
    if not unit.endswith(".service"):
        assert coreos("systemctl", "is-active", unit).strip() == "active"


def test_the_driver_is_in_the_store_and_it_is_said_why_it_is_not_loaded(coreos: Booted) -> None:
    status = json.loads(coreos(_PROGRAM, "status", "--json"))
    (driver,) = status["drivers"]
    (slot,) = driver["kernels"]
    assert (slot["release"], slot["state"]) == (OLD_KERNEL, "failed")
    assert slot["digest"]
    assert slot["reason"] in coreos("journalctl", "--no-pager", "-u", "provision-apply")
    vendor = f"/etc/oci-decorator/oci-decorator.d/{_DRIVER}.json"
    assert json.loads(coreos("cat", vendor))


def test_engines_know_the_runtime(coreos: Booted) -> None:
    coreos("/opt/provision/bin/oci-decorator", "check")
    document = json.loads(coreos("cat", "/etc/docker/daemon.json"))
    assert document["runtimes"]["oci-decorator"]["path"] == _RUNTIME
    assert coreos("readlink", _RUNTIME).strip() == "oci-decorator"
    hook = json.loads(coreos("cat", "/etc/containers/oci/hooks.d/20-oci-decorator-prestart.json"))
    assert hook["hook"]["path"] == "/opt/provision/bin/oci-decorator"
    # With a storage of its own, which does not ask for overlays on overlays.
    podman = "podman --root /run/kit/a --runroot /run/kit/b --tmpdir /run/kit/c"
    asked = "--storage-driver vfs --runtime oci-decorator info --format '{{.Host.OCIRuntime.Path}}'"
    assert coreos("sh", "-c", f"{podman} {asked}").strip() == _RUNTIME


def test_systemd_finds_nothing_wrong_with_the_unit(coreos: Booted) -> None:
    done = coreos.container("systemd-analyze", "verify", f"/etc/systemd/system/{_FIRST_BOOT}")
    assert _FIRST_BOOT not in done.output


def test_a_boot_goes_on_where_another_was_cut_short(agent: str, tmp_path: Path) -> None:
    with _set_up(agent, "flatcar", "", tmp_path) as tree:
        for left in (
            "/opt/provision/.python.draft/new/bin/python3",
            "/opt/provision/python/bin/python3",
            "/opt/provision/bin/.oci-decorator.draft",
        ):
            write(tree / left.lstrip("/"), "half")
        with _booted(tree) as flatcar:
            assert flatcar.unit(_FIRST_BOOT, "Result") == "success"
            log = flatcar("journalctl", "--no-pager", "-u", _FIRST_BOOT)
            assert flatcar.unit(_FIRST_BOOT, "NRestarts") == "0", log
            assert flatcar("ls", "-A", "/opt/provision").split() == ["bin", "python"]
            assert flatcar("readlink", "-f", "/opt").strip() == "/opt"
            status = flatcar("sh", "-c", f"{_PROGRAM} status --json || [ $? = 3 ]")
            assert json.loads(status)["state"] == "not-configured"
            podman = flatcar.container("ls", "/etc/containers/containers.conf.d", check=False)
            assert "oci-decorator" not in podman.stdout


def test_a_boot_without_a_registry_is_complete_and_tries_again(agent: str, tmp_path: Path) -> None:
    away = f"127.0.0.1:1/{agent.partition('/')[2]}"
    with _set_up(away, "fcos", "", tmp_path) as tree:
        machine = SystemdContainer(
            tree=tree, capabilities=SHARED_NETWORK, flags=("--network=host",), boot_s=_BOOT_S
        )
        with machine as container:
            booted = Booted(container)
            wait_for(
                "a second try", lambda: booted.unit(_FIRST_BOOT, "NRestarts") != "0", within_s=120
            )
            assert booted.unit("multi-user.target", "ActiveState") == "active"
            assert booted("ls", "-A", "/opt/provision").split() == ["first-boot"]
