"""First boots of machines without Python, set up by the real Ignition and by a unit of ours."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils import bundles

from hosts.conftest import ENGINE
from kit.cache import cache_dir
from kit.coreos import KERNEL, coreos_tree, ignite, validate
from kit.files import write
from kit.fileserver import served
from kit.host_python import host_python
from kit.probe import need_programs
from kit.product import DECORATOR, Provision
from kit.systemd import SHARED_NETWORK, SystemdContainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.coreos import Layout
    from kit.engine import Engine

# A Python for hosts is compiled. tests/unit/export/ignition has the configurations with each
# change.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(3)]

_DRIVER = "v4l2loopback"
_PROGRAM = "/opt/provision/bin/provision"
_RUNTIME = "/opt/provision/bin/oci-decorator-runtime"
_STAGED = "/opt/provision/first-boot"
_FIRST_BOOT = "provision-first-boot.service"
_UNITS = (
    "provision-boot.service",
    "provision-kernel.path",
    "provision-apply.timer",
    "provision-repeat.timer",
)
# As the role's facts describe a Python.
_DESCRIBE = """
import json, platform, sys
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "machine": platform.machine(),
    "libc": list(platform.libc_ver()),
}))
"""
# A driver is built before nothing is left that the boot has started.
_BOOT_S = 900
_MODES = {
    "/etc/provision/provision.toml": "644",
    "/etc/oci-decorator/config.toml": "644",
    "/etc/oci-decorator/oci-decorator.d": "755",
    "/etc/docker/daemon.json": "644",
    "/opt/provision": "755",
    "/opt/provision/bin/oci-decorator": "755",
    "/opt/provision/provision.tar": "644",
    f"/etc/systemd/system/{_FIRST_BOOT}": "644",
}


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes configurations, of provision as it is now."""

    # The archive with the machines' Python.
    python: Path
    # Provision.
    wheel: Path
    # Where to.
    folder: Path

    def make(self, variant: Layout, toml: str, url: str, output: Path) -> dict[str, Any]:
        """Fill `output`, which is served at `url`; what the command says of it."""
        config = self.folder / f"{variant}.toml"
        config.write_text(toml)
        words = ("--config", config, "--url", url, "--output", output, "--variant", variant)
        files = ("--python", self.python, "--hook", DECORATOR, "--source", self.wheel)
        return Provision().json("export", "ignition", *words, *files)


@dataclass(frozen=True, slots=True)
class Booted:
    """A machine after its first boot."""

    container: SystemdContainer
    said: dict[str, Any]

    def __call__(self, *words: str) -> str:
        """Run a command in it; what it prints."""
        return self.container(*words).stdout

    def unit(self, name: str, field: str) -> str:
        """What systemd says of a unit."""
        return self("systemctl", "show", "--property", field, "--value", name).strip()


