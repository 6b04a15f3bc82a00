"""Sources with a dkms.conf: Debian's packages, as its own DKMS builds them, and made-up ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from kit.debian import apt_sources
from kit.engine import Engine
from kit.fileserver import served
from kit.hosts import DISTRO, IMAGE, NEW_KERNEL
from kit.process import run
from kit.product import BUILD_NETWORK, Provision, driver_modules
from kit.upstream import write_tarball

_TARGET = ("--kernel", NEW_KERNEL, "--distro", DISTRO)
# Packages of Debian 12.
_PACKAGES = (
    *(
        "acpi-call",
        "bbswitch",
        "ddcci",
        "digimend",
        "dm-writeboost",
        "evdi",
        "iptables-netflow",
        "jool",
    ),
    *("lime-forensics", "r8168", "tp-smapi", "vpoll", "xtables-addons", "zfs"),
)
# What DKMS, and nobody else, makes of a package: what modinfo says of each module, and its code.
_BY_DKMS = """
set -e
trap '[ $? = 0 ] || cat /log /var/lib/dkms/*/*/build/make.log >&2' EXIT
rm -rf /etc/apt/sources.list.d/*
echo '{sources}' >/etc/apt/sources.list
apt-get -qq update
export DEBIAN_FRONTEND=noninteractive
apt-get -qq install --yes --no-install-recommends dkms kmod gcc make {headers} >/log 2>&1
mkdir -p /etc/dkms && touch /etc/dkms/no-autoinstall
apt-get -qq install --yes --no-install-recommends {package} >>/log 2>&1
for conf in $(dpkg -L {package} | grep '^/usr/src/[^/]*/dkms.conf$'); do
    eval "$(grep -E '^PACKAGE_(NAME|VERSION)=' "$conf")"
    dkms build "$PACKAGE_NAME/$PACKAGE_VERSION" -k {kernel} >>/log 2>&1
