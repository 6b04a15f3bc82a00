"""Modules built in kernel trees: a kernel's source, what its build left, an image that has it.

The kernel is one that the kit compiled from source, with a configuration of its own; its
Module.symvers says which CRCs a module has to hold. Compiling it takes two processors some six
minutes, so what needs it is a nightly test; unit/build/test_trees.py has the decisions.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kit.debian import mirror, security_mirror
from kit.engine import Engine
from kit.files import write, write_all
from kit.fileserver import served
from kit.gpt import partitioned_disk
from kit.kernel_tree import BuiltKernel, built_kernels, kernel_source, make_compiler_image
from kit.openpgp import key_of
from kit.probe import need
from kit.process import run
from kit.product import BUILD_NETWORK, Provision, have_base
from kit.two_part_driver import DUO, duo_catalogue
from provision.host.boot import pack_from_slot

# All of them together.
_LONG = pytest.mark.minutes(12)

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_CONFIG = """\
[distros.debian.archive]
mirror = "{mirror}"
security_mirror = "{security}"
"""
_PREPARED = """
[[trees]]
kernels = "*-flatcar"
kind = "prepared"
path = "/usr/lib/modules/{kernel}/build"
toolchain = "debian:12"
"""
_SOURCE = """
[[trees]]
kernels = "*-flatcar"
path = "/srv/linux.tar.xz"
config = "/srv/config"
symvers = "/srv/Module.symvers"
"""


@pytest.fixture(scope="module")
def kernel() -> BuiltKernel:
    return built_kernels()[0]


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Path]:
    with duo_catalogue(tmp_path / "duo") as folder:
        yield folder


@pytest.fixture
def bare_host(tmp_path: Path) -> Path:
    """A root in Flatcar's layout, without a kernel."""
    root = tmp_path / "host"
    (root / "etc/provision").mkdir(parents=True)
    (root / "srv").mkdir()
    (root / "usr/lib/modules").mkdir(parents=True)
    (root / "usr/lib/os-release").write_text("ID=flatcar\nVERSION_ID=3227.2.4\n")
    (root / "usr/share/keyrings").mkdir(parents=True)
    shutil.copy(_KEYRING, root / "usr/share/keyrings")
    return root


@pytest.fixture
def host(bare_host: Path, kernel: BuiltKernel) -> Path:
    """The same with the kernel's modules and the tree that its build left."""
    shutil.copytree(kernel.modules, bare_host / "usr/lib/modules" / kernel.release, symlinks=True)
    return bare_host


@pytest.fixture(scope="module")
def compiler_image(engine: Engine) -> str:
    return make_compiler_image(engine)


def _configure(host: Path, text: str) -> None:
    archive = _CONFIG.format(mirror=mirror(), security=security_mirror())
    (host / "etc/provision/provision.toml").write_text(archive + text)


def _target(host: Path, drivers: Path, kernel: BuiltKernel) -> tuple[str | Path, ...]:
    words = ("--root", host, "--kernel", kernel.release, "--catalogue", drivers)
    return (DUO, "--version", "1.0", *words)


def _module(engine: Engine, image: str, kernel: BuiltKernel, folder: Path) -> Path:
    path = f"/opt/lib/modules/{kernel.release}/duo.ko"
    return engine.copy_out(image, path, folder / "duo.ko")


def _assert_fits(module: Path, kernel: BuiltKernel) -> None:
    """The module is for the kernel: its vermagic, and the CRC of each symbol that it takes."""
    vermagic = run(["/sbin/modinfo", "-F", "vermagic", module]).stdout.split()
    assert vermagic[0] == kernel.release
    assert "modversions" in vermagic
    dumped = run(["/sbin/modprobe", "--dump-modversions", module]).stdout.splitlines()
    crcs = {name: crc for crc, name in (line.split() for line in dumped)}
    assert {"misc_register", "simple_read_from_buffer", "module_layout"} <= crcs.keys()
    known = kernel.symvers
    assert crcs == {name: known[name] for name in crcs}


@pytest.mark.nightly
@_LONG
def test_what_the_kernels_build_left_on_the_host_is_enough(
    provision: Provision, engine: Engine, host: Path, drivers: Path, kernel: BuiltKernel
) -> None:
    _configure(host, _PREPARED)
    built = provision.build(*_target(host, drivers, kernel))
    assert built["built"]
    _assert_fits(_module(engine, built["image"], kernel, host / "srv"), kernel)
    again = provision.build(*_target(host, drivers, kernel))
    assert (again["built"], again["digest"]) == (False, built["digest"])
    # Another folder with the same content, at another time.
    moved = host / "usr/lib/modules" / kernel.release / "build"
    shutil.copytree(moved, host / "srv/build", symlinks=True)
    shutil.rmtree(moved)
    _configure(host, _PREPARED.replace("/usr/lib/modules/{kernel}", "/srv"))
    assert provision.json("resolve", *_target(host, drivers, kernel))["digest"] == built["digest"]


