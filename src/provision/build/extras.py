"""Adds to an artifact what only exports need: Kubernetes' KMM, and a GPU operator's driver pod.

Runs in the build container after the collector, with Python's standard library only:
``python3 step.py extras OUT USERSPACE SHELL POD``. An extra that can't be made never stops the
build: it is left out, and the manifest's ``left_out`` says why.

KMM runs the image itself: ``sh -c 'mkdir -p …; cp -R …'`` copies ``/opt/lib/modules/<kernel>`` to
a pod, where ``modprobe -d`` loads one module by the ``modules.dep`` that was copied
(https://kmm.sigs.k8s.io/documentation/kmod_image/). So ``SHELL`` gets the base image's sh, mkdir
and cp with their libraries. And because no ``modules.dep`` of a build can know where a host keeps
modules of its own, those that need some get a module beside them which asks the kernel for them:
``<driver>_needs``. KMM's ``modules.dep`` has it before them. ``OUT/host`` keeps the one without it,
for hosts that load what is needed by themselves.

A GPU operator starts the image as a driver pod, if the recipe says so (``[host.root.pod]``).
``POD`` gets what its scripts start (``loader_script.py``), and the libraries of the driver's own
programs, which the packages of the build bring: the Pin has what theirs depend on.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

# Runs a program and returns its standard output.
Tool = Callable[[Sequence[str]], str]

KMM, DRIVER_POD = "kmm", "driver-pod"
# What KMM starts in an image, and in what: internal/pod/workerpodmanager.go of its source.
_PROGRAMS = ("/bin/sh", "/bin/mkdir", "/bin/cp")
# What the driver pod's scripts start: templates/loader.
_POD_PROGRAMS = (
    *("awk", "cat", "flock", "ln", "mkdir", "mknod", "modprobe", "mount", "mv", "od", "readlink"),
    *("rm", "rmmod", "sha256sum", "sleep", "sort", "stat", "timeout", "tr", "umount"),
)
# Folders of programs, in the order in which the image has them.
_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")
# Parts of the C library that programs of vendors are still linked with.
_PARTS_OF_LIBC = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
_INTERPRETER = re.compile(r"\[Requesting program interpreter: ([^\]]+)\]")
# A line of the dynamic loader: where a library was found, or the loader itself.
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$")
_NOT_FOUND = re.compile(r"^\s*(\S+) => not found$", re.MULTILINE)
# Index files that depmod would miss; the kernel's own build writes them.
_KERNEL_LISTS = ("modules.builtin", "modules.builtin.modinfo", "modules.order")
_DEPENDENCIES = ("modules.dep", "modules.dep.bin")
_ELF = b"\x7fELF"
_EXECUTABLE = 0o755
_PLAIN = 0o644
_SOURCE = """\
#include <linux/kernel.h>
#include <linux/kmod.h>
#include <linux/module.h>

static const char *const needed[] = {{ {names} }};

int {name}(void);
int {name}(void)
{{
	return ARRAY_SIZE(needed);
}}
EXPORT_SYMBOL_GPL({name});

static int __init ask(void)
{{
	size_t at;

	for (at = 0; at < ARRAY_SIZE(needed); at++)
		if (request_module("%s", needed[at]))
			pr_warn("{name}: the kernel has no module %s\\n", needed[at]);
	return 0;
}}

static void __exit leave(void)
{{
}}

module_init(ask);
module_exit(leave);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Loads modules of the kernel's own that a driver needs");
"""


class ExtraError(Exception):
    """Why an extra can't be made."""


def add_shell(folder: Path, tool: Tool, root: Path = Path("/")) -> None:
    """Copy the programs that KMM starts, and all that they need, from the base image.

    Modification times are set to the epoch, so that the same base image gives the same layer.

    Args:
        folder: Where to; it becomes the image's root.
        tool: Runs readelf and the dynamic loader.
        root: Of the base image.

    Raises:
        ExtraError: A program or library is missing.
    """
    _copy(_with_libraries(_PROGRAMS, tool, root), folder, root)