@pytest.fixture(scope="module")
def maker(engine: Engine, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """What makes configurations."""
    need_programs("ignition-validate")
    return Maker(host_python(engine), wheel, tmp_path_factory.mktemp("ignition"))


def _users_own(output: Path, said: dict[str, Any]) -> Path:
    """A configuration of someone's, which takes ours in as the page says, and has more."""
    hashed = f"sha512-{said['config']['sha512']}"
    assert hashed in (output / "provision.bu").read_text()
    merged = {"source": said["config"]["url"], "verification": {"hash": hashed}}
    motd = {"path": "/etc/motd", "overwrite": True, "contents": {"source": "data:,mine"}}
    path = output.parent / "users.ign"
    document = {
        "ignition": {"version": "3.3.0", "config": {"merge": [merged]}},
        "storage": {"files": [{**motd, "mode": 0o644}]},
    }
    path.write_text(json.dumps(document))
    return path


@contextmanager
def _set_up(
    maker: Maker, layout: Layout, toml: str, folder: Path
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A tree that Ignition has been through, and what there is to know of its configuration."""
    output = folder / "served"
    output.mkdir()
    with served(output) as url, coreos_tree(layout, folder) as tree:
        said = maker.make(layout, toml, url, output)
        validate(output / "config.ign")
        users = _users_own(output, said)
        validate(users)
        ignite(users, tree)
        yield tree, said


@contextmanager
def _booted(tree: Path, said: dict[str, Any], *flags: str) -> Iterator[Booted]:
    machine = SystemdContainer(
        tree=tree,
        capabilities=SHARED_NETWORK,
        flags=("--network=host", *flags),
        boot_s=_BOOT_S,
    )
    with machine as container:
        yield Booted(container, said)


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
    maker: Maker, engine: Engine, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Booted]:
    """A machine that should have a driver, laid out as Fedora CoreOS is."""
    folder = tmp_path_factory.mktemp("coreos")
    with (
        _set_up(maker, "fcos", _toml(config), folder) as (tree, said),
        _booted(tree, said, f"--volume={engine.folder}:{ENGINE}") as booted,
    ):
        yield booted


def test_the_unit_has_done_its_work(coreos: Booted) -> None:
    assert coreos.unit(_FIRST_BOOT, "Result") == "success"
    assert coreos.unit(_FIRST_BOOT, "ActiveState") == "active"
    assert coreos("readlink", "/opt").strip() == "var/opt"
    names = set(coreos("ls", "/opt/provision").split())
    environment = coreos.said["environment"]
    assert names == {"bin", "provision.tar", "python", "venv", environment}
    assert coreos("readlink", "/opt/provision/venv").strip() == environment
    assert coreos("readlink", _PROGRAM).strip() == "../venv/bin/provision"
    assert coreos("/opt/provision/venv/bin/python", "-c", "import sys; print(sys.base_prefix)") == (
        "/opt/provision/python\n"
    )
    # The system's own folder is not written to, and still has no Python.
    assert coreos.container("touch", "/usr/x", check=False).returncode != 0
    assert coreos.container("sh", "-c", "command -v python3", check=False).returncode != 0


def test_the_role_would_find_what_it_would_have_made(coreos: Booted, maker: Maker) -> None:
    stamp = "/opt/provision/python/.archive-sha256"
    assert coreos("cat", stamp).strip() == sha256(maker.python.read_bytes()).hexdigest()
    found = json.loads(coreos("/opt/provision/python/bin/python3", "-I", "-c", _DESCRIBE))
    constraints = bundles.constraints_of(maker.wheel)
    inputs = bundles.inputs_digest(maker.wheel, constraints, None, found)
    # The archive that the role would take, and the environment that it would make of it.
    archive = cache_dir() / f"provision/bundles/provision-{inputs[:12]}.tar"
    digest = bundles.contents_digest(bundles.checksums_in(archive))
    assert coreos.said["environment"] == f"venv-{digest[:12]}"


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
    assert (slot["release"], slot["state"]) == (KERNEL, "failed")
    assert slot["digest"]
    assert slot["reason"] in coreos("journalctl", "--no-pager", "-u", "provision-apply")
    vendor = f"/etc/oci-decorator/oci-decorator.d/{_DRIVER}.json"
    assert json.loads(coreos("cat", vendor))


def test_engines_know_the_runtime(coreos: Booted) -> None:
    coreos("/opt/provision/bin/oci-decorator", "check")
    document = json.loads(coreos("cat", "/etc/docker/daemon.json"))
    assert document["runtimes"]["oci-decorator"]["path"] == _RUNTIME
    assert coreos("readlink", _RUNTIME).strip() == "oci-decorator"
    # With a storage of its own, which does not ask for overlays on overlays.
    podman = "podman --root /run/kit/a --runroot /run/kit/b --tmpdir /run/kit/c"
    asked = "--storage-driver vfs --runtime oci-decorator info --format '{{.Host.OCIRuntime.Path}}'"
    assert coreos("sh", "-c", f"{podman} {asked}").strip() == _RUNTIME


def test_systemd_finds_nothing_wrong_with_the_unit(coreos: Booted) -> None:
    done = coreos.container("systemd-analyze", "verify", f"/etc/systemd/system/{_FIRST_BOOT}")
    assert _FIRST_BOOT not in done.output


def test_a_boot_goes_on_where_another_was_cut_short(maker: Maker, tmp_path: Path) -> None:
    with _set_up(maker, "flatcar", "", tmp_path) as (tree, said):
        for left in (
            f"{_STAGED}/tree/opt/provision/python/bin/python3",
            f"{_STAGED}/wheels/half.whl",
            "/opt/provision/python/bin/python3",
            f"/opt/provision/{said['environment']}/bin/provision",
            "/opt/provision/venv.draft",
        ):
            write(tree / left.lstrip("/"), "half")
        with _booted(tree, said) as flatcar:
            assert flatcar.unit(_FIRST_BOOT, "Result") == "success"
            assert flatcar.unit(_FIRST_BOOT, "NRestarts") == "0"
            names = set(flatcar("ls", "/opt/provision").split())
            assert names == {"bin", "provision.tar", "python", "venv", said["environment"]}
            assert flatcar("readlink", "-f", "/opt").strip() == "/opt"
            status = flatcar("sh", "-c", f"{_PROGRAM} status --json || [ $? = 3 ]")
            assert json.loads(status)["state"] == "not-configured"
            podman = flatcar.container("ls", "/etc/containers/containers.conf.d", check=False)
            assert "oci-decorator" not in podman.stdout


def test_a_damaged_file_is_refused(maker: Maker, tmp_path: Path) -> None:
    output = tmp_path / "served"
    output.mkdir()
    with served(output) as url, coreos_tree("flatcar", tmp_path) as tree:
        said = maker.make("flatcar", "", url, output)
        (hook,) = [file["name"] for file in said["files"] if file["name"].startswith("oci-")]
        (output / hook).write_bytes(b"something else")
        done = ignite(output / "config.ign", tree, check=False)
        assert done.returncode != 0
        assert "hash verification failed" in done.output
