"""Collects what a build made, and writes the artifact's manifest.

Runs in the build container, with Python's standard library only:
``python3 step.py collect build.json SOURCE OUT USERSPACE`` copies the modules and the user space
that build.json names from SOURCE to OUT, in the layout that Kubernetes' KMM expects
(``lib/modules/<kernel>``, https://kmm.sigs.k8s.io/documentation/module_loader/), and describes
them in ``OUT/driver/manifest.json``. All that is missing is reported together.

User space is moved to USERSPACE then, and all times are set to 0: both become a layer each, and
that of user space has the same bytes for every kernel.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
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


def main(arguments: Sequence[str], tool: Tool) -> None:
    """Run the collector: plan, source folder, folder to fill, folder for user space."""
    plan_file, source, out, userspace = (Path(argument) for argument in arguments)
    plan = json.loads(plan_file.read_text())
    listed = plan_file.with_name("userspace.json")
    if listed.is_file():
        plan["userspace"] = json.loads(listed.read_text())["files"]
    manifest = collect(plan, source, out, tool)
    _split(out, userspace)
    text = json.dumps(manifest, sort_keys=True, indent=1) + "\n"
    (out / "driver").mkdir()
    (out / "driver/manifest.json").write_text(text)
    for folder in (out, userspace):
        _set_times(folder.parent)
    sys.stdout.write(
        f"collect: {len(manifest['modules'])} modules, {len(manifest['files'])} files\n"
    )
