"""Sources with a dkms.conf: Debian's real packages, and made-up ones that go wrong."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kit.fileserver import served
from kit.hosts import DISTRO, NEW_KERNEL
from kit.process import run
from kit.product import BUILD_NETWORK, driver_modules
from kit.tarball import write_tarball

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kit.product import Provision

pytestmark = pytest.mark.minutes(3)

_TARGET = ("--kernel", NEW_KERNEL, "--distro", DISTRO)
# Package of Debian 12, and how many modules it has for that kernel.
_SMALL = {"acpi-call-dkms": 1, "ddcci-dkms": 2}
_OTHERS = {
    "bbswitch-dkms": 1,
    "digimend-dkms": 4,
    "dm-writeboost-dkms": 1,
    "evdi-dkms": 1,
    "iptables-netflow-dkms": 1,
    "jool-dkms": 3,
    "lime-forensics-dkms": 1,
    "r8168-dkms": 1,
    "tp-smapi-dkms": 3,
    "vpoll-dkms": 1,
    "xtables-addons-dkms": 23,
    "zfs-dkms": 9,
}
# Those that Debian 12 has beside them. Some don't compile for its newest kernels.
_EVALUATED = (
    *("adv-17v35x", "apfs", "broadcom-sta", "dahdi", "dpdk-kmods", "falcosecurity-scap"),
    *("gost-crypto", "langford", "librem-ec-acpi", "lttng-modules", "nat-rtsp", "openrazer-driver"),
    *("openvpn-dco", "rapiddisk", "rtpengine-kernel", "v4l2loopback", "xtrx"),
)
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


@pytest.mark.parametrize(
    ("package", "modules"),
    [
        *_SMALL.items(),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in _OTHERS.items()),
    ],
)
def test_a_package_of_debian_becomes_a_recipe_that_builds(
    provision: Provision, tmp_path: Path, package: str, modules: int
) -> None:
    made = provision.json("import", "dkms", package, "--output", tmp_path, *_TARGET)
    assert made["file"] == str(tmp_path / made["name"] / "driver.toml")
    assert len(made["modules"]) >= modules
    built = provision.build(made["name"], *_TARGET, "--catalogue", tmp_path)
    verified = provision.json("verify", built["image"])
    assert verified["findings"] == []
    assert built["built"]
    names = _modules(provision, built["image"], tmp_path / "host")
    assert len(names) == modules


def _modules(provision: Provision, image: str, root: Path) -> list[str]:
    """Unpack an artifact and return its modules."""
    provision("install", image, "--root", root)
    return sorted(path.name for path in driver_modules(root))


@pytest.mark.nightly
def test_the_shipped_recipe_of_zfs_builds(provision: Provision, tmp_path: Path) -> None:
    built = provision.build("zfs", *_TARGET)
    assert provision.json("verify", built["image"])["findings"] == []
    names = _modules(provision, built["image"], tmp_path / "host")
    assert {"spl.ko", "zfs.ko"} < set(names)


@pytest.mark.nightly
@pytest.mark.parametrize("package", _EVALUATED)
def test_every_package_of_debian_is_evaluated(provision: Provision, package: str) -> None:
    made = provision.json("import", "dkms", f"{package}-dkms", *_TARGET)
    assert made["modules"]
    assert made["file"] is None
    assert 'kind = "dkms"' in made["recipe"]


@contextmanager
def _made_up(folder: Path, conf: str, **files: str) -> Iterator[str]:
    """Serve a source with a module and a dkms.conf; yields its address."""
    texts = {"hello.c": _SOURCE, "Makefile": "obj-m := hello.o\n", "dkms.conf": conf}
    more = {name.replace("__", "/"): text for name, text in files.items()}
    tarball = write_tarball(folder / "files", "hello-1.2", {**texts, **more})
    with served(tarball.parent) as url:
        yield f"{url}/{tarball.name}"


def _imported(provision: Provision, url: str, catalogue: Path) -> Mapping[str, Any]:
    return provision.json("import", "dkms", url, "--output", catalogue, *_TARGET)


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
            ("excludes this kernel", "BUILD_EXCLUSIVE_KERNEL is '^5\\.'", NEW_KERNEL),
        ),
        ('BUILD_EXCLUSIVE_CONFIG="!CONFIG_MODULES"', 3, ("'!CONFIG_MODULES'", NEW_KERNEL)),
        ('OBSOLETE_BY="5.19"', 3, ("OBSOLETE_BY is '5.19'", NEW_KERNEL)),
        ('BUILD_DEPENDS[0]="spl"', 3, ("other DKMS packages", "spl")),
        ('BUILT_MODULE_NAME[0]="other"', 1, ("did not come out", "other.ko")),
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


@pytest.mark.parametrize(
    ("conf", "part"),
    [
        (_CONF + "touch /etc/spoiled\n", "changes files: /etc"),
        (_CONF + "exit 3\n", "ends itself, with exit status 3"),
        (_CONF + "if then\n", "no program that bash understands"),
    ],
)
def test_a_dkms_conf_that_does_more_than_to_set_variables_is_refused(
    provision: Provision, tmp_path: Path, conf: str, part: str
) -> None:
    with _made_up(tmp_path, conf) as url:
        code, error = provision.failure("import", "dkms", url, *_TARGET)
    assert code == 2
    assert part in error["message"]