@pytest.mark.nightly
@_LONG
def test_a_base_image_can_have_everything(
    provision: Provision,
    engine: Engine,
    host: Path,
    drivers: Path,
    kernel: BuiltKernel,
    compiler_image: str,
) -> None:
    _configure(host, f'[distros.flatcar]\nbase_images = {{ "3227.2.4" = "{compiler_image}" }}\n')
    built = provision.build(*_target(host, drivers, kernel))
    _assert_fits(_module(engine, built["image"], kernel, host / "srv"), kernel)
    pin = provision.json("resolve", *_target(host, drivers, kernel))
    assert (pin["compiler"], pin["packages"]) == (None, [])
    assert pin["tree"]["toolchain"] is None


@pytest.mark.nightly
@_LONG
def test_cos_is_built_with_the_files_of_its_build(
    provision: Provision,
    engine: Engine,
    host: Path,
    drivers: Path,
    kernel: BuiltKernel,
    compiler_image: str,
    tmp_path: Path,
) -> None:
    files = _cos_files(tmp_path / "cos", kernel)
    (host / "usr/lib/os-release").write_text("ID=cos\nVERSION_ID=117\nBUILD_ID=18613.164.68\n")
    with served(files) as url:
        base = f'[distros.debian]\nbase_images = {{ "12" = "{compiler_image}" }}\n'
        mirror = f'[distros.cos.archive]\nmirror = "{url}"\n'
        _configure(host, f"{mirror}{base}")
        _status, error = provision.failure("resolve", *_target(host, drivers, kernel))
        assert "without HTTPS" in error["message"]
        sums = ", ".join(
            f'"18613.164.68/{path.name}" = "{sha256(path.read_bytes()).hexdigest()}"'
            for path in (files / "18613.164.68").iterdir()
        )
        _configure(host, f"{mirror}sha256 = {{ {sums} }}\n{base}")
        built = provision.build(*_target(host, drivers, kernel))
        _assert_fits(_module(engine, built["image"], kernel, host / "srv"), kernel)
        (files / "18613.164.68/kernel-headers.tgz").write_bytes(b"something else")
        # What was downloaded of a build stays, and no mirror can put another file in its place.
        for more in ((), ("--refresh",)):
            again = provision.json("resolve", *_target(host, drivers, kernel), *more)
            assert again["digest"] == built["digest"]


def _cos_files(folder: Path, kernel: BuiltKernel) -> Path:
    """The files of a build of COS: headers deep in an archive, a compiler with a target's name."""
    build = folder / "18613.164.68"
    tree = folder / "headers/usr/src" / f"linux-headers-{kernel.release}"
    for path in (build, tree.parent):
        path.mkdir(parents=True)
    shutil.copytree(kernel.modules / "build", tree, symlinks=True)
    compiler = folder / "compiler/bin/x86_64-cros-linux-gnu-gcc"
    write(compiler, '#!/bin/sh\nexec /usr/bin/gcc "$@"\n', 0o755)
    run(["tar", "-czf", build / "kernel-headers.tgz", "-C", folder / "headers", "usr"])
    run(["tar", "-cJf", build / "toolchain.tar.xz", "-C", folder / "compiler", "bin"])
    shutil.rmtree(folder / "headers")
    shutil.rmtree(folder / "compiler")
    return folder


@pytest.mark.nightly
@_LONG
def test_a_source_with_config_and_symvers_is_enough(
    provision: Provision, engine: Engine, host: Path, drivers: Path, kernel: BuiltKernel
) -> None:
    _source(host, kernel)
    _configure(host, _SOURCE)
    built = provision.build(*_target(host, drivers, kernel))
    from_source = _module(engine, built["image"], kernel, host / "srv")
    _assert_fits(from_source, kernel)
    # A second driver of the kernel takes the tree that is prepared.
    again = provision.build(*_target(host, drivers, kernel), "--version", "2.0")
    assert again["built"]
    assert not [step for step in again["steps"] if "prepare_tree" in step["instruction"]]


