"""Collects what a build made, writes the artifact's manifest, and adds what only exports need.

Runs in the build container, with Python's standard library only:
``python3 step.py collect build.json SOURCE OUT USERSPACE SHELL POD`` copies the modules and the
user space that build.json names from SOURCE to OUT, in the layout that Kubernetes' KMM expects
(``lib/modules/<kernel>``, https://kmm.sigs.k8s.io/documentation/module_loader/), and describes
them in ``OUT/driver/manifest.json``. All that is missing is reported together. User space is moved
to USERSPACE then, and all times are set to 0: both become a layer each, and that of user space has
the same bytes for every kernel.

An extra that can't be made never stops the build: it is left out, and the manifest's ``left_out``
says why. KMM runs the image itself: ``sh -c 'mkdir -p …; cp -R …'`` copies
``/opt/lib/modules/<kernel>`` to a pod, where ``modprobe -d`` loads one module by the
``modules.dep`` that was copied (https://kmm.sigs.k8s.io/documentation/kmod_image/). So ``SHELL``
gets the base image's sh, mkdir and cp with their libraries. And because no ``modules.dep`` of a
build can know where a host keeps modules of its own, those that need some get a module beside them
which asks the kernel for them: ``<driver>_needs``. KMM's ``modules.dep`` has it before them.
``OUT/host`` keeps the one without it, for hosts that load what is needed by themselves.

A GPU operator starts the image as a driver pod, if the recipe says so (``[host.root.pod]``).
``POD`` gets what its scripts start (``loader_script.py``), and the libraries of the driver's own
programs, which the packages of the build bring: the Pin has what theirs depend on.
"""

from __future__ import annotations

import difflib
import gzip
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

_CHUNK = 1 << 20
_EXECUTABLE = 0o755
_PLAIN = 0o644
# Of the modules that a build made, where one is missing.
_SHOWN = 20
# What a kernel's own build writes beside its modules.
_KERNEL_LISTS = ("modules.builtin", "modules.builtin.modinfo", "modules.order")
_PCI_ALIAS = re.compile(
    r"pci:v(?P<vendor>\*|[0-9A-F]{8})d(?P<device>\*|[0-9A-F]{8})sv[^b]*"
    r"bc(?P<base>\*|[0-9A-F]{2})sc(?P<sub>\*|[0-9A-F]{2})i"
)
_SONAME = re.compile(r"\(SONAME\)[^\[]*\[([^\]]*)\]")
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
_DEPENDENCIES = ("modules.dep", "modules.dep.bin")
_ELF = b"\x7fELF"
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


class CollectError(Exception):
    """What the build lacks or got wrong, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def collect(plan: dict[str, Any], source: Path, out: Path, tool: Tool) -> dict[str, Any]:
    """Fill ``out`` and return the manifest.

    Args:
        plan: The content of build.json.
        source: The folder that holds the built tree and the unpacked packages.
        out: The folder to fill.
        tool: Runs strip, depmod, modinfo and readelf.

    Raises:
        CollectError: Modules or files are missing, clash, or are of another kernel.
    """
    problems: list[str] = []
    aliases: list[str] = []
    modules = _modules(plan, source, out, tool, problems, aliases)
    files = _files(plan["files"], source, out, tool, problems)
    files += _listed(plan, {file["path"] for file in files}, problems)
    problems += _without_program(plan.get("check"), files)
    if plan["host"].get("root"):
        files += _foreign_links(files, plan["host"]["root"]["libraries"], out)
    if problems:
        raise CollectError(problems)
    _depmod(out, plan["kernel"], tool)
    return {
        "schema": 1,
        "pin": plan["pin"],
        "pin_digest": plan["pin_digest"],
        "licences": plan["licences"],
        "modules": modules,
        "files": sorted(files, key=lambda file: str(file["path"])),
        "container": plan["container"],
        "host": plan["host"],
        "check": plan.get("check"),
        "cards": _supported(plan, source) or driven_by(aliases),
    }


def _without_program(check: dict[str, Any] | None, files: list[dict[str, Any]]) -> list[str]:
    """Return that none of an artifact's programs is that of its check; a build may have none."""
    programs = [file["path"].rpartition("/")[2] for file in files if file.get("kind") == "binary"]
    name = check["command"][0] if check else ""
    names = {known for file in files for known in (file["path"], file["path"].rpartition("/")[2])}
    if check is None or not programs or name in names:
        return []
    near = difflib.get_close_matches(name, programs, n=1)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    listed = ", ".join(sorted(set(programs)))
    return [f"[check] command: the artifact has no '{name}'{meant} (its programs: {listed})"]


