"""An engine a process, and which tests share a process, in which order they start.

A file's tests stay in one process, as they share hosts and guests. What takes longest begins first,
so that no process is left alone with it at the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from kit.engine import Engine
from kit.kernels import kernels, replaced
from kit.probe import is_root, need, need_programs
from kit.product import DECORATOR, DISTRO, RUNTIME, Provision, load_base, make_wheel
from kit.registry import free_port
from kit.shared import shared_file, shared_folder
from kit.toolchains import load_toolchains

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xdist.remote import Producer

# A slow machine is no failure of a property.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# Files that share something costly, and so a process: `pytest --numprocesses` runs each of these in
# one, and other files on their own.
_TOGETHER = {
    "tests/engine/test_nvidia.py": "nvidia",
    "tests/engine/test_nvidia_agent.py": "nvidia",
    "tests/engine/test_tutorials.py": "nvidia",
    "tests/vm/test_container_hosts.py": "loaded guest",
    "tests/vm/test_loaded_module.py": "loaded guest",
    "tests/vm/test_kmm.py": "bare guest",
    "tests/vm/test_sysext.py": "bare guest",
}
# What builds for packaged kernels.
_ON_KERNELS = ("tests/engine/", "tests/hosts/", "tests/vm/")
# Files that take minutes, the longest first; all others follow.
_LONGEST = [
    "tests/vm/test_power_cut.py",
    "tests/engine/test_nvidia.py",
    "tests/vm/test_modules.py",
    "tests/vm/test_container_hosts.py",
    "tests/vm/test_loaded_module.py",
    "tests/vm/test_units.py",
    "tests/vm/test_driver_versions.py",
    "tests/vm/test_kmm.py",
    "tests/vm/test_sysext.py",
    "tests/vm/test_secure_boot.py",
    "tests/engine/test_runfile.py",
    "tests/engine/test_rpm_distros.py",
    "tests/engine/test_clean_clone.py",
    "tests/engine/test_matrix.py",
    "tests/engine/test_dkms.py",
    "tests/engine/test_agent.py",
    "tests/engine/test_interrupted.py",
    "tests/hosts/test_debian.py",
    "tests/hosts/test_ignition.py",
    "tests/hosts/test_coreos_site.py",
    "tests/hosts/test_trouble.py",
    "tests/hosts/test_offline.py",
    "tests/hosts/test_packed.py",
    "tests/hosts/test_sanity.py",
]


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no type hints
    """Gives each process whole files, or whole groups of them, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return _TOGETHER.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Take ours, whatever `--dist` says."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    ranks = {file: rank for rank, file in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.split("::", 1)[0], len(ranks)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where kernels are not those that are pinned."""
    ran = [
        report.nodeid
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    if any(nodeid.startswith(_ON_KERNELS) for nodeid in ran) and (said := replaced()):
        terminalreporter.write_line(said, yellow=True)


@pytest.fixture(scope="session")
def shim_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that OCI_DECORATOR_CONFIG names in both engines; `host` writes it."""
    return tmp_path_factory.mktemp("shim") / "config.toml"


@pytest.fixture(scope="session")
def engine(shim_config: Path) -> Iterator[Engine]:
    """A private Docker engine with the base image of DISTRO and our runtime.

    It builds for hosts and guests too: what one test has built, another needn't.
    """
    need(is_root(), "root", "run as root: engines and debootstrap want it")
    need_programs("dockerd", "containerd", "docker", "runc", "debootstrap")
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    runtimes = {"oci-decorator": RUNTIME}
    with Engine(runtimes=runtimes, environment=environment, port=free_port()) as engine:
        load_base(engine)
        load_toolchains(engine)
        yield engine


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provision as it is now: a checkout may change while hosts are looked at."""
    return shared_file(tmp_path_factory, "wheel", make_wheel)


@pytest.fixture(scope="session")
def first_small_build(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `provision build` says about the small driver on OLD_KERNEL.

    One process builds it; the others load its image from ``archive``, as a test that removes it
    from an engine does afterwards.
    """
    with shared_folder(tmp_path_factory, "small-build") as shared:
        said, archive = shared / "said.json", shared / "image.tar"
        if said.exists():
            engine.docker("load", "--quiet", "--input", archive)
        else:
            built = _build_small(engine)
            engine.docker("save", "--output", archive, built["image"])
            said.write_text(json.dumps(built))
    built_there: dict[str, Any] = json.loads(said.read_text())
    return built_there | {"archive": str(archive)}


@pytest.fixture
def small_build(engine: Engine, first_small_build: dict[str, Any]) -> dict[str, Any]:
    """The same as of now: the archive's index may change in a run, and the Pin with it."""
    built = _build_small(engine)
    if built["built"]:
        engine.docker("save", "--output", first_small_build["archive"], built["image"])
    return first_small_build | built


def _build_small(engine: Engine) -> dict[str, Any]:
    target = ("v4l2loopback", "--kernel", kernels()[0], "--distro", DISTRO)
    return Provision(engine.host).build(*target)
