"""Makes a kernel's tree ready for external modules.

Runs in the build container, on Python's standard library: ``python3 step.py prepare_tree FOLDER``
takes what is in FOLDER (``tree.json``, ``tree.tar``, ``config``, ``Module.symvers``,
``compiler.tar``) and puts the tree where ``/lib/modules/<kernel>/build`` points to. It is the way
of the kernel's own Documentation/kbuild/modules.rst: the configuration, ``make olddefconfig``,
``make modules_prepare``, and the ``Module.symvers`` of the kernel's own build.

It fails, with exit status 1, where the result would not be that kernel's: another version, a
configuration that changed, a compiler of another major version. ``provision`` imports the same
functions to refuse what it can before a build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Runs a program and returns its standard output: run_tool of step.py.
Tool = Callable[[Sequence[str]], str]
# What its lines in the build's log begin with.
TITLE = "kernel tree"
# What of a configuration says which tools there are, and decides nothing: each is the output of a
# program's --version. Source: init/Kconfig of Linux 6.1 to 6.18.
TOOL_VERSIONS = frozenset(
    {
        "CONFIG_AS_VERSION",
        "CONFIG_BINDGEN_VERSION_TEXT",
        "CONFIG_CC_VERSION_TEXT",
        "CONFIG_CLANG_VERSION",
        "CONFIG_GCC_VERSION",
        "CONFIG_LD_VERSION",
        "CONFIG_LLD_VERSION",
        "CONFIG_PAHOLE_VERSION",
        "CONFIG_RUSTC_LLVM_VERSION",
        "CONFIG_RUSTC_VERSION",
        "CONFIG_RUSTC_VERSION_TEXT",
    }
)
UNSET = "n"
_SET = re.compile(r"^(CONFIG_[A-Za-z0-9_]+)=(.*)$")
_NOT_SET = re.compile(r"^# (CONFIG_[A-Za-z0-9_]+) is not set$")
# "gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "x86_64-linux-gnu-gcc-12 (Ubuntu …) 12.3.0": the version
# is the last word, except that Gentoo and Red Hat add one in parentheses or a date.
_COMPILER_VERSION = re.compile(r"(?<![\w.+-])([0-9]{1,4})\.[0-9]+(?:\.[0-9]+)?(?![\w.+-])")
# Sources that no external module is compiled from, and that preparing doesn't read: two thirds.
_UNREAD = tuple(
    f"*/{folder}/*.{ending}"
    for folder in ("drivers", "fs", "sound", "net", "Documentation", "crypto")
    for ending in ("c", "S", "rst", "txt", "yaml", "dts", "dtsi")
)
_MAKEFILE_VERSION = re.compile(r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION) *= *(.*)$", re.M)


class TreeError(Exception):
    """Why the tree can't serve its kernel."""


class Compiler(NamedTuple):
    """The compiler of a kernel: ``gcc`` or ``clang``, and its major version."""

    name: str
    major: int


def parse_config(text: str) -> dict[str, str]:
    """Return a kernel configuration's options: values as they stand there, ``n`` if not set."""
    options: dict[str, str] = {}
    for line in text.splitlines():
        if match := _SET.match(line):
            options[match[1]] = match[2]
        elif match := _NOT_SET.match(line):
            options[match[1]] = UNSET
    return options