def _supported(plan: dict[str, Any], source: Path) -> list[dict[str, Any]]:
    """Return the cards on the list that the source has of them; none if it has no such list."""
    for path in (path for name in plan["cards"] for path in _matches(source, name)):
        try:
            text = path.read_bytes()
            chips = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)["chips"]
            ids = nvidia_ids(chips, is_open=plan["pin"]["driver"]["flavour"] == "open")
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
            # Its modules are as good without it.
            sys.stdout.write(f"collect: {path.name} is no list of cards: {error!r}\n")
            continue
        return [{"vendor": "10de", "devices": ids, "classes": []}]
    return []


def nvidia_ids(chips: list[dict[str, Any]], *, is_open: bool) -> list[str]:
    """Return the ids of the devices that a flavour of NVIDIA's modules drives, by its own list.

    Where the list says of any card that the proprietary modules drive it beside the open ones, they
    drive only those; older lists say nothing of it. Source: nvidia-driver-assistant of
    https://github.com/NVIDIA/nvidia-driver-assistant.
    """
    living = [chip for chip in chips if "legacybranch" not in chip]
    has_both = any("gsp_proprietary_supported" in chip["features"] for chip in living)

    def is_driven(features: list[str]) -> bool:
        takes_open = "kernelopen" in features
        if is_open:
            return takes_open
        return not (takes_open and has_both) or "gsp_proprietary_supported" in features

    return sorted({f"{int(c['devid'], 16):04x}" for c in living if is_driven(c["features"])})


def driven_by(aliases: Iterable[str]) -> list[dict[str, Any]]:
    """Return the PCI devices that modules drive by their aliases; none if they take any vendor's.

    Source: file2alias.c of Linux, do_pci_entry(). What a subsystem restricts is not looked at.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for alias in aliases:
        match = _PCI_ALIAS.match(alias)
        if match is None:
            continue
        if match["vendor"] == "*":
            return []
        device, base, sub = match["device"], match["base"], match["sub"]
        kind = "" if base == "*" else f"{base}{'' if sub == '*' else sub}".lower()
        place = (match["vendor"][-4:].lower(), kind)
        found.setdefault(place, set()).add("*" if device == "*" else device[-4:].lower())
    return [
        {
            "vendor": vendor,
            "devices": [] if "*" in devices else sorted(devices),
            "classes": [kind] if kind else [],
        }
        for (vendor, kind), devices in sorted(found.items())
    ]


def _modules(
    plan: dict[str, Any],
    source: Path,
    out: Path,
    tool: Tool,
    problems: list[str],
    aliases: list[str],
) -> list[dict[str, Any]]:
    kernel = plan["kernel"]
    folder = out / "lib/modules" / kernel
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for built in _built(plan, source, problems):
        name = built.name
        module = folder / name
        # Debug information is most of a module's size, and no use without a debug kernel.
        tool(["strip", "--strip-debug", "-o", str(module), str(built)])
        module.chmod(_PLAIN)
        information = tool(["modinfo", "-0", str(module)])
        aliases += [f[6:] for f in information.split("\0") if f.startswith("alias=")]
        entry = _module_entry(module, out, information)
        if str(entry["vermagic"]).split(" ", 1)[0] != kernel:
            problems.append(f"{name} is built for '{entry['vermagic']}', not for {kernel}")
        found.append(entry)
    return found


def _built(plan: dict[str, Any], source: Path, problems: list[str]) -> list[Path]:
    """Find the modules; each name may be a glob."""
    built: list[Path] = []
    folder = source / plan["directory"]
    for name in plan["modules"]:
        found = sorted(path for path in folder.glob(name) if path.is_file())
        if not found:
            made = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ko"))[:_SHOWN]
            listed = ", ".join(made) or "no module"
            problems.append(f"the build did not make the module {name}; it made: {listed}")
        built += found
    return built


def _module_entry(module: Path, out: Path, information: str) -> dict[str, Any]:
    fields = parse_modinfo(information)
    depends = fields.get("depends", "")
    return {
        "name": fields.get("name", module.stem.replace("-", "_")),
        "path": str(module.relative_to(out)),
        "sha256": _sha256(module),
        "size": module.stat().st_size,
        "vermagic": fields.get("vermagic", ""),
        "version": fields.get("version"),
        "licence": fields.get("license"),
        # Names as /proc/modules has them; files may spell them with dashes.
        "depends": [name.replace("-", "_") for name in depends.split(",") if name],
    }


def _depmod(out: Path, kernel: str, tool: Tool) -> None:
    """Make modules.dep and its kin, without the kernel's own lists, which depmod would miss."""
    folder = out / "lib/modules" / kernel
    stand_ins = [folder / name for name in _KERNEL_LISTS]
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


