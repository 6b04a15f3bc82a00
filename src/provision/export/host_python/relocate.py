"""Makes an installed Python independent of the distro that it was built on.

usage: python bundle.py bundle.json

Runs in the build container, under that Python as it lies in its source's folder. What it takes
from the distro are the C library with its loader, and the libraries that Python's own modules or
wheels from PyPI need.
"""

from __future__ import annotations

import compileall
import importlib
import json
import py_compile
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# Parts for developers, and for desktops.
UNWANTED = (
    "bin/2to3*",
    "bin/idle3*",
    "bin/pydoc3*",
    "bin/python3*-config",
    "include",
    "lib/pkgconfig",
    "lib/python3.*/idlelib",
    # Modules of bygone interfaces; nis would bring Kerberos by itself.
    "lib/python3.*/lib-dynload/nis.*",
    "lib/python3.*/lib-dynload/ossaudiodev.*",
    "lib/python3.*/lib-dynload/xxlimited*",
    "lib/python3.*/lib2to3",
    "lib/python3.*/pydoc_data",
    "lib/python3.*/test",
    "lib/python3.*/tkinter",
    "lib/python3.*/turtle.py",
    "lib/python3.*/turtledemo",
    "lib/python3.*/config-*",
    "lib/python3.*/*/test",
    "lib/python3.*/*/tests",
    "share/man",
)
# Modules that Python's build leaves out without a word where it finds no library for them.
MODULES = (
    "bz2",
    "ctypes",
    "hashlib",
    "lzma",
    "sqlite3",
    "ssl",
    "venv",
    "xml.etree.ElementTree",
    "xml.parsers.expat",
    "zlib",
)
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


def output(*words: str | Path) -> str:
    """Return what a program prints."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def is_elf(path: Path) -> bool:
    """Return whether a file is a program or a library."""
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def elf_files(prefix: Path) -> list[Path]:
    """Return all programs and libraries below a folder."""
    files = sorted(p for p in prefix.rglob("*") if p.is_file() and not p.is_symlink())
    return [path for path in files if is_elf(path)]


def known_libraries() -> dict[str, Path]:
    """Return the distro's libraries: path by name."""
    rows = re.findall(
        r"^\t(\S+) \(.*\) => (\S+)$", output("/usr/sbin/ldconfig", "-p"), re.MULTILINE
    )
    return {name: Path(path) for name, path in reversed(rows)}


def needed(path: Path) -> list[str]:
    """Return the names of the libraries that a file asks for."""
    return output("/usr/bin/patchelf", "--print-needed", path).split()


def take_libraries(prefix: Path, loader: Path) -> dict[str, Path]:
    """Copy what is needed, and what that needs in turn; return where each came from."""
    known = known_libraries()
    wanted = [*FOR_WHEELS, *(name for path in elf_files(prefix) for name in needed(path))]
    taken = {loader.name: loader}
    while wanted:
        name = wanted.pop()
        if name not in taken:
            taken[name] = known[name]
            wanted += needed(known[name])
    for name, path in taken.items():
        shutil.copyfile(path, prefix / "lib" / name)
        (prefix / "lib" / name).chmod(0o755)
    return taken


def owner(path: Path) -> str:
    """Return the package that a file belongs to; it may be listed with another folder."""
    real = str(path.resolve())
    names = [real, real.removeprefix("/usr"), str(path)]
    for name in names:
        found = subprocess.run(
            ["/usr/bin/dpkg-query", "--search", name], check=False, capture_output=True, text=True
        )
        if found.returncode == 0:
            return found.stdout.partition(":")[0]
    raise SystemExit(f"bundle: no package has {path}")


def keep_licences(prefix: Path, packages: Iterable[str]) -> None:
    """Copy the licences of the libraries."""
    for package in packages:
        target = prefix / "share/licenses" / package
        target.mkdir(parents=True)
        shutil.copyfile(f"/usr/share/doc/{package}/copyright", target / "copyright")


def compile_modules(prefix: Path) -> None:
    """Compile all modules, with the checksum of nothing: the files don't change any more."""
    for folder in list(prefix.rglob("__pycache__")):
        shutil.rmtree(folder)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(prefix / "lib", quiet=1, invalidation_mode=mode)


def main() -> None:
    """Bundle."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    prefix = Path(plan["prefix"])
    for name in MODULES:
        importlib.import_module(name)
    for path in [path for pattern in UNWANTED for path in prefix.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    program = (prefix / "bin/python3").resolve()
    loader = Path(output("/usr/bin/patchelf", "--print-interpreter", program).strip())
    subprocess.run(["/usr/bin/strip", "--strip-unneeded", *elf_files(prefix)], check=True)
    taken = take_libraries(prefix, loader)
    keep_licences(prefix, sorted({owner(path) for path in taken.values()}))
    compile_modules(prefix)
    manifest = {**plan, "libraries": sorted(taken)}
    (prefix / "provision-python.json").write_text(json.dumps(manifest, indent=1) + "\n")
    # RPATH, not RUNPATH: it holds for all that is loaded later too, wheels among it, so that no
    # library has to be changed.
    library = f"{prefix}/lib"
    words = ["--set-interpreter", f"{library}/{loader.name}", "--force-rpath", "--set-rpath"]
    subprocess.run(["/usr/bin/patchelf", *words, library, program], check=True)


if __name__ == "__main__":
    main()