def drift(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return how a configuration differs from the kernel's own, one line an option.

    Options that name the versions of tools don't count, and an option that is missing is one that
    is not set.
    """
    return [
        f"{name}: the kernel has {before}, this tree gives {after}"
        for name in sorted((wanted.keys() | found.keys()) - TOOL_VERSIONS)
        if (before := wanted.get(name, UNSET)) != (after := found.get(name, UNSET))
    ]


def compiler_of(config: Mapping[str, str]) -> Compiler | None:
    """Return the compiler that built a kernel; None where its configuration doesn't say.

    Source: ``CONFIG_CC_VERSION_TEXT`` is the first line of ``$(CC) --version`` (init/Kconfig).
    """
    text = config.get("CONFIG_CC_VERSION_TEXT", "").strip('"')
    name = "clang" if config.get("CONFIG_CC_IS_CLANG") == "y" or "clang" in text else "gcc"
    major = major_of(text)
    return None if major is None else Compiler(name, major)


def major_of(version_text: str) -> int | None:
    """Return the major version in the first line of a compiler's ``--version``; None: it has none.

    What stands in parentheses is a distro's own version of the package.
    """
    plain = re.sub(r"\([^()]*\)", " ", version_text)
    found = _COMPILER_VERSION.findall(plain) or _COMPILER_VERSION.findall(version_text)
    return int(found[-1]) if found else None


def source_version(makefile: str) -> str:
    """Return the version of a kernel's source, as ``make kernelversion`` prints it.

    Raises:
        TreeError: It is no kernel's Makefile.
    """
    parts = {match[1]: match[2].strip() for match in _MAKEFILE_VERSION.finditer(makefile)}
    if "VERSION" not in parts:
        raise TreeError("the tree's Makefile does not say which kernel it is")
    numbers = [parts[name] for name in ("VERSION", "PATCHLEVEL", "SUBLEVEL") if parts.get(name)]
    return ".".join(numbers) + parts.get("EXTRAVERSION", "")


def check_version(release: str, version: str) -> None:
    """Refuse a source that is not of the kernel.

    Raises:
        TreeError: The release doesn't begin with the version.
    """
    rest = release.removeprefix(version)
    if rest == release or rest[:1].isdigit() or rest.startswith("."):
        raise TreeError(f"the source is Linux {version}, not that of the kernel {release}")


def check_drift(wanted: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a configuration that ``make olddefconfig`` changed.

    Raises:
        TreeError: It differs in something else than versions of tools.
    """
    lines = drift(wanted, found)
    if lines:
        raise TreeError(
            f"the configuration drifted: {len(lines)} options of the kernel can't be had with this"
            " source and these tools\n" + "\n".join(f"  {line}" for line in lines)
        )


def check_compiler(wanted: Compiler | None, version_text: str) -> None:
    """Refuse a compiler of another major version than the kernel's.

    Raises:
        TreeError: It is another.
    """
    major = major_of(version_text)
    if wanted is not None and major is not None and major != wanted.major:
        raise TreeError(
            f"the kernel was built with {wanted.name} {wanted.major}, this compiler is of the major"
            f" version {major}: {version_text.strip()}"
        )


def _text(file: Path) -> str:
    """A file of the kernel's sources, in which vendors write their names in any encoding."""
    return file.read_text(errors="replace")


def find_tree(folder: Path) -> Path:
    """Return the tree in an unpacked archive: the folder that has a kernel's Makefile.

    Archives have it in their only folder, or as deep as ``usr/src/linux-headers-K``.

    Raises:
        TreeError: There is none.
    """
    for makefile in sorted(folder.rglob("Makefile"), key=lambda path: len(path.parts)):
        is_top = re.search(r"^VERSION *=", _text(makefile), re.M)
        if is_top and (makefile.parent / "scripts").is_dir():
            return makefile.parent
    raise TreeError(f"there is no kernel tree in '{folder}'")


def prepare(folder: Path, root: Path, tool: Tool) -> Path:
    """Unpack and prepare a tree.

    Args:
        folder: Where tree.json and the files lie; tree.json has ``kernel``, ``kind`` (as in the
            Pin) and ``cc``, the compiler's command.
        root: Of the container.

    Returns:
        The tree.

    Raises:
        TreeError: It would not be that kernel's.
    """
    plan = json.loads((folder / "tree.json").read_text())
    kernel = plan["kernel"]
    if (folder / "compiler.tar").exists():
        _unpack_compiler(folder, root, tool)
    tree = _found(plan, folder, root, tool)
    check_version(kernel, source_version(_text(tree / "Makefile")))
    for name, target in (("config", ".config"), ("Module.symvers", "Module.symvers")):
        if (folder / name).exists():
            shutil.copyfile(folder / name, tree / target)
    if not (tree / ".config").exists():
        raise TreeError(f"'{tree}' has no .config")
    wanted = parse_config(_text(tree / ".config"))
    check_compiler(compiler_of(wanted), tool([plan["cc"], "--version"]).splitlines()[0])
    check_symvers(wanted, has_symvers=(tree / "Module.symvers").exists(), kernel=kernel)
    if plan["kind"] == "source":
        _prepare_source(kernel, tree, wanted, tool)
    _check_release(tree, kernel)
    _link(root / "lib/modules" / kernel, tree)
    return tree


def check_symvers(config: Mapping[str, str], *, has_symvers: bool, kernel: str) -> None:
    """Refuse a tree whose modules would have no CRCs that their kernel asks for.

    Without Module.symvers ``make`` only warns; the kernel then refuses the module.

    Raises:
        TreeError: CONFIG_MODVERSIONS is set and there is no Module.symvers.
    """
    if config.get("CONFIG_MODVERSIONS") == "y" and not has_symvers:
        raise TreeError(f"CONFIG_MODVERSIONS is set, and there is no Module.symvers of {kernel}")


def _found(plan: Mapping[str, Any], folder: Path, root: Path, tool: Tool) -> Path:
    kernel = plan["kernel"]
    if plan["kind"] == "image":
        for name in ("usr/lib/modules", "lib/modules"):
            tree: Path = root / name / kernel / "build"
            if (tree / "Makefile").exists():
                return tree.resolve()
        raise TreeError(f"the base image has no tree of the kernel {kernel} in /usr/lib/modules")
    unpacked = root / "usr/src" / f"kernel-{kernel}"
    unpacked.mkdir(parents=True)
    left_out = [f"--exclude={pattern}" for pattern in _UNREAD] if plan["kind"] == "source" else []
    _unpack(folder / "tree.tar", unpacked, tool, *left_out)
    return find_tree(unpacked)


def _unpack(archive: Path, target: Path, tool: Tool, *options: str) -> None:
    tar = ["tar", "--extract", "--no-same-owner", *options]
    tool([*tar, f"--file={archive}", f"--directory={target}"])


def _unpack_compiler(folder: Path, root: Path, tool: Tool) -> None:
    """Unpack a compiler, and link its programs where every shell finds them first.

    A cross compiler's programs carry the name of its target: they get their plain names too.
    """
    target = root / "opt/kernel-compiler"
    target.mkdir(parents=True)
    _unpack(folder / "compiler.tar", target, tool)
    links = root / "usr/local/bin"
    links.mkdir(parents=True, exist_ok=True)
    for program in sorted(target.glob("**/bin/*")):
        for name in {program.name, re.sub(r"^[a-z0-9_]+(-[a-z0-9_]+)*-gnu-", "", program.name)}:
            link = links / name
            if not link.is_symlink():
                link.symlink_to(program)


def _link(modules: Path, tree: Path) -> None:
    modules.mkdir(parents=True, exist_ok=True)
    for name in ("build", "source"):
        link = modules / name
        if link.resolve() == tree.resolve():
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(tree)


def _prepare_source(kernel: str, tree: Path, wanted: Mapping[str, str], tool: Tool) -> None:
    make = ["make", f"--directory={tree}", f"KERNELRELEASE={kernel}"]
    tool([*make, "olddefconfig"])
    check_drift(wanted, parse_config(_text(tree / ".config")))
    tool([*make, f"-j{os.environ.get('JOBS', '1')}", "modules_prepare"])
    # It was computed from the source: an external module's build reads the file.
    (tree / "include/config/kernel.release").write_text(f"{kernel}\n")


def _check_release(tree: Path, kernel: str) -> None:
    """Refuse a tree that was prepared for another kernel.

    Raises:
        TreeError: It was, or is not prepared.
    """
    path = tree / "include/generated/utsrelease.h"
    text = _text(path) if path.exists() else ""
    match = re.search(r'UTS_RELEASE "([^"]*)"', text)
    if match is None:
        raise TreeError(f"'{tree}' is not prepared: it lacks include/generated/utsrelease.h")
    if match[1] != kernel:
        raise TreeError(f"the tree is prepared for the kernel {match[1]}, not for {kernel}")


def main(argv: Sequence[str], tool: Tool) -> None:
    """Run with ``FOLDER``."""
    (folder,) = argv
    prepare(Path(folder), Path("/"), tool)