def add_pod_programs(
    folder: Path,
    driver: Path,
    libraries: str,
    tool: Tool,
    root: Path = Path("/"),
) -> dict[str, str]:
    """Copy the programs of the driver pod, and what they and the driver's own programs need.

    Args:
        folder: Where to; it becomes the image's root.
        driver: The driver's user space; it may be a layer that is not here.
        libraries: The folder in it with its libraries.
        tool: Runs readelf and the dynamic loader.
        root: Of the base image.

    Returns:
        The driver's programs that do not start in the pod, with the reasons.

    Raises:
        ExtraError: A program of the pod's own is missing, or a library that it needs.
    """
    folders = [place for place in _FOLDERS if (root / place).is_dir()]
    found = {
        name: f"/{place}/{name}"
        for name in _POD_PROGRAMS
        for place in reversed(folders)
        if (root / place / name).is_file()
    }
    if missing := [name for name in _POD_PROGRAMS if name not in found]:
        raise ExtraError(f"the base image has no {', '.join(missing)}")
    paths = _with_libraries([*found.values()], tool, root)
    beside = driver / libraries.lstrip("/")
    left_out = {}
    for path in sorted(driver.glob("usr/*bin/*")):
        if path.is_symlink() or path.read_bytes()[:4] != _ELF:
            continue
        try:
            paths |= _with_libraries([str(path)], tool, root, beside)
        except (ExtraError, RuntimeError) as error:
            # A library is missing, or the loader refuses the program.
            left_out[path.name] = _reason(error)
    libc = next(PurePosixPath(path) for path in sorted(paths) if path.endswith("/libc.so.6"))
    parts = [str(libc.with_name(name)) for name in _PARTS_OF_LIBC]
    paths |= {part for part in parts if (root / part.lstrip("/")).is_file()}
    _copy((path for path in paths if not path.startswith(str(driver))), folder, root)
    return left_out


def _copy(paths: Iterable[str], folder: Path, root: Path) -> None:
    for path in sorted(paths):
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path.lstrip("/"), target)
        target.chmod(_EXECUTABLE)
    for made in sorted(folder.rglob("*"), reverse=True):
        os.utime(made, (0, 0))


def _with_libraries(
    programs: Sequence[str], tool: Tool, root: Path, beside: Path | None = None
) -> set[str]:
    found: set[str] = set()
    wanted = list(programs)
    while wanted:
        path = wanted.pop()
        file = root / path.lstrip("/")
        if not file.is_file():
            raise ExtraError(f"the base image has no {path}")
        found.add(path)
        with file.open("rb") as stream:
            first = stream.readline(256)
        if first.startswith(b"#!"):
            # EL's coreutils may be one program, and cp a line that names it.
            script = first[2:].split()[0].decode()
            wanted += [script] if script not in found else []
        elif loader := _INTERPRETER.search(tool(["readelf", "--program-headers", "--wide", path])):
            found |= _libraries(path, loader[1], tool, beside)
    return found


def _libraries(program: str, loader: str, tool: Tool, beside: Path | None) -> set[str]:
    """Return a program's loader and libraries, where they are found without the image's cache.

    As ldd does: ``--list`` ends at the first library that is missing.
    """
    path = ["--library-path", str(beside)] if beside else []
    said = tool(["env", "LD_TRACE_LOADED_OBJECTS=1", loader, "--inhibit-cache", *path, program])
    if missing := sorted({*_NOT_FOUND.findall(said)}):
        raise ExtraError(
            f"{PurePosixPath(program).name} needs {', '.join(missing)}, which neither the base"
            " image nor a package of the build has"
        )
    lines = (_LIBRARY.match(line) for line in said.splitlines())
    return {loader, *(line[1] for line in lines if line)}


def add_needs(out: Path, work: Path, tool: Tool) -> bool:
    """Add the module that asks for what the driver needs of the kernel's own, if it needs any.

    The artifact stays as it is until all is made.

    Args:
        out: The artifact, as the collector left it; its manifest gets ``kmm``.
        work: A new folder to build in.
        tool: Runs make, strip, modinfo, ld and depmod.

    Returns:
        Whether one was added.
    """
    path = out / "driver/manifest.json"
    manifest = json.loads(path.read_text())
    needed = _needed(manifest)
    if not needed:
        return False
    kernel = manifest["pin"]["kernel"]["release"]
    name = manifest["pin"]["driver"]["name"].replace("-", "_") + "_needs"
    folder = out / "lib/modules" / kernel
    module = work / "out/lib/modules" / kernel / f"{name}.ko"
    module.parent.mkdir(parents=True)
    for built in folder.glob("*.ko"):
        os.link(built, module.with_name(built.name))
    tool(
        ["strip", "--strip-debug", "-o", str(module), str(_built(name, needed, work, kernel, tool))]
    )
    module.chmod(_PLAIN)
    _index(work, manifest, module, tool)
    manifest["kmm"] = {
        "name": name,
        "path": f"lib/modules/{kernel}/{module.name}",
        "sha256": hashlib.sha256(module.read_bytes()).hexdigest(),
        "size": module.stat().st_size,
        "vermagic": tool(["modinfo", "-F", "vermagic", str(module)]).strip(),
    }
    _keep_for_hosts(out, folder, kernel)
    for made in module.parent.iterdir():
        if made == module or made.suffix != ".ko":
            shutil.copyfile(made, folder / made.name)
            (folder / made.name).chmod(_PLAIN)
    _write(path, manifest)
    return True


def _needed(manifest: dict[str, Any]) -> list[str]:
    """Return the kernel's own modules that those need which every host loads."""
    own = {module["name"] for module in manifest["modules"]}
    optional = set(manifest["host"].get("optional", ()))
    wanted = [m for m in manifest["modules"] if m["name"] not in optional]
    return sorted({name for m in wanted for name in m["depends"] if name not in own})