done
cp /var/lib/dkms/*/*/{kernel}/*/module/*.ko* /out/
"""
_SOURCE = """\
#include <linux/module.h>
MODULE_LICENSE("GPL");
"""
_PATCH = """\
--- a/hello.c
+++ b/hello.c
@@ -1,2 +1,3 @@
 #include <linux/module.h>
+MODULE_VERSION("patched");
 MODULE_LICENSE("GPL");
"""
_CONF = """\
PACKAGE_NAME="Hello"
PACKAGE_VERSION="1.2"
DEST_MODULE_LOCATION[0]="/extra"
"""


def _by_turns(names: Iterable[str]) -> list[ParameterSet]:
    """One scope each: all together take longer than CI has at night."""
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.minutes(10 if name.startswith("zfs") else 2),
                pytest.mark.xdist_group(f"DKMS and {name}"),
            ],
        )
        for name in names
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("package", _by_turns(f"{name}-dkms" for name in _PACKAGES))
def test_a_package_of_debian_becomes_the_modules_that_dkms_builds(
    provision: Provision, engine: Engine, tmp_path: Path, package: str
) -> None:
    made = provision.json("drivers", "import", package, "--output", tmp_path)
    assert made["file"] == str(tmp_path / made["name"] / "driver.toml")
    built = provision.build(made["name"], *_TARGET, "--catalogue", tmp_path)
    assert provision.json("verify", built["image"])["findings"] == []
    provision("install", built["image"], "--root", tmp_path / "host")
    ours = _described(driver_modules(tmp_path / "host"))
    assert ours == _built_by_dkms(engine, package, tmp_path / "dkms")


def _built_by_dkms(engine: Engine, package: str, folder: Path) -> dict[str, list[str]]:
    """What the distro's own DKMS builds of a package for the same kernel."""
    folder.mkdir()
    headers = f"linux-headers-{NEW_KERNEL}"
    sources = apt_sources("bookworm", "main contrib non-free")
    script = _BY_DKMS.format(sources=sources, headers=headers, package=package, kernel=NEW_KERNEL)
    words = ("run", "--rm", "--network", "host", "--volume", f"{folder}:/out", IMAGE)
    engine.docker(*words, "bash", "-c", script)
    for packed in folder.glob("*.xz"):
        run(["unxz", packed])
    return _described(folder.glob("*.ko"))


def _described(modules: Iterable[Path]) -> dict[str, list[str]]:
    """What modinfo says of modules (with the sum of a versioned one's source), and their code."""
    return {path.name: [*_said_of(path), _code_of(path)] for path in modules}


def _said_of(module: Path) -> list[str]:
    lines = run(["modinfo", module]).stdout.splitlines()
    said = sorted(line for line in lines if not line.startswith("filename:"))
    is_versioned = any(line.startswith("version:") for line in said)
    assert any(line.startswith("srcversion:") for line in said) or not is_versioned
    return said


def _code_of(module: Path) -> str:
    """The sum of what the processor runs, before it is linked into a kernel."""
    code = module.with_suffix(".text")
    run(["objcopy", "--output-target=binary", "--only-section=.text", module, code])
    return hashlib.sha256(code.read_bytes()).hexdigest()


def _modules(provision: Provision, image: str, root: Path) -> list[str]:
    """Unpack an artifact and return its modules."""
    provision("install", image, "--root", root)
    return sorted(path.name for path in driver_modules(root))


@pytest.mark.nightly
@pytest.mark.parametrize("driver", _by_turns(["v4l2loopback", "zfs"]))
def test_a_shipped_recipe_builds_what_dkms_builds(
    provision: Provision, engine: Engine, tmp_path: Path, driver: str
) -> None:
    built = provision.build(driver, *_TARGET)
    assert provision.json("verify", built["image"])["findings"] == []
    provision("install", built["image"], "--root", tmp_path / "host")
    ours = _described(driver_modules(tmp_path / "host"))
    assert ours == _built_by_dkms(engine, f"{driver}-dkms", tmp_path / "dkms")


@contextmanager
def _made_up(folder: Path, conf: str, **files: str) -> Iterator[str]:
    """Serve a source with a module and a dkms.conf; yields its address."""
    texts = {"hello.c": _SOURCE, "Makefile": "obj-m := hello.o\n", "dkms.conf": conf}
    more = {name.replace("__", "/"): text for name, text in files.items()}
    tarball = write_tarball(folder / "files", "hello-1.2", {**texts, **more})
    with served(tarball.parent) as url:
        yield f"{url}/{tarball.name}"


def _imported(provision: Provision, url: str, catalogue: Path) -> Mapping[str, Any]:
    return provision.json("drivers", "import", url, "--output", catalogue)


def test_an_archive_becomes_a_recipe_and_all_that_its_dkms_conf_says_is_done(
    provision: Provision, tmp_path: Path
) -> None:
    conf = (
        _CONF
        + """\
BUILT_MODULE_NAME[0]="hello"
BUILT_MODULE_LOCATION[0]="sub/"
DEST_MODULE_NAME[0]="greeting"
BUILT_MODULE_NAME[1]="never"
DEST_MODULE_LOCATION[1]="/extra"
BUILD_EXCLUSIVE_KERNEL_MAX[1]="5.0"
MAKE[0]="make no-such-target"
MAKE[1]="make -C $kernel_source_dir M=$dkms_tree/$PACKAGE_NAME/$PACKAGE_VERSION/build/sub"
MAKE_MATCH[1]="^[6-9]"
PATCH[0]="right.patch"
PATCH[1]="wrong.patch"
PATCH_MATCH[1]="^5"
PRE_BUILD="prepare.sh --with '$kernelver' $module $module_version"
POST_BUILD="after.sh"
"""
    )
    prepare = "#!/bin/sh -e\ntest $3-$4 = Hello-1.2\nmkdir sub\ncp hello.c Makefile sub\n"
    after = "#!/bin/sh -e\ntest -f /var/lib/dkms/Hello/1.2/$kernelver/$arch/module/greeting.ko\n"
    files = {"patches__right.patch": _PATCH, "prepare.sh": prepare, "after.sh": after}
    with _made_up(tmp_path, conf, **files) as url:
        made = _imported(provision, url, tmp_path / "drivers")
        assert made["name"] == "hello"
        words = ("hello", *_TARGET, "--catalogue", tmp_path / "drivers", *BUILD_NETWORK)
        built = provision.build(*words)
    assert _modules(provision, built["image"], tmp_path / "host") == ["greeting.ko"]
    [module] = (tmp_path / "host").rglob("greeting.ko")
    assert b"version=patched" in module.read_bytes()


@pytest.mark.parametrize("compression", ["xz", pytest.param("zstd", marks=pytest.mark.nightly)])
def test_a_vendors_package_becomes_a_recipe_that_builds(
    provision: Provision, tmp_path: Path, compression: str
) -> None:
    """As AMD and others publish their drivers: a .deb with the source below /usr/src."""
    tree = tmp_path / "tree"
    source = tree / "usr/src/hello-1.2"
    source.mkdir(parents=True)
    (source / "hello.c").write_text(_SOURCE)
    (source / "Makefile").write_text("obj-m := hello.o\n")
    (source / "dkms.conf").write_text(_CONF.replace("Hello", "hello"))
    control = ("Package: hello-dkms", "Version: 1.2", "Architecture: all", "Description: x")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text("\n".join((*control, "Maintainer: a <a@b.example>", "")))
    (tmp_path / "files").mkdir()
    made = tmp_path / "files/hello-dkms_1.2_all.deb"
    run(["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", tree, made])
    drivers = tmp_path / "drivers"
    with served(made.parent) as url:
        _imported(provision, f"{url}/{made.name}", drivers)
        if compression == "zstd":
            recipe = drivers / "hello/driver.toml"
            text = recipe.read_text()
            assert 'kind = "dkms"\n' in text
            recipe.write_text(
                text.replace('kind = "dkms"\n', 'kind = "dkms"\npackages = ["zstd"]\n')
            )
        words = ("hello", *_TARGET, "--catalogue", drivers, *BUILD_NETWORK)
        built = provision.build(*words)
    assert _modules(provision, built["image"], tmp_path / "host") == ["hello.ko"]


@pytest.mark.parametrize(
    ("more", "status", "parts"),
    [
        (
            'BUILD_EXCLUSIVE_KERNEL="^5\\."',
            3,
            ("BUILD_EXCLUSIVE_KERNEL is '^5\\.'", NEW_KERNEL),
        ),
        ('BUILD_EXCLUSIVE_CONFIG="!CONFIG_MODULES"', 3, ("'!CONFIG_MODULES'", NEW_KERNEL)),
        ('OBSOLETE_BY="5.19"', 3, ("OBSOLETE_BY is '5.19'", NEW_KERNEL)),
        ('BUILD_DEPENDS[0]="spl"', 3, ("other DKMS packages", "spl")),
        ('BUILT_MODULE_NAME[0]="other"', 1, ("did not make", "other.ko")),
        ("touch /etc/spoiled", 1, ("/etc/spoiled",)),
        ("exit 3", 1, ("ends itself, with exit status 3",)),
        ("if then", 1, ("no program that bash understands",)),
        ('MAKE="make -C $no_such_folder"', 1, ("variables that nothing sets", "no_such_folder")),
    ],
)
def test_what_goes_wrong_has_a_message_of_its_own(
    provision: Provision, tmp_path: Path, more: str, status: int, parts: tuple[str, ...]
) -> None:
    with _made_up(tmp_path, _CONF.replace("Hello", "hello") + more + "\n") as url:
        _imported(provision, url, tmp_path / "drivers")
        words = ("build", "hello", *_TARGET, "--catalogue", tmp_path / "drivers", *BUILD_NETWORK)
        code, error = provision.failure(*words)
    assert code == status
    assert all(part in error["message"] for part in parts), error["message"]
    assert error["resolution"]
