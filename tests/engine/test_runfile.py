"""NVIDIA's driver from its .run: never run, and built on a distro that has no such packages.

The file is in NVIDIA's layout and holds the real driver of Debian's packages. The
distro is a stand-in made from Debian's packages (`kit.rpm_sites`). Compiling the real driver takes
minutes and is nightly; a small file in the same layout is built with each change.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.cache import REPOSITORY, cached
from kit.engine import Engine
from kit.fileserver import Mirror, served
from kit.hosts import DISTRO, NEW_KERNEL
from kit.podman import Podman
from kit.probe import need_programs
from kit.process import run
from kit.product import Provision, driver_modules
from kit.rpm_distros import RpmDistro, rocky_9
from kit.rpm_sites import site_of
from kit.runfile import manifest, write_runfile

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]

_ROCKY = "rockylinux/rockylinux:9"
_MODULES = ["nvidia", "nvidia-drm", "nvidia-modeset", "nvidia-peermem", "nvidia-uvm"]
# What of Debian's packages is what in NVIDIA's list: MODULE by the beginning of a name.
_NAMES = (
    ("libcuda", "gpgpu", "CUDA_LIB"),
    ("libnvidia-ml", "nvml", "UTILITY_LIB"),
    ("libnvidia-cfg", "installer", "UTILITY_LIB"),
    ("libnvidia-opencl", "gpgpu", "OPENCL_LIB"),
    ("libnvcuvid", "nvcuvid", "NVCUVID_LIB"),
    ("libnvidia-encode", "encodeapi", "ENCODEAPI_LIB"),
    ("libnvidia-opticalflow", "opticalflow", "CUDA_LIB"),
    ("libnvidia-", "gpgpu", "CUDA_LIB"),
)
_HELLO = """\
#include <linux/module.h>
static int __init hello_init(void) { return 0; }
static void __exit hello_exit(void) { }
module_init(hello_init);
module_exit(hello_exit);
MODULE_LICENSE("GPL");
"""
_RECIPE = """\
schema = 1
name = "hello"
summary = "A driver that exists in tests only"
vendor = "Example"
homepage = "https://example.org"
[source]
kind = "runfile"
url = "{url}/hello-{{version}}.run"
files = []
releases = [{{ version = "1.2", sha256 = "{sha256}" }}]
[[kernels]]
works = ">=5"
[flavours.open]
licences = ["GPL-2.0-only"]
[flavours.open.build]
directory = "kernel-open"
command = ["make", "-j{{jobs}}", "-C", "{{kernel_build}}", "M={{source}}/kernel-open", "modules"]
modules = ["hello.ko"]
[container]
activation_flag = "OCI_HELLO"
driver_feature = ["utility"]
[container.features.utility]
"""


def _debian_runfile(provision: Provision) -> tuple[Path, str]:
    """The driver of Debian's packages as a file of NVIDIA's, and its version; from the cache.

    With the open modules' source and their prebuilt objects, and the libraries and programs.
    """
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    pin = provision.json("resolve", *target)
    version = pin["driver"]["version"]

    def make(draft: Path) -> None:
        work = draft.with_suffix(".work")
        shutil.rmtree(work, ignore_errors=True)
        context, tree = work / "context", work / "tree"
        provision("build", *target, "--render", context)
        for source in pin["sources"]:
            run(["dpkg-deb", "--extract", context / "sources" / source["sha256"], tree])
        packed = tree / "usr/src/nvidia-open-kernel.tar.xz"
        run(["tar", "--extract", "--xz", "--file", packed, "--directory", tree])
        files = _members(tree, version)
        # Half of the size is debug information of the prebuilt objects.
        for name in files:
            if name.endswith(".o_binary"):
                run(["strip", "--strip-debug", files[name]])
        listed = manifest(version, _rows(files))
        (work / ".manifest").write_text(listed)
        write_runfile(draft, version, {".manifest": work / ".manifest", **files})
        shutil.rmtree(work)

    return cached(f"NVIDIA-Linux-x86_64-{version}.run", make), version


def _members(tree: Path, version: str) -> dict[str, Path]:
    source = tree / "modules/nvidia-open-kernel"
    files = {
        f"kernel-open/{path.relative_to(source)}": path
        for path in sorted(source.rglob("*"))
        if path.is_file()
    }
    libraries = sorted(tree.rglob(f"lib*.so.{version}"))
    files |= {path.name: path for path in libraries if not path.is_symlink()}
    for name in ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-modprobe", "nvidia-persistenced"):
        found = [path for path in sorted(tree.rglob(name)) if _is_program(path)]
        files |= dict.fromkeys([name], found[0]) if found else {}
    files |= {f"firmware/{path.name}": path for path in sorted(tree.rglob("gsp_*.bin"))}
    (icd,) = tree.rglob("OpenCL/vendors/nvidia.icd")
    return files | {"nvidia.icd": icd}


def _is_program(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"


def _rows(files: Mapping[str, Path]) -> Iterable[str]:
    for name in files:
        if name.startswith("kernel-open/"):
            yield f"{name} 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman"
        elif name.startswith("firmware/"):
            yield f"{name} 0644 FIRMWARE INHERIT_PATH_DEPTH:1 MODULE:gsp"
        elif name == "nvidia.icd":
            yield f"{name} 0644 CUDA_ICD MODULE:gpgpu"
        elif name.startswith("lib"):
            module, kind = next((m, k) for start, m, k in _NAMES if name.startswith(start))
            plain = name.partition(".so.")[0]
            symlink = kind if kind != "CUDA_LIB" else "CUDA"
            yield f"{name} 0755 {kind} NATIVE / MODULE:{module}"
            yield f"{plain}.so.1 0000 {symlink}_SYMLINK NATIVE / {name} MODULE:{module}"
            yield f"{plain}.so 0000 {symlink}_SYMLINK NATIVE / {plain}.so.1 MODULE:{module}"
        else:
            yield f"{name} 0755 UTILITY_BINARY MODULE:nvml"


@dataclass(frozen=True, slots=True)
class _Stand:
    """A catalogue with NVIDIA's shipped recipe, whose .run is on a server of its own."""

    catalogue: Path
    vendor: Mirror
    version: str
    run: Path