def _keep_for_hosts(out: Path, folder: Path, kernel: str) -> None:
    """Keep modules.dep as it is, beside links to the modules."""
    kept = out / "host/lib/modules" / kernel
    kept.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".ko":
            (kept / path.name).symlink_to(f"../../../../lib/modules/{kernel}/{path.name}")
        else:
            shutil.copyfile(path, kept / path.name)


def _built(name: str, needed: Sequence[str], work: Path, kernel: str, tool: Tool) -> Path:
    names = ", ".join(f'"{module}"' for module in needed)
    source = work / "source"
    source.mkdir(parents=True)
    (source / f"{name}.c").write_text(_SOURCE.format(name=name, names=names))
    (source / "Makefile").write_text(f"obj-m := {name}.o\n")
    tool(["make", "-C", f"/lib/modules/{kernel}/build", f"M={source}", "modules"])
    return source / f"{name}.ko"


def _index(work: Path, manifest: dict[str, Any], needs: Path, tool: Tool) -> None:
    """Make modules.dep and its kin, with the new module before those that need something.

    depmod goes by the symbols that modules lack. So it is shown copies that lack the new module's.
    """
    kernel = needs.parent.name
    _depmod(work / "out", kernel, tool)
    own = {module["name"] for module in manifest["modules"]}
    shown = work / "shown/lib/modules" / kernel
    shown.mkdir(parents=True)
    shutil.copyfile(needs, shown / needs.name)
    for module in manifest["modules"]:
        name = Path(module["path"]).name
        if set(module["depends"]) - own:
            out = str(shown / name)
            tool(["ld", "-r", "-u", needs.stem, str(needs.with_name(name)), "-o", out])
        else:
            shutil.copyfile(needs.with_name(name), shown / name)
    _depmod(work / "shown", kernel, tool)
    for name in _DEPENDENCIES:
        shutil.copyfile(shown / name, needs.parent / name)


def _depmod(out: Path, kernel: str, tool: Tool) -> None:
    stand_ins = [out / "lib/modules" / kernel / name for name in _KERNEL_LISTS]
    for path in stand_ins:
        path.touch()
    # Some builds of kmod (SUSE's) look below usr/lib/modules only.
    link = out / "usr/lib/modules"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../lib/modules")
    tool(["depmod", "-b", str(out), kernel])
    shutil.rmtree(out / "usr")
    for path in stand_ins:
        path.unlink()


def _write(path: Path, manifest: dict[str, Any]) -> None:
    path.write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n")


def leave_out(path: Path, what: str, reason: str) -> None:
    """Have the manifest in a file say what an artifact lacks, and why."""
    manifest = json.loads(path.read_text())
    manifest.setdefault("left_out", {})[what] = reason
    _write(path, manifest)
    sys.stdout.write(f"extras: left out: {what}: {reason}\n")


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split())
    # The others say little without their names: a KeyError, only the key.
    is_clear = isinstance(error, (ExtraError, OSError, RuntimeError))
    return said if is_clear else f"{type(error).__name__}: {said}"


def main(arguments: Sequence[str], tool: Tool) -> None:
    """Run the program: the artifact's folder, its user space, and folders for programs."""
    out, userspace, shell, pod = (Path(argument) for argument in arguments)
    path = out / "driver/manifest.json"
    root = json.loads(path.read_text())["host"]["root"]
    # Never empty: Docker's classic builder fails at what comes after an empty layer.
    for folder in (shell / "bin", pod / "usr/bin"):
        folder.mkdir(parents=True)

    def attempt(extra: str, make: Callable[[], object]) -> bool:
        # Whatever it is: no extra stops a build.
        try:
            make()
        except Exception as error:
            leave_out(path, extra, _reason(error))
            return False
        return True

    def make_pod() -> None:
        # The pod's scripts run in the shell that KMM starts.
        add_shell(shell, tool)
        lacking = add_pod_programs(pod, userspace / "driver", root["libraries"], tool)
        for name, reason in lacking.items():
            leave_out(path, f"{DRIVER_POD}/{name}", reason)
        # It lies beside this file in the build container, where there is no package.
        importlib.import_module("loader_script").write_pod(out, Path(__file__).parent, tool)

    if attempt(KMM, lambda: add_shell(shell, tool)):
        attempt(KMM, lambda: add_needs(out, Path("/provision/needs"), tool))
    if root and root["pod"] and not attempt(DRIVER_POD, make_pod):
        _refuse(out.parent / "usr/bin" / root["pod"]["command"])


def _refuse(command: Path) -> None:
    """Write a command that says to an operator that its image has no driver pod."""
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(
        "#!/bin/sh\n"
        "echo 'This image has no driver pod: its build left that out, and"
        " /opt/driver/manifest.json says why (left_out).' >&2\n"
        "exit 1\n"
    )
    command.chmod(_EXECUTABLE)
