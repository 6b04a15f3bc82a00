"""NVIDIA's container toolkit: its programs, and an archive for apt with its packages.

Programs, units and scripts are those of the module that `tests/data/go` pins; the packages are laid
out as its `packaging/debian` says. Of libnvidia-container, which is no module of Go, they have the
names only.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from kit.files import write
from kit.go_modules import go_module, go_programs
from kit.probe import need_programs
from kit.process import run

_MODULE = "github.com/NVIDIA/nvidia-container-toolkit"
_SUM = ("v1.20.2", "h1:ndvx+2v4c8HmRf8A5aONf1+sE32jNDZ7qnIaBEAN5i8=")
TOOLKIT_PROGRAMS = (
    *("nvidia-cdi-hook", "nvidia-container-runtime", "nvidia-container-runtime-hook"),
    "nvidia-ctk",
)
_VERSION = f"{_SUM[0][1:]}-1"
TOOLKIT = "nvidia-container-toolkit"
_BASE = f"{TOOLKIT}-base"
_LIBRARY, _TOOLS = "libnvidia-container1", "libnvidia-container-tools"
_NEEDS = {TOOLKIT: (_BASE, _TOOLS), _BASE: (), _TOOLS: (_LIBRARY,), _LIBRARY: ()}
TOOLKIT_PACKAGES = tuple(_NEEDS)
_STAND_INS = {
    _LIBRARY: "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1.20.2",
    _TOOLS: "usr/bin/nvidia-container-cli",
}
# What debhelper puts there: a unit that an admin has disabled stays so.
_ENABLE = """\
for unit in nvidia-cdi-refresh.path nvidia-cdi-refresh.service; do
    if deb-systemd-helper --quiet was-enabled $unit; then
        deb-systemd-helper enable $unit
    else
        deb-systemd-helper update-state $unit
    fi
done"""


def toolkit_programs() -> Path:
    packages = [f"{_MODULE}/cmd/{name}" for name in TOOLKIT_PROGRAMS]
    return go_programs(TOOLKIT, *packages, c="shared")


def toolkit_archive(folder: Path) -> None:
    """Make a folder what `deb [trusted=yes] file:FOLDER ./` names."""
    need_programs("dpkg-deb", "apt-ftparchive")
    module = go_module(_MODULE, *_SUM)
    packaging = module / "packaging/debian"
    programs = toolkit_programs()
    sources = [*programs.iterdir(), *(module / "deployments").rglob("nvidia-cdi-refresh.*")]
    sources += (module / "deployments").rglob("*-nvidia-cdi-refresh.rules")
    sources += (module / "deployments").rglob("10-container-engines.conf")
    found = {path.name: path for path in sources}
    folder.mkdir()
    for package, needs in _NEEDS.items():
        tree = folder / package
        lines = [f"Package: {package}", f"Version: {_VERSION}", "Architecture: amd64"]
        lines += ["Maintainer: a test <root@localhost>", "Description: as NVIDIA's"]
        if needs:
            lines.append("Depends: " + ", ".join(f"{one} (= {_VERSION})" for one in needs))
        write(tree / "DEBIAN/control", "\n".join(lines) + "\n")
        if package in _STAND_INS:
            write(tree / _STAND_INS[package], "", 0o755)
        for script in ("postinst", "postrm"):
            if (source := packaging / f"{package}.{script}").exists():
                text = source.read_text().replace(
                    "#DEBHELPER#", _ENABLE if "base" in package else ""
                )
                write(tree / "DEBIAN" / script, text, 0o755)
        listed = packaging / f"{package}.install"
        for line in listed.read_text().splitlines() if listed.exists() else ():
            name, place = line.split()
            # Debian's /lib is a link to /usr/lib.
            where = re.sub("^/lib/", "/usr/lib/", f"{place.rstrip('/')}/")
            target = tree / where.strip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found[name], target)
        run(["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, folder])
        shutil.rmtree(tree)
    index = run(["apt-ftparchive", "packages", "."], cwd=folder).stdout
    (folder / "Packages").write_text(index)
