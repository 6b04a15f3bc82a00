"""What a host has of NVIDIA's driver that provision did not install, and how that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.artifact import KERNEL, write
from provision.catalogue import Catalogue
from provision.config import catalogue_folders
from provision.store.foreign_driver import OtherInstallation, other_installation

_UPDATES = f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko.xz"
_EXTRA = f"lib/modules/{KERNEL}/extra/nvidia/nvidia-uvm.ko"
_DKMS = "var/lib/dkms/nvidia-current/535.1/source"
_CONF = "usr/src/nvidia-current-535.1/dkms.conf"
_ML = "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.1"
_RUN = "usr/bin/nvidia-uninstall"
# Before /usr was merged, and after; dpkg's lists have what the package has.
_PACKAGES = {
    "var/lib/dpkg/info/nvidia-kernel-dkms.list": f"/.\n/{_CONF}\n",
    "var/lib/dpkg/info/libnvidia-ml1:amd64.list": f"/.\n/{_ML}\n",
    "var/lib/dpkg/info/other.list": "/usr/bin/other\n",
}


def _found(root: Path, files: dict[str, str]) -> OtherInstallation | None:
    for name, text in files.items():
        write(root / name, text.encode())
    recipe = Catalogue(catalogue_folders()).entry("nvidia").recipe
    return other_installation(root, "nvidia", recipe, None)


@pytest.mark.parametrize(
    ("files", "seen", "remove", "restore"),
    [
        # Debian's packages: they own what DKMS builds from, so DKMS itself is told nothing.
        (
            {
                _UPDATES: "",
                _DKMS: "",
                _CONF: 'BUILT_MODULE_NAME[0]="nvidia"\n',
                _ML: "",
                **_PACKAGES,
            },
            "DKMS has nvidia-current/535.1",
            ["apt-get purge libnvidia-ml1 nvidia-kernel-dkms && apt-get autoremove --purge"],
            "apt-get install libnvidia-ml1 nvidia-kernel-dkms",
        ),
        # A module in a package of its own, and folders that were merged.
        (
            {_EXTRA: "", "var/lib/dpkg/info/nvidia-mods.list": f"/usr/{_EXTRA}\n"},
            f"/{_EXTRA}",
            ["apt-get purge nvidia-mods && apt-get autoremove --purge"],
            "apt-get install nvidia-mods",
        ),
        # NVIDIA's .run, which takes its modules from DKMS itself.
        (
            {_RUN: "", _UPDATES: "", _DKMS: ""},
            f"/{_UPDATES} and 1 more",
            [f"/{_RUN}"],
            "vendor's installer",
        ),
        # A .run over the distro's packages: what came last goes first.
        (
            {_RUN: "", _ML: "", **_PACKAGES},
            f"/{_RUN}",
            [f"/{_RUN}", "apt-get purge libnvidia-ml1 && apt-get autoremove --purge"],
            "apt-get install libnvidia-ml1",
        ),
        (
            {_EXTRA: "", "var/lib/rpm/rpmdb.sqlite": ""},
            f"/{_EXTRA}",
            [f"dnf remove $(rpm -qf --queryformat '%{{NAME}} ' /{_EXTRA})"],
            "as it was installed",
        ),
        # Debian's hosts may have rpm too.
        (
            {_DKMS: "", "var/lib/rpm/x": "", "var/lib/dpkg/info/other.list": ""},
            "DKMS has",
            ["dkms remove nvidia-current/535.1 --all"],
            "as it was",
        ),
        ({_UPDATES: ""}, f"/{_UPDATES}", [f"rm /{_UPDATES} && depmod -a"], "as it was"),
    ],
)
def test_another_installation_is_seen_and_can_be_left_and_returned_to(
    tmp_path: Path, files: dict[str, str], seen: str, remove: list[str], restore: str
) -> None:
    found = _found(tmp_path, files)
    assert found is not None
    assert seen in found.seen
    assert found.remove == "; ".join(remove)
    # The driver that is to be is made first, and the way back comes last.
    order = ["provision apply", found.remove, "reboot", "To return", restore]
    places = [found.resolution.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "files",
    [
        {},
        # The kernel's own modules, and user space alone.
        {f"lib/modules/{KERNEL}/kernel/drivers/net/nvidia.ko": "", _ML: "", **_PACKAGES},
        {f"lib/modules/{KERNEL}/updates/dkms/zfs.ko": "", "var/lib/dkms/zfs/2.1/source": ""},
    ],
)
def test_what_is_no_other_installation_is_not_taken_for_one(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert _found(tmp_path, files) is None