@pytest.fixture(scope="module")
def stand(provision: Provision, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Stand]:
    """The shipped recipe with other addresses, and without Debian's packages."""
    file, version = _debian_runfile(provision)
    folder = tmp_path_factory.mktemp("vendor")
    name = f"NVIDIA-Linux-x86_64-{version}.run"
    (folder / name).symlink_to(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / f"{name}.sha256sum").write_text(f"{digest}  {name}\n")
    vendor = Mirror(folder)
    with vendor.serving() as url:
        driver = tmp_path_factory.mktemp("catalogue") / "nvidia"
        shutil.copytree(REPOSITORY / "driver_images/nvidia", driver)
        recipe = driver / "driver.toml"
        text, count = re.subn(r"https://us\.download\S+/", f"{url}/", recipe.read_text())
        assert count == 2
        recipe.write_text(text.replace('versions = "<560"', 'versions = "<1"'))
        yield _Stand(driver.parent, vendor, version, file)


@dataclass(frozen=True, slots=True)
class _Built:
    """What was built for a distro, and on which machine."""

    machine: Provision
    said: dict[str, Any]
    manifest: dict[str, Any]
    files: Path
    root: Path
    kernel: str


def _machine(root: Path, distro: RpmDistro, docker_host: str) -> Provision:
    """A machine that has built nothing yet."""
    (root / "etc/provision").mkdir(parents=True)
    (root / "etc/os-release").write_text(distro.os_release)
    (root / "etc/provision/provision.toml").write_text('[engine]\nnetwork = "host"\n')
    return Provision(docker_host, {"XDG_CACHE_HOME": str(root / "cache")})


@pytest.fixture(scope="module")
def on_rocky(
    stand: _Stand, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Built]:
    """The driver for a kernel of Rocky Linux, solved and built once."""
    need_programs("createrepo_c", "dnf", "rpmbuild", "rpmsign", "gpg", "modinfo")
    site = site_of(rocky_9())
    kernel = site.distro.headers.kernel
    root = tmp_path_factory.mktemp("rocky") / "root"
    machine = _machine(root, site.distro, engine.host)
    mirror = Mirror(site.mirror())
    with mirror.serving() as url:
        site.load(engine, _ROCKY, url)
        target = ("nvidia", "--kernel", kernel, "--distro", site.distro.name)
        words = (*target, "--catalogue", stand.catalogue, "--root", root, "--version", "535")
        said = machine.json("build", *words)
        files = engine.copy_out(said["image"], "/opt/.", tmp_path_factory.mktemp("rocky-files"))
        manifest = json.loads((files / "driver/manifest.json").read_text())
        yield _Built(machine, said, manifest, files, root, kernel)


def test_real_modules_come_of_it_on_a_distro_without_such_packages(on_rocky: _Built) -> None:
    modules = {path.name.removesuffix(".ko"): path for path in driver_modules(on_rocky.files)}
    assert sorted(modules) == _MODULES
    for path in modules.values():
        vermagic = run(["modinfo", "-F", "vermagic", path]).stdout.split()
        assert vermagic[0] == on_rocky.kernel


def test_the_vendors_own_sum_is_kept_and_pinned(stand: _Stand, on_rocky: _Built) -> None:
    (source,) = on_rocky.manifest["pin"]["sources"]
    digest = hashlib.sha256(stand.run.read_bytes()).hexdigest()
    assert (source["kind"], source["version"]) == ("runfile", stand.version)
    assert source["sha256"] == digest
    (record,) = on_rocky.root.rglob(".known-sums.json")
    (known,) = json.loads(record.read_text())["sums"].values()
    assert known["sha256"] == digest