def parse_modinfo(output: str) -> dict[str, str]:
    """Return the fields of ``modinfo -0``; of a field that comes more than once, the first."""
    fields: dict[str, str] = {}
    for item in output.split("\0"):
        key, separator, value = item.partition("=")
        if separator:
            fields.setdefault(key, value.strip())
    return fields


def parse_soname(output: str) -> str | None:
    """Return the SONAME in the output of ``readelf --dynamic --wide``, if there is one."""
    match = _SONAME.search(output)
    return match.group(1) if match else None


def _files(
    wanted: list[dict[str, Any]], source: Path, out: Path, tool: Tool, problems: list[str]
) -> list[dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for rule in wanted:
        matches = _matches(source, rule["from"])
        if not matches:
            problems.append(f"there is no file {rule['from']} ({rule['kind']})")
        placed = [entry for match in matches for entry in _place(match, rule, out, tool)]
        problems += [
            f"two different files want to be {entry['path']}"
            for entry in placed
            if entries.setdefault(entry["path"], entry) != entry
        ]
    return list(entries.values())


def _listed(plan: dict[str, Any], known: set[str], problems: list[str]) -> list[dict[str, Any]]:
    """Return what is said of user space that is a layer of its own, with the features that are."""
    entries: list[dict[str, Any]] = plan.get("userspace", [])
    problems += [
        f"two different files want to be {entry['path']}"
        for entry in entries
        if entry["path"] in known
    ]
    return [
        dict(entry, features=[f for f in entry["features"] if f in plan["container"]["features"]])
        for entry in entries
    ]


def _matches(source: Path, pattern: str) -> list[Path]:
    """Find files below ``source``, with symbolic links resolved.

    Distros moved their root folders below /usr (https://wiki.debian.org/UsrMerge): one release's
    packages hold lib/firmware, the next one's usr/lib/firmware. Both spellings mean the same file.
    """
    other = pattern.removeprefix("usr/") if pattern.startswith("usr/") else f"usr/{pattern}"
    root = source.resolve()
    for spelling in (pattern, other):
        found = {path.resolve() for path in source.glob(spelling)}
        inside = sorted(path for path in found if path.is_file() and path.is_relative_to(root))
        if inside:
            return inside
    return []


def _place(match: Path, rule: dict[str, Any], out: Path, tool: Tool) -> list[dict[str, Any]]:
    kind = rule["kind"]
    path = rule["to"] + match.name if rule["to"].endswith("/") else rule["to"]
    target = out / "driver" / path.lstrip("/")
    # Some libraries are programs too: libonload.so prints its version.
    executable = kind == "binary" or match.stat().st_mode & 0o111
    if not target.exists():
        _copy(match, target, _EXECUTABLE if executable else _PLAIN)
    soname = _soname(target, tool) if kind == "library" else None
    common = {"kind": kind, "features": rule["features"]}
    entry = common | {
        "path": path,
        "sha256": _sha256(match),
        "size": match.stat().st_size,
        "mode": f"{target.stat().st_mode & 0o7777:04o}",
        "soname": soname,
        "elf_class": _elf_class(target) if kind == "library" else None,
        "link": None,
    }
    names = {*rule["links"], *([soname] if soname else [])} - {target.name}
    return [entry, *(_link(target, name, path, common) for name in sorted(names))]


def _link(target: Path, name: str, path: str, common: dict[str, Any]) -> dict[str, Any]:
    link = target.with_name(name)
    if not link.is_symlink() and not link.exists():
        link.symlink_to(target.name)
    return _link_entry(f"{path.rpartition('/')[0]}/{name}", target.name, common)


def _link_entry(path: str, link: str, common: dict[str, Any]) -> dict[str, Any]:
    return common | {
        "path": path,
        "sha256": None,
        "size": None,
        "mode": None,
        "soname": None,
        "elf_class": None,
        "link": link,
    }


def _foreign_links(files: list[dict[str, Any]], folder: str, out: Path) -> list[dict[str, Any]]:
    """Link each library in the folder in which other systems look for it."""
    taken = {file["path"] for file in files}
    # Of the architecture's smaller sibling, whose libraries have the same names.
    small = {_parent(file) for file in files if file["elf_class"] == 32}  # noqa: PLR2004
    found = []
    for file in files:
        name = f"{folder}/{file['path'].rpartition('/')[2]}"
        if file["kind"] != "library" or _parent(file) in small or name in taken:
            continue
        taken.add(name)
        link = os.path.relpath(file["path"], folder)
        place = out / "driver" / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(link)
        # No library of its own: neither containers nor the host's loader get it.
        found.append(_link_entry(name, link, {"kind": "miscellaneous", "features": []}))
    return found


def _parent(file: dict[str, Any]) -> str:
    return str(file["path"]).rpartition("/")[0]


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    # Set-id bits have no place in a folder that containers see.
    target.chmod(mode)


def _elf_class(path: Path) -> int | None:
    """Return 32 or 64; None for what is no ELF file.

    Source: System V ABI, chapter 4, e_ident[EI_CLASS].
    """
    with path.open("rb") as stream:
        magic, kind = stream.read(4), stream.read(1)
    return {b"\1": 32, b"\2": 64}.get(kind) if magic == b"\x7fELF" else None


def _soname(path: Path, tool: Tool) -> str | None:
    if _elf_class(path) is None:
        return None
    return parse_soname(tool(["readelf", "--dynamic", "--wide", str(path)]))


def _sha256(path: Path) -> str:
    # hashlib.file_digest came with Python 3.11; the oldest that this runs on is 3.9.
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _split(out: Path, userspace: Path) -> None:
    """Move user space, if there is any, to a folder of its own.

    The folder is there in any case: where a layer would be empty, Docker's classic builder fails at
    the next one ("layer does not exist": https://github.com/moby/moby/issues/37965).
    """
    userspace.mkdir(parents=True)
    if (out / "driver").is_dir():
        (out / "driver").rename(userspace / "driver")


def _set_times(folder: Path) -> None:
    """Set the times of all below a folder, and its own, to 0: they are part of a layer's bytes."""
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (0, 0), follow_symlinks=False)
    os.utime(folder, (0, 0))


