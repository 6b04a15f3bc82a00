"""What guests are given: the product, and the engine that builds for them at native speed.

Guests of EL have a mirror too, and two drivers of which one is broken for the newer kernel.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from kit.cache import cache_dir, shared_file
from kit.demanding_driver import lab_catalogue
from kit.el_kernels import ElHost, el_host
from kit.engine import Engine
from kit.files import write
from kit.fileserver import served
from kit.guest import DEBIAN_12, Recipe, guest_of
from kit.guest.tree import RUNTIME, VENV
from kit.hosts import NEW_KERNEL
from kit.probe import is_root, need, need_programs
from kit.process import run
from kit.product import DECORATOR
from kit.released import EARLIER, earlier, make_debian_packages
from kit.two_part_driver import DUO, DUO_CHECK, duo_catalogue
from screencast import Recording
from vm.managed import CONFLICT, LIST_OURS, METRICS, ManagedGuest, put_packages
from vm.next_kernel import next_kernel_catalogue

_PROGRAM = f"""\
#!{VENV}/bin/python
from provision.cli import main
main()
"""


def _pack_product(recipe: Recipe, wheel: Path, folder: Path) -> Path:
    """Pack the product as it lies in a guest of `recipe`, below its root; in a fresh folder."""
    installed = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    run([*pip, "--python-version", recipe.python, "--target", installed, wheel])
    root = folder / "root"
    packages = root / VENV[1:] / f"lib/python{recipe.python}/site-packages"
    packages.mkdir(parents=True)
    shutil.move(installed / "provision", packages)
    shutil.move(installed / "share", root / VENV[1:])
    if recipe.python == ".".join(map(str, sys.version_info[:2])):
        # Compiling in emulation takes long, and only this Python can do it for the guest's.
        mode = ["-q", "--invalidation-mode", "unchecked-hash"]
        run([sys.executable, "-m", "compileall", *mode, packages])
    write(root / "usr/local/bin/provision", _PROGRAM, 0o755)
    (root / "usr/bin").mkdir()
    shutil.copy2(DECORATOR, root / "usr/bin")
    (root / RUNTIME[1:]).symlink_to(f"/usr/bin/{DECORATOR.name}")
    archive = folder / "product.tar"
    run(["tar", "--owner=0", "--group=0", "-C", root, "-cf", archive, "."])
    return archive


# What QEMU's user network calls this machine's loopback address:
# https://www.qemu.org/docs/master/system/devices/net.html#using-the-user-mode-network-stack
HOST = "10.0.2.2"
# What another guest's tests want to find, and an admin has not.
_UNUSUAL = "/opt/provision /etc/docker/daemon.json /etc/containers/containers.conf.d/kit.conf"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """After a stage that failed, keep its guest for a maintainer to look at."""
    report = yield
    if report.failed and report.when == "call" and item.get_closest_marker("stages"):
        host = next((one for one in item.funcargs.values() if isinstance(one, ManagedGuest)), None)
        if host is not None:
            # In place of what the last failure of this file has left.
            folder = cache_dir() / f"kept-{item.path.stem}"
            report.sections.append(("the guest", host.guest.keep(folder)))
    return report


@pytest.fixture(scope="session", autouse=True)
def _able() -> None:
    need(is_root(), "root", "run as root: engines and debootstrap want it")
    need_programs("qemu-system-x86_64")


@pytest.fixture(scope="session")
def engine_address(engine: Engine) -> str:
    """The engine's address as a guest has to name it."""
    return f"tcp://{HOST}:{engine.port}"


@pytest.fixture(scope="session")
def product(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Recipe], Path]:
    """The product for guests of a recipe, packed once each."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")

    def packed(recipe: Recipe) -> Path:
        return shared_file(
            tmp_path_factory,
            f"product-{recipe.name}",
            lambda folder: _pack_product(recipe, wheel, folder),
        )

    return packed


@pytest.fixture(scope="session")
def bookworm_product(product: Callable[[Recipe], Path]) -> Path:
    """The product for a Debian 12 guest."""
    return product(DEBIAN_12)


@pytest.fixture(scope="session")
def duo_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue with the driver `duo`, whose source is served for guests."""
    with duo_catalogue(tmp_path_factory.mktemp("duo"), host=HOST) as folder:
        yield folder


@pytest.fixture(scope="session")
def el() -> ElHost:
    """What hosts of the EL stand-in are made from, and install from."""
    need_programs("createrepo_c", "depmod", "dnf", "gpg", "rpmbuild", "rpmsign", "zypper")
    return el_host()


@pytest.fixture(scope="session")
def el_mirror(el: ElHost) -> Iterator[str]:
    """The address of its mirror, as this machine has to name it; guests name another host."""
    with served(el.mirror()) as url:
        yield url


@pytest.fixture(scope="module")
def el_drivers(el: ElHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue of two drivers, for a scenario to repair the one that is broken."""
    folder = tmp_path_factory.mktemp("el-drivers")
    with next_kernel_catalogue(folder, since=el.newer_number, host=HOST) as drivers:
        yield drivers


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue with `duo`, and with `lab`, which conflicts with a module of the kernel's own."""
    folder = tmp_path_factory.mktemp("drivers")
    with (
        duo_catalogue(folder, host=HOST, refused_by=NEW_KERNEL) as drivers,
        lab_catalogue(folder, host=HOST, conflicts=[CONFLICT]),
    ):
        with (drivers / DUO / "driver.toml").open("a") as recipe:
            recipe.write(DUO_CHECK)
        yield drivers


@pytest.fixture(scope="module")
def host(
    engine_address: str,
    catalogue: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[ManagedGuest]:
    """A Debian with engines, packages of two releases in /root, and nothing of ours installed."""
    packages = make_debian_packages(tmp_path_factory.mktemp("packages"))
    older = tmp_path_factory.mktemp("older")
    with guest_of(DEBIAN_12) as guest:
        guest(f"rm -r {_UNUSUAL}; mkdir -p {METRICS}; systemctl try-reload-or-restart docker")
        guest(f"mkdir /root/{EARLIER}; {LIST_OURS} >/root/before")
        put_packages(guest, packages, DEBIAN_12)
        for package in packages:
            guest.put(earlier(package, older), f"/root/{EARLIER}/{package.name}")
        host = ManagedGuest(guest, engine_address, Recording(pytestconfig.option.record))
        host.put_catalogue(catalogue)
        yield host