def test_files_have_their_features_from_the_list_in_the_file(on_rocky: _Built) -> None:
    version = on_rocky.manifest["pin"]["driver"]["version"]
    rows = {row["path"]: row for row in on_rocky.manifest["files"]}
    cuda = rows[f"/usr/lib64/nvidia/libcuda.so.{version}"]
    assert (cuda["features"], cuda["soname"]) == (["compute", "video"], "libcuda.so.1")
    assert rows["/usr/lib64/nvidia/libcuda.so.1"]["link"] == f"libcuda.so.{version}"
    assert rows[f"/usr/lib64/nvidia/libnvidia-ml.so.{version}"]["features"] == ["utility"]
    assert rows["/usr/bin/nvidia-smi"]["features"] == ["utility"]
    assert rows["/usr/bin/nvidia-modprobe"]["features"] == []
    assert [row["path"] for row in rows.values() if row["kind"] == "firmware"]


def test_the_artifact_is_what_its_manifest_says(on_rocky: _Built, tmp_path: Path) -> None:
    on_rocky.machine("verify", on_rocky.said["image"])
    root = tmp_path / "host"
    root.mkdir()
    on_rocky.machine("install", on_rocky.said["image"], "--root", root)
    (vendor,) = root.glob("etc/oci-decorator/oci-decorator.d/nvidia.json")
    inventory = json.loads(vendor.read_text())["inventory"]
    assert {"compute", "utility", "video", "graphics"} <= set(inventory)
    assert any("libcuda.so.1" in path for path in inventory["compute"]["libraries"])


def test_debian_builds_it_too_and_shares_the_layer_of_user_space(
    stand: _Stand, on_rocky: _Built, provision: Provision, engine: Engine, tmp_path: Path
) -> None:
    target = ("nvidia", "--kernel", NEW_KERNEL, "--distro", DISTRO, "--version", "535")
    said = provision.json("build", *target, "--catalogue", stand.catalogue)
    files = engine.copy_out(said["image"], "/opt/.", tmp_path / "files")
    assert sorted(path.stem for path in driver_modules(files)) == _MODULES
    layers = [
        json.loads(engine.docker("image", "inspect", image).stdout)[0]["RootFS"]["Layers"]
        for image in (said["image"], on_rocky.said["image"])
    ]
    assert layers[0][0] == layers[1][0]
    assert layers[0][1:] != layers[1][1:]


def _hello(folder: Path) -> Path:
    """A small file in the same layout: a module that does nothing, and a program."""
    rows = (
        "kernel-open/hello.c 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman",
        "kernel-open/Makefile 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman",
        "hello-smi 0755 UTILITY_BINARY MODULE:nvml",
    )
    files: dict[str, bytes | Path] = {
        ".manifest": manifest("1.2", rows).encode(),
        "kernel-open/hello.c": _HELLO.encode(),
        "kernel-open/Makefile": b"obj-m := hello.o\n",
        "hello-smi": b"#!/bin/sh\n",
    }
    return write_runfile(folder / "hello-1.2.run", "1.2", files, compression="gz")


def test_podman_builds_from_a_small_one_on_a_distro_without_such_packages(
    engine: Engine, podman: Podman, tmp_path: Path
) -> None:
    site = site_of(rocky_9())
    archive = tmp_path / "base.tar"
    run_file = _hello(tmp_path / "vendor")
    catalogue = tmp_path / "catalogue"
    (catalogue / "hello").mkdir(parents=True)
    digest = hashlib.sha256(run_file.read_bytes()).hexdigest()
    with Mirror(site.mirror()).serving() as url, served(run_file.parent) as vendor:
        site.load(engine, _ROCKY, url)
        engine.docker("save", "--output", archive, _ROCKY)
        podman.load(archive)
        recipe = _RECIPE.format(url=vendor, sha256=digest)
        (catalogue / "hello/driver.toml").write_text(recipe)
        target = ("hello", "--kernel", site.distro.headers.kernel, "--distro", site.distro.name)
        with podman.service() as docker_host:
            machine = _machine(tmp_path / "root", site.distro, docker_host)
            words = (*target, "--catalogue", catalogue, "--root", tmp_path / "root")
            said = machine.json("build", *words)
            with (tmp_path / "root/etc/provision/provision.toml").open("a") as settings:
                settings.write("[drivers.hello]\n")
            machine("install", said["image"], "--root", tmp_path / "root")
    (program,) = (tmp_path / "root").rglob("driver/usr/bin/hello-smi")
    assert program.stat().st_mode & 0o111
    assert list((tmp_path / "root").rglob("hello.ko*")), said
