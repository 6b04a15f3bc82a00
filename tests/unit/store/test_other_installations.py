"""What a host has of NVIDIA's driver that provision did not install, and how that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.artifact import KERNEL, write
from provision.catalogue import Catalogue
from provision.config import catalogue_folders
from provision.store.foreign import OtherInstallation, other_installation

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
    "var/lib/dpkg/status": (
        "Package: nvidia-kernel-dkms\nSource: nvidia-graphics-drivers\n\n"
        "Package: libnvidia-ml1\nSource: nvidia-graphics-drivers (1)\nVersion: 535.1\n\n"
        "Package: other\n"
    ),
}
# All packages that go are kept in a file: those that depend on others too, which only apt knows.
_KEPT = "/var/lib/provision/replaced-nvidia"
_ASK = "apt-get --simulate remove"
_KEEP = f" | awk '/^Remv/ {{print $2}}' >> {_KEPT}"
_SAME_SOURCE = (
    "$(dpkg-query --show --showformat '${source:Package} ${binary:Package}\\n'"
    " | awk '$1 == \"nvidia-graphics-drivers\" {print $2}')"
)
_REMOVE = f"xargs apt-get remove --yes < {_KEPT}"
_INSTALL = f"xargs apt-get install --yes --no-install-recommends < {_KEPT}"
_RPM = f"rpm -qf --queryformat '%{{NAME}}\\n' /{_EXTRA} | sort -u >> {_KEPT}"


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
            [f"{_ASK} libnvidia-ml1 nvidia-kernel-dkms {_SAME_SOURCE}{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        # A module in a package of its own, and folders that were merged. Its source may be that of
        # the kernel, which stays.
        (
            {
                _EXTRA: "",
                "var/lib/dpkg/info/nvidia-mods.list": f"/usr/{_EXTRA}\n",
                "var/lib/dpkg/status": "Package: nvidia-mods\nSource: linux\n",
            },
            "nvidia-mods",
            [f"{_ASK} nvidia-mods{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        # NVIDIA's .run, which takes its modules from DKMS itself.
        (
            {_RUN: "", _UPDATES: "", _DKMS: ""},
            f"/{_UPDATES} and 1 more",
            [f"/{_RUN} --silent"],
            "vendor's installer",
        ),
        # A .run over the distro's packages: what came last goes first.
        (
            {_RUN: "", _ML: "", **_PACKAGES},
            f"/{_RUN}",
            [f"/{_RUN} --silent", f"{_ASK} libnvidia-ml1 {_SAME_SOURCE}{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        # Modules went, and the user space did not.
        (
            {_ML: "", **_PACKAGES},
            "libnvidia-ml1 (packages)",
            [f"{_ASK} libnvidia-ml1 {_SAME_SOURCE}{_KEEP}", _REMOVE],
            _INSTALL,
        ),
        (
            {_EXTRA: "", "var/lib/rpm/rpmdb.sqlite": ""},
            f"/{_EXTRA}",
            [_RPM, f"xargs dnf --assumeyes remove --noautoremove < {_KEPT}"],
            f"xargs dnf --assumeyes install < {_KEPT}",
        ),
        (
            {_EXTRA: "", "usr/lib/sysimage/rpm/x": "", "etc/zypp/zypp.conf": ""},
            f"/{_EXTRA}",
            [_RPM, f"xargs zypper --non-interactive remove < {_KEPT}"],
            f"xargs zypper --non-interactive install < {_KEPT}",
        ),
        # Debian's hosts may have rpm too.
        (
            {_DKMS: "", "var/lib/rpm/x": "", "var/lib/dpkg/info/other.list": ""},
            "DKMS has",
            ["dkms remove nvidia-current/535.1 --all"],
            "dkms install nvidia-current/535.1",
        ),
        ({_UPDATES: ""}, f"/{_UPDATES}", [f"rm /{_UPDATES}", "depmod -a"], "as it was"),
    ],
)
def test_another_installation_is_seen_and_can_be_left_and_returned_to(
    tmp_path: Path, files: dict[str, str], seen: str, remove: list[str], restore: str
) -> None:
    found = _found(tmp_path, files)
    assert found is not None
    assert seen in found.seen
    assert found.remove == tuple(remove)
    # The driver that is to be is made first, and the way back comes last.
    order = ["provision apply", *remove, "reboot", "To return", restore]
    places = [found.resolution.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "files",
    [
        {},
        # The kernel's own modules.
        {f"lib/modules/{KERNEL}/kernel/drivers/net/nvidia.ko": "", **_PACKAGES},
        {f"lib/modules/{KERNEL}/updates/dkms/zfs.ko": "", "var/lib/dkms/zfs/2.1/source": ""},
    ],
)
def test_what_is_no_other_installation_is_not_taken_for_one(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert _found(tmp_path, files) is None
