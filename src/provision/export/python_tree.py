"""Makes a distro's Python independent of the distro.

usage: python3 step.py python_tree python.json TREE

Runs in the build container, under that Python. TREE gets the program, its standard library, the
programs of EXTRA, and all libraries of the distro that these or wheels from PyPI need, with the C
library and its loader.
"""

from __future__ import annotations

import compileall
import json
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

# Parts for developers and desktops, and the distro's marks on its own installation.
UNWANTED = (
    "EXTERNALLY-MANAGED",
    "__pycache__",
    "config-*",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "sitecustomize.py",
    "test",
    "tests",
    "tkinter",
    "turtle*",
)
# Programs that provision runs, and that such hosts lack.
EXTRA = (Path("/usr/bin/skopeo"),)
# What wheels may expect of any host, X and GLib aside: https://peps.python.org/pep-0599/
FOR_WHEELS = (
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libstdc++.so.6",
    "libutil.so.1",
)


class PythonTreeError(Exception):
    """What the packages lack."""


def output(*words: str | Path) -> str:
    """Return what a program prints."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def elf_files(folder: Path) -> list[Path]:
    """Return all programs and libraries below a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return [path for path in files if path.open("rb").read(4) == b"\x7fELF"]


def known_libraries() -> dict[str, Path]:
    """Return the distro's libraries: path by name."""
    rows = re.findall(
        r"^\t(\S+) \(.*\) => (\S+)$", output("/usr/sbin/ldconfig", "-p"), re.MULTILINE
    )
    return {name: Path(path) for name, path in reversed(rows)}


def needed(path: Path) -> list[str]:
    """Return the names of the libraries that a file asks for."""
    return output("/usr/bin/patchelf", "--print-needed", path).split()


def take_libraries(tree: Path, loader: Path) -> dict[str, Path]:
    """Copy what is needed, and what that needs in turn; return where each came from."""
    known = known_libraries()
    wanted = [*FOR_WHEELS, *(name for path in elf_files(tree) for name in needed(path))]
    taken = {loader.name: loader}
    while wanted:
        name = wanted.pop()
        if name not in taken:
            taken[name] = known[name]
            wanted += needed(known[name])
    for name, path in taken.items():
        shutil.copyfile(path, tree / "lib" / name)
        (tree / "lib" / name).chmod(0o755)
    return taken


def owner(path: Path) -> str:
    """Return the package that a file belongs to; it may be listed with another folder."""
    real = str(path.resolve())
    for name in (real, real.removeprefix("/usr"), str(path)):
        found = subprocess.run(
            ["/usr/bin/dpkg-query", "--search", name], check=False, capture_output=True, text=True
        )
        if found.returncode == 0:
            return found.stdout.partition(":")[0]
    raise PythonTreeError(f"no package has {path}")


def keep_licences(tree: Path, packages: Iterable[str]) -> None:
    """Copy the licences of packages."""
    for package in packages:
        target = tree / "share/licenses" / package
        target.mkdir(parents=True)
        shutil.copyfile(f"/usr/share/doc/{package}/copyright", target / "copyright")


def main(arguments: Sequence[str], _tool: object) -> None:
    """Make the tree: what is wanted of it, and its folder."""
    plan, tree = json.loads(Path(arguments[0]).read_text()), Path(arguments[1])
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    (tree / "bin").mkdir(parents=True)
    ours = shutil.copy2(program, tree / "bin" / program.name)
    (tree / "bin/python3").symlink_to(program.name)
    programs = [ours, *(shutil.copy2(path, tree / "bin" / path.name) for path in EXTRA)]
    shutil.copytree(
        library,
        tree / "lib" / library.name,
        ignore=shutil.ignore_patterns(*UNWANTED),
        symlinks=True,
    )
    loader = Path(output("/usr/bin/patchelf", "--print-interpreter", program).strip())
    taken = take_libraries(tree, loader)
    keep_licences(tree, sorted({owner(path) for path in (program, *EXTRA, *taken.values())}))
    # Checked by nothing: the files don't change any more.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        tree / "lib", stripdir=tree, prependdir=plan["prefix"], quiet=1, invalidation_mode=mode
    )
    manifest = {**plan, "libraries": sorted(taken)}
    (tree / "provision-python.json").write_text(json.dumps(manifest, indent=1) + "\n")
    # RPATH, not RUNPATH: it holds for all that is loaded later too, wheels among it, so that no
    # library has to be changed.
    lib = f"{plan['prefix']}/lib"
    words = ["--set-interpreter", f"{lib}/{loader.name}", "--force-rpath", "--set-rpath", lib]
    subprocess.run(["/usr/bin/patchelf", *words, *programs], check=True)
