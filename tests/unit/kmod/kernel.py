"""A kernel made of files, by hand; the real one and kmod are in the guests of tests/vm.

modprobe and rmmod are stand-ins made from kmod's manual pages, which change these files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.artifact import KERNEL, make_artifact, make_module, write, write_manifest
from provision.manifest import HostNeeds, Manifest, Module

# They change /proc/modules and /sys/module below $ROOT, as the real ones do. $ROOT/refused/NAME (or
# NAME-VERSION) and $ROOT/opened/NAME are modules that the kernel refuses, with what modprobe says
# and what is logged, and those that someone opens a moment before.
_MODPROBE = """\
#!/bin/sh
ROOT={root}
echo "modprobe $*" >>"$ROOT/calls"
add() {
    version=
    file=$folder/lib/modules/$kernel/$1.ko
    [ -z "$kernel" ] || version=$(tr '\\0' '\\n' 2>/dev/null <"$file" | sed -n 's/^version=//p')
    for refused in "$ROOT/refused/$1" "$ROOT/refused/$1-$version"; do
        [ -e "$refused" ] || continue
        echo "6,1,1,-;$(sed 1d "$refused")" >>"$ROOT/dev/kmsg"
        echo >&2 "modprobe: ERROR: could not insert '$1': $(sed -n 1p "$refused")"
        exit 1
    done
    grep -q "^$1 " "$ROOT/proc/modules" && return
    echo "$1 1 0 - Live 0x0" >>"$ROOT/proc/modules"
    mkdir -p "$ROOT/sys/module/$1"
    echo live >"$ROOT/sys/module/$1/initstate"
    [ -z "$version" ] || echo "$version" >"$ROOT/sys/module/$1/version"
}
folder= kernel=
while :; do
    case $1 in
        -d) folder=$2; shift 2 ;;
        -S) kernel=$2; shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
if [ -n "$kernel" ]; then add "$1"; else for name; do add "$name"; done; fi
"""
_RMMOD = """\
#!/bin/sh
ROOT={root}
echo "rmmod $*" >>"$ROOT/calls"
if [ -e "$ROOT/opened/$1" ]; then
    echo >&2 "rmmod: ERROR: Module $1 is in use"
    exit 1
fi
awk -v gone="$1" '
    $1 == gone { next }
    index("," $4, "," gone ",") { sub(gone ",", "", $4); $3--; if ($4 == "") $4 = "-" }
    { print }' "$ROOT/proc/modules" >"$ROOT/proc/new"
mv "$ROOT/proc/new" "$ROOT/proc/modules"
rm -r "$ROOT/sys/module/$1"
"""


@dataclass
class Kernel:
    """A running kernel below a root, and the programs that load its modules."""

    root: Path
    programs: Path

    def have(
        self, name: str, references: int = 0, users: Sequence[str] = (), *, version: str = ""
    ) -> None:
        """Load a module that others use; one of the driver's is another build, or a version."""
        holders = "".join(f"{user}," for user in users) or "-"
        with (self.root / "proc/modules").open("a") as stream:
            stream.write(f"{name} 1 {references + len(users)} {holders} Live 0x0\n")
        write(self.root / f"sys/module/{name}/initstate", b"live\n")
        if version:
            write(self.root / f"sys/module/{name}/version", f"{version}\n".encode())

    def hold(self, name: str, *users: str, references: int = 0) -> None:
        """Let others use a loaded module: modules that depend on it, and whoever has it open."""
        path = self.root / "proc/modules"
        holders = "".join(f"{user}," for user in users) or "-"
        held = f"{name} 1 {references + len(users)} {holders} "
        lines = path.read_text().splitlines()
        lines = [held + "Live 0x0" if line.split()[0] == name else line for line in lines]
        path.write_text("".join(f"{line}\n" for line in lines))

    def refuse(self, name: str, said: str = "Exec format error", logged: str = "") -> None:
        """Refuse a module from now on."""
        write(self.root / "refused" / name, f"{said}\n{logged}\n".encode())

    def accept(self) -> None:
        """Refuse nothing any more."""
        shutil.rmtree(self.root / "refused", ignore_errors=True)

    def open(self, name: str) -> None:
        """Let someone open a module's device a moment before it is taken out."""
        write(self.root / "opened" / name, b"")

    def clear(self) -> None:
        """Boot: nothing is loaded."""
        write(self.root / "proc/modules", b"")
        shutil.rmtree(self.root / "sys/module", ignore_errors=True)

    def loaded(self) -> set[str]:
        """The loaded modules."""
        text = (self.root / "proc/modules").read_text()
        return {line.split()[0] for line in text.splitlines()}

    def calls(self) -> list[str]:
        """What was run since the last time."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


def start(root: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Start a kernel; programs that are run from now on change it."""
    programs = root.parent / f"{root.name}-programs"
    write(root / "proc/sys/kernel/osrelease", f"{KERNEL}\n".encode())
    write(root / "proc/modules", b"")
    write(root / "dev/kmsg", b"")
    for name, text in {"modprobe": _MODPROBE, "rmmod": _RMMOD}.items():
        write(programs / name, text.replace("{root}", str(root)).encode(), 0o755)
    path = os.environ["PATH"].split(os.pathsep)
    others = [folder for folder in path if not folder.endswith("-programs")]
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), *others]))
    return Kernel(root, programs)


def make_stack(folder: Path, host: HostNeeds | None = None) -> Manifest:
    """An artifact of three modules: ``core``, and ``net`` and ``extra``, which need it."""
    manifest = make_artifact(folder)
    modules = []
    for name, depends in {"net": ("core",), "extra": ("core", "ib"), "core": ("videodev",)}.items():
        path = f"lib/modules/{KERNEL}/{name}.ko"
        write(folder / path, make_module())
        first = manifest.modules[0]
        modules.append(
            Module(
                name=name,
                path=path,
                sha256=first.sha256,
                size=first.size,
                vermagic=first.vermagic,
                depends=depends,
            )
        )
    (folder / manifest.modules[0].path).unlink()
    dep = "net.ko: core.ko\nextra.ko: core.ko\ncore.ko:\n"
    write(folder / f"lib/modules/{KERNEL}/modules.dep", dep.encode())
    manifest = manifest.model_copy(update={"modules": tuple(modules), "host": host or HostNeeds()})
    write_manifest(folder, manifest)
    return manifest
