"""Makes the agent tree: both halves with an interpreter and libraries of their own.

usage: python3 -I agent_tree.py

Runs in the build of the agent's image, where the packages of a release are installed. ``PREFIX``
gets Python with its standard library, the Python packages, the programs of ``PROGRAMS``, and all
libraries of the distro that these need, with the C library and its loader. So it runs on any host
of this architecture, whatever C library that has, or where it has none.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
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
# Programs name the path of their loader and libraries, so the tree runs in this place only.
PREFIX = Path("/opt/provision")
PYTHON = PREFIX / "python"
# Hosts without a package manager lack skopeo.
PROGRAMS = (Path("/usr/bin/skopeo"),)
STATIC = Path("/usr/bin/oci-decorator")
# Of Debian's packages that provision needs, and what its own brings.
PACKAGES = ("/usr/lib/python3/dist-packages", "/usr/lib/provision/lib/site-packages")


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


def take_libraries(tree: Path, loader: Path) -> None:
    """Copy what is needed, and what that needs in turn."""
    known = known_libraries()
    wanted = [name for path in elf_files(tree) for name in needed(path)]
    taken = {loader.name: loader}
    while wanted:
        name = wanted.pop()
        if name not in taken:
            taken[name] = known[name]
            wanted += needed(known[name])
    for name, path in taken.items():
        shutil.copyfile(path, tree / "lib" / name)
        (tree / "lib" / name).chmod(0o755)


def keep_licences(tree: Path) -> None:
    """Copy the licences of all packages, of which the tree has a part."""
    for path in Path("/usr/share/doc").glob("*/copyright"):
        target = tree / "share/licenses" / path.parent.name / path.name
        target.parent.mkdir(parents=True)
        shutil.copyfile(path, target)


def take_packages(target: Path) -> None:
    """Copy the Python packages, with the extension modules of this Python only."""
    this = f".cpython-{sys.version_info.major}{sys.version_info.minor}-"
    for folder in PACKAGES:
        shutil.copytree(
            folder,
            target,
            ignore=shutil.ignore_patterns("__pycache__", "test", "tests"),
            symlinks=True,
            dirs_exist_ok=True,
        )
    for path in target.rglob("*.cpython-*.so"):
        if this not in path.name:
            path.unlink()


def main() -> None:
    """Make the tree."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    (PYTHON / "bin").mkdir(parents=True)
    programs = [shutil.copy2(path, PYTHON / "bin" / path.name) for path in (program, *PROGRAMS)]
    (PYTHON / "bin/python3").symlink_to(program.name)
    shutil.copytree(
        library,
        PYTHON / "lib" / library.name,
        ignore=shutil.ignore_patterns(*UNWANTED),
        symlinks=True,
    )
    # Where Debian's Python looks, seen from its own folder.
    take_packages(PYTHON / "lib/python3/dist-packages")
    loader = Path(output("/usr/bin/patchelf", "--print-interpreter", program).strip())
    take_libraries(PYTHON, loader)
    # Checked by nothing: the files don't change any more.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(PYTHON / "lib", quiet=1, invalidation_mode=mode)
    # RPATH, not RUNPATH: it holds for all that is loaded later too, so that no library has to be
    # changed.
    lib = PYTHON / "lib"
    words = ["--set-interpreter", str(lib / loader.name), "--force-rpath", "--set-rpath", str(lib)]
    subprocess.run(["/usr/bin/patchelf", *words, *programs], check=True)
    shutil.copytree("/usr/share/provision", PYTHON / "share/provision", symlinks=True)
    keep_licences(PYTHON)
    start = PYTHON / "bin/provision"
    start.write_text(f"#!{PYTHON}/bin/python3 -I\nfrom provision.cli import main\n\nmain()\n")
    start.chmod(0o755)
    shutil.copy2(STATIC, PYTHON / "bin")
    (PYTHON / "bin/oci-decorator-runtime").symlink_to(STATIC.name)
    # What hosts and pods call.
    (PREFIX / "bin").mkdir()
    for name in ("provision", "oci-decorator", "oci-decorator-runtime"):
        (PREFIX / "bin" / name).symlink_to(f"../python/bin/{name}")


if __name__ == "__main__":
    main()