class ExtraError(Exception):
    """Why an extra can't be made."""


def add_shell(folder: Path, tool: Tool, root: Path = Path("/")) -> None:
    """Copy the programs that KMM starts, and all that they need, from the base image.

    Args:
        folder: Where to; it becomes the image's root.
        tool: Runs readelf and the dynamic loader.
        root: Of the base image.

    Raises:
        ExtraError: A program or library is missing.
    """
    _copy_programs(_with_libraries(_PROGRAMS, tool, root), folder, root)


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
    _copy_programs((path for path in paths if not path.startswith(str(driver))), folder, root)
    return left_out


def _copy_programs(paths: Iterable[str], folder: Path, root: Path) -> None:
    for path in sorted(paths):
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path.lstrip("/"), target)
        target.chmod(_EXECUTABLE)


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
        [
            "strip",
            "--strip-debug",
            "-o",
            str(module),
            str(_compiled(name, needed, work, kernel, tool)),
        ]
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


def _compiled(name: str, needed: Sequence[str], work: Path, kernel: str, tool: Tool) -> Path:
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


def _write(path: Path, manifest: dict[str, Any]) -> None:
    path.write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n")


def leave_out(path: Path, what: str, reason: str) -> None:
    """Have the manifest in a file say what an artifact lacks, and why."""
    manifest = json.loads(path.read_text())
    manifest.setdefault("left_out", {})[what] = reason
    _write(path, manifest)
    sys.stdout.write(f"collect: left out: {what}: {reason}\n")


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split())
    # The others say little without their names: a KeyError, only the key.
    is_clear = isinstance(error, (ExtraError, OSError, RuntimeError))
    return said if is_clear else f"{type(error).__name__}: {said}"


def add_extras(out: Path, userspace: Path, shell: Path, pod: Path, tool: Tool) -> None:
    """Add the extras, or say in the manifest why one is left out."""
    path = out / "driver/manifest.json"
    root = json.loads(path.read_text())["host"].get("root")
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
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(
        "#!/bin/sh\n"
        "echo 'This image has no driver pod: its build left that out, and"
        " /opt/driver/manifest.json says why (left_out).' >&2\n"
        "exit 1\n"
    )
    command.chmod(_EXECUTABLE)


def main(arguments: Sequence[str], tool: Tool) -> None:
    """Run with the plan, the folder of sources, and those to fill."""
    plan_file, source, out, userspace, shell, pod = (Path(argument) for argument in arguments)
    plan = json.loads(plan_file.read_text())
    listed = plan_file.with_name("userspace.json")
    if listed.is_file():
        plan["userspace"] = json.loads(listed.read_text())["files"]
    manifest = collect(plan, source, out, tool)
    _split(out, userspace)
    (out / "driver").mkdir()
    _write(out / "driver/manifest.json", manifest)
    sys.stdout.write(
        f"collect: {len(manifest['modules'])} modules, {len(manifest['files'])} files\n"
    )
    add_extras(out, userspace, shell, pod, tool)
    for folder in (out.parent, userspace.parent, shell, pod):
        _set_times(folder)
