"""What a system extension holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from provision.errors import UsageError
from provision.export.sysext import Artifact, Hosts, lay_out
from provision.manifest import DeviceNode, DriverFile, HostNeeds, MinorsFrom, Module
from unit.kmod.artifact import KERNEL, make_artifact, make_pin, write, write_manifest

_OTHER = "6.1.0-56-amd64"
_TOP = "usr/lib/provision/demo"


def artifact(
    folder: Path, *, kernel: str = KERNEL, version: str = "1.2", **changes: object
) -> Artifact:
    manifest = make_artifact(folder, pin=make_pin(kernel=kernel, version=version))
    changed = manifest.model_copy(update=changes)
    write_manifest(folder, changed)
    return Artifact(folder, changed)


def files(tree: Path) -> set[str]:
    return {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file() or p.is_symlink()}


def test_several_kernels_lie_side_by_side(tmp_path: Path) -> None:
    both = [artifact(tmp_path / k, kernel=k) for k in (KERNEL, _OTHER)]
    tree = tmp_path / "tree"
    lay_out(tree, both, Hosts("flatcar", "4230.2.1"))
    found = files(tree)
    for one in both:
        pin = one.manifest.pin
        assert f"{_TOP}/{pin.short_digest}/lib/modules/{pin.kernel.release}/demo.ko" in found
        place = tree / _TOP / "kernels" / pin.kernel.release
        vendor = json.loads((place / "vendor.json").read_text())
        assert vendor["root"] == f"/{_TOP}/{pin.short_digest}/driver"
        script = (place / "load.sh").read_text()
        assert f"modules=/{_TOP}/{pin.short_digest}\n" in script
        assert f"kernel={pin.kernel.release}\n" in script
    # Never where the kernel's own modules are: an extension may not change those.
    assert not any(name.startswith(("usr/lib/modules/", "lib/", "etc/")) for name in found)
    release = tree / "usr/lib/extension-release.d/extension-release.provision-demo"
    assert release.read_text() == (
        "ID=flatcar\nVERSION_ID=4230.2.1\nARCHITECTURE=x86-64\nEXTENSION_RELOAD_MANAGER=1\n"
    )
    wanted = tree / "usr/lib/systemd/system/multi-user.target.wants/provision-demo.service"
    assert "kernels/%v/load.sh load" in wanted.read_text()


def test_what_the_driver_needs_of_its_host_is_in_the_script(tmp_path: Path) -> None:
    demo = make_artifact(tmp_path / "x").modules[0]
    extra = Module(**{**demo.model_dump(), "name": "demo_extra", "depends": ("demo", "rdma")})
    needy = Module(**{**demo.model_dump(), "depends": ("drm", "video")})
    nodes = (
        DeviceNode(name="democtl", major="demo", minor=255, mode="0666"),
        DeviceNode(
            name="demo{minor}",
            major=195,
            each=MinorsFrom(files="proc/driver/demo/*/information", field="Device Minor"),
        ),
    )
    firmware = DriverFile(path="/lib/firmware/demo/a.bin", kind="firmware", sha256="0" * 64, size=1)
    write(tmp_path / "one/driver/lib/firmware/demo/a.bin", b"a")
    one = artifact(
        tmp_path / "one",
        modules=(extra, needy),
        files=(firmware,),
        host=HostNeeds(conflicts=("nouveau",), optional=("demo_extra",), nodes=nodes),
        kmm=needy,
    )
    tree = tmp_path / "tree"
    lay_out(tree, [one], Hosts())
    script = (tree / _TOP / "kernels" / KERNEL / "load.sh").read_text()
    assert f"modules=/{_TOP}/{one.manifest.pin.short_digest}/host\n" in script
    in_order = [
        "is_loaded nouveau && ! modprobe -r nouveau",
        "modprobe -a drm video\n",
        '"$kernel" demo\n',
        '"$kernel" demo_extra \\\n',
        "        || echo 'demo: left out demo_extra, which is optional'\n",
        "make_node democtl demo 255 0666\n",
        "for file in /proc/driver/demo/*/information; do",
        'make_node demo$minor 195 "$minor" 0660',
        "rmmod demo_extra",
        "rmmod demo;",
    ]
    at = [script.index(text) for text in in_order]
    assert at == sorted(at)
    assert "blacklist nouveau" in (tree / "usr/lib/modprobe.d/provision-demo.conf").read_text()
    assert (tree / "usr/lib/firmware/demo/a.bin").read_bytes() == b"a"


def test_a_manifest_puts_no_commands_into_the_script(tmp_path: Path) -> None:
    demo = make_artifact(tmp_path / "x").modules[0]
    evil = "$(reboot)"
    nodes = (
        DeviceNode(name="a", major=f"x; {evil}", minor=1),
        DeviceNode(name="b{minor}", major=1, each=MinorsFrom(files=f"proc/{evil} */i", field=evil)),
    )
    # Manifests with such names are refused when they are read; the script relies on nothing.
    module = demo.model_copy(update={"name": f"demo;{evil}", "depends": (f"drm {evil}",)})
    one = artifact(
        tmp_path / "one",
        modules=(module,),
        host=HostNeeds(optional=(), nodes=nodes),
    )
    lay_out(tmp_path / "tree", [one], Hosts())
    script = (tmp_path / "tree" / _TOP / "kernels" / KERNEL / "load.sh").read_text()
    lines = [line for line in script.splitlines() if "reboot" in line]
    assert len(lines) == 6
    for line in lines:
        # Quoted or escaped, each time.
        bare = re.sub(r"'[^']*'", "", line).replace(r"\$\(reboot\)", "")
        assert "reboot" not in bare, line


@pytest.mark.parametrize(
    ("kernel", "version", "match"),
    [
        (KERNEL, "1.2", "Two artifacts are for the kernel"),
        (_OTHER, "1.3", "several versions: 1.2, 1.3"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, kernel: str, version: str, match: str
) -> None:
    both = [artifact(tmp_path / "a"), artifact(tmp_path / "b", kernel=kernel, version=version)]
    with pytest.raises(UsageError, match=match):
        lay_out(tmp_path / "tree", both, Hosts())
    assert not (tmp_path / "tree").exists()