@pytest.mark.nightly
@_LONG
def test_each_option_that_drifts_is_named(
    provision: Provision, host: Path, drivers: Path, kernel: BuiltKernel
) -> None:
    _source(host, kernel)
    with (host / "srv/config").open("a") as config:
        config.write("CONFIG_OF_A_VENDOR_PATCH=y\nCONFIG_IKHEADERS=m\n")
    _configure(host, _SOURCE)
    _status, error = provision.failure("build", *_target(host, drivers, kernel), *BUILD_NETWORK)
    assert "configuration drifted" in error["message"]
    assert "CONFIG_OF_A_VENDOR_PATCH: the kernel has y, this tree gives n" in error["details"]


def _source(host: Path, kernel: BuiltKernel) -> None:
    shutil.copy(kernel_source(), host / "srv/linux.tar.xz")
    for name in ("config", "Module.symvers"):
        shutil.copy(kernel.folder / name, host / "srv")


@pytest.fixture
def developer_container(tmp_path: Path) -> Path:
    """A release of Flatcar: a developer container with nearly nothing in it, and its signature.

    The key lies beside it.
    """
    folder = tmp_path / "flatcar"
    release, root = folder / "9999.0.0", folder / "root"
    for path in (release, root / "usr/share", root / "etc"):
        path.mkdir(parents=True)
    (root / "usr/share/hello").write_text("from the developer container\n")
    (root / "etc/link").symlink_to("../usr/share/hello")
    disk = folder / "disk"
    partitioned_disk(disk, [("EFI-SYSTEM", 1, None), ("ROOT", 8, root)])
    run(["bzip2", "--keep", disk])
    packed = release / "flatcar_developer_container.bin.bz2"
    (folder / "disk.bz2").rename(packed)
    key_of("Flatcar").sign_file(packed)
    shutil.copy(key_of("Flatcar").armoured, folder / "key.asc")
    return folder


def test_flatcars_developer_container_becomes_an_image(
    provision: Provision, engine: Engine, bare_host: Path, developer_container: Path
) -> None:
    def make(key: Path, url: str) -> dict[str, Any]:
        shutil.copy(key, bare_host / "etc/provision/key.asc")
        _configure(
            bare_host,
            f'[distros.flatcar.archive]\nmirror = "{url}"\nkeyring = "/etc/provision/key.asc"\n',
        )
        return have_base(provision, "flatcar:9999.0.0", root=bare_host)

    with served(developer_container) as url:
        made = make(developer_container / "key.asc", url)
        assert made.get("made"), made
        assert made["image"] == "flatcar-developer:9999.0.0"
        assert make(developer_container / "key.asc", url)["made"] is False
        hello = engine.copy_out(made["image"], "/usr/share/hello", bare_host / "srv/hello")
        assert hello.read_text() == "from the developer container\n"
        engine.docker("rmi", made["image"])
        packed = developer_container / "9999.0.0/flatcar_developer_container.bin.bz2"
        packed.write_bytes(packed.read_bytes() + b"altered")
        said = make(developer_container / "key.asc", url)
        assert "has no valid signature" in said["error"]["message"]


def test_the_other_slots_tree_is_packed_as_the_folder_is(tmp_path: Path) -> None:
    need(Path("/dev/loop-control").exists(), "loop devices", "modprobe loop")
    usr, image, root = tmp_path / "usr", tmp_path / "usr.img", tmp_path / "host"
    inside = "lib/modules/6.6.1-flatcar/build"
    files = {"./.config", "./Module.symvers", "./scripts/mod/modpost"}
    write_all(usr / inside, {name: name for name in files})
    run(["/sbin/mke2fs", "-q", "-t", "ext4", "-d", usr, image, "8M"])
    (root / "dev/disk/by-partlabel").mkdir(parents=True)
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text("BOOT_IMAGE=/flatcar/vmlinuz-a\n")
    device = run(["/sbin/losetup", "--find", "--show", image]).stdout.strip()
    try:
        (root / "dev/disk/by-partlabel/USR-B").symlink_to(device)
        packed, absent = tmp_path / "tree.tar", tmp_path / "absent.tar"
        state = pack_from_slot(root, inside, packed, ["--sort=name"])
        assert state
        # Nothing has changed: nothing is packed.
        again = tmp_path / "again.tar"
        assert pack_from_slot(root, inside, again, ["--sort=name"], known=state) == state
        assert not again.exists()
        assert not pack_from_slot(root, "lib/modules/9.9/build", absent, ["--sort=name"])
    finally:
        run(["/sbin/losetup", "--detach", device])
    listed = run(["tar", "-tf", packed]).stdout.splitlines()
    assert files <= set(listed)
    assert "provision-usr-" not in Path("/proc/mounts").read_text()
