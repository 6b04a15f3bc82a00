"""Writes the scripts of an artifact: its loader, and the command of its driver pod.

The loader loads the modules, wherever the artifact is; ``kmod/loader.py`` writes that of a host's
store. In the build container, with Python's standard library only, ``collect.py`` has both written
for the image itself, which a GPU operator starts as a pod. What ``[host.root.pod]`` of the recipe
says is in the manifest.

Both are a text in ``templates/loader`` behind a head of shell variables and functions.
"""

from __future__ import annotations

import json
import re
import shlex
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Runs a program and returns its standard output.
Tool = Callable[[Sequence[str]], str]

_BUILD_ID = re.compile(r"Build ID: ([0-9a-f]+)")
# Characters that a shell would not take literally in a file name or pattern.
_NO_PATTERN = re.compile(r"[^A-Za-z0-9._/*?\[\]!-]")
_EACH = """
# each ACTION: call it as ACTION NAME required|optional BUILD_ID SRCVERSION VERSION FILE SHA256
# PARAMETER..., module by module in the order of loading; ends with the first that fails.
"""
_EXECUTABLE = 0o755


class Identity(NamedTuple):
    """By what a loaded module is recognised as the artifact's, and its file as undamaged."""

    build_id: str
    srcversion: str
    version: str
    sha256: str


class Place(NamedTuple):
    """Where a loader's artifact is when it runs.

    Attributes:
        entry: The artifact's folder.
        is_here: Whether that is a path of the loader's own file system, and not of the host's.
        vendor_file: A vendor file that comes and goes with the modules; empty: something else
            writes it.
        firmware: Firmware to offer to the kernel: the path in the artifact by the kernel's name.
    """

    entry: str
    is_here: bool = False
    vendor_file: str = ""
    firmware: Mapping[str, str] = {}


def loader(
    body: str,
    manifest: Mapping[str, Any],
    place: Place,
    identities: Mapping[str, Identity],
    *,
    tag: str = "",
    parameters: Mapping[str, Sequence[str]] | None = None,
    without: Sequence[str] = (),
    only_unloaded: Sequence[str] = (),
) -> str:
    """Return the loader of an artifact.

    Args:
        body: The text of ``templates/loader/load.sh``.
        manifest: The artifact's manifest, as JSON has it.
        tag: A line by which a loader that is up to date is recognised.
        parameters: Parameters by module, as arguments of modprobe.
        without: Modules of the artifact that are neither loaded nor unloaded.
        only_unloaded: Modules that something else loads.

    Raises:
        ValueError: A value can't stand in a script.
    """
    host = manifest["host"]
    own = {module["name"] for module in manifest["modules"]}
    optional = set(host["optional"])
    known = [module for module in in_order(manifest["modules"]) if module["name"] not in without]
    order = [module for module in known if module["name"] not in only_unloaded]
    required = [module for module in order if module["name"] not in optional]
    needed = {name for module in required for name in module["depends"]} - own
    nice = {name for module in order for name in module["depends"]} - own - needed
    driver, kernel = manifest["pin"]["driver"], manifest["pin"]["kernel"]["release"]
    values = {
        "driver": driver["name"],
        "kernel": kernel,
        "entry": place.entry,
        "place": "here" if place.is_here else "host",
        "modules": "/host" if manifest.get("kmm") else "",
        "names": " ".join(module["name"] for module in known),
        "conflicts": " ".join(host["conflicts"]),
        "needed": " ".join(sorted(needed)),
        "nice_to_have": " ".join(sorted(nice)),
        "has_firmware": "yes" if place.firmware else "no",
        "vendor_file": place.vendor_file,
    }
    calls = [
        [
            module["name"],
            "optional" if module["name"] in optional else "required",
            *identities[module["name"]][:3],
            module["path"],
            identities[module["name"]].sha256,
            *(parameters or {}).get(module["name"], ()),
        ]
        for module in order
    ]
    nodes = host["nodes"]
    return "".join(
        [
            f"#!/bin/sh\n# {tag}\n",
            f"# Written by provision for {driver['name']} {_printable(driver['version'])}.\n",
            "# shellcheck disable=SC2086 # one word a name\n",
            *(f"{name}={word(value)}\n" for name, value in values.items()),
            _EACH,
            _function("each", [f'"$1" {" ".join(map(word, call))}' for call in calls]),
            _function("nodes", [_made(node) for node in nodes]),
            _function("old_nodes", [_dropped(node) for node in nodes]),
            _function(
                "firmware",
                [
                    f'"$1" {word(name)} {word(path)}'
                    for name, path in sorted(place.firmware.items())
                ],
            ),
            "\n",
            body,
        ]
    )


def in_order(modules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return modules, each after those of them that it depends on."""
    left = {module["name"]: module for module in modules}
    found: list[Mapping[str, Any]] = []
    while left:
        free = [name for name, one in left.items() if not left.keys() & set(one["depends"])]
        # Of a circle, which the kernel would not load either, whichever.
        found += [left.pop(name) for name in free or [next(iter(left))]]
    return found


def word(text: str) -> str:
    """Return a text as one word of a shell line; a ``ValueError``: it holds a control character."""
    return shlex.quote(_printable(text))


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(
            f"{text!r} can't stand in the loader's script: it holds a control character."
        )
    return text


def _pattern(text: str) -> str:
    """Return a glob as one word, in which only the glob's characters are special."""
    return _NO_PATTERN.sub(r"\\\g<0>", _printable(text))


def _function(name: str, lines: Sequence[str]) -> str:
    body = "".join(f"    {line} || return\n" for line in lines) or "    :\n"
    return f"{name}() {{\n{body}}}\n"


def _made(node: Mapping[str, Any]) -> str:
    each, name, major, mode = (
        node["each"],
        word(node["name"]),
        word(str(node["major"])),
        node["mode"],
    )
    if each is None:
        return f"make_node {name} {major} {node['minor']} {mode}"
    files = f'"$root"/{_pattern(each["files"])}'
    return f"make_numbered {name} {major} {mode} {word(each['field'])} {files}"


def _dropped(node: Mapping[str, Any]) -> str:
    name = _pattern(node["name"].replace("{minor}", "[0-9]*"))
    return f'drop_nodes {word(str(node["major"]))} "$root"/dev/{name}'


def pod_command(body: str, manifest: Mapping[str, Any], defaults: Sequence[str]) -> str:
    """Return the command that a GPU operator starts in a pod of the image.

    ``body`` is ``templates/loader/pod.sh``; ``defaults`` are our parameters: ``MODULE
    PARAMETER=VALUE``.
    """
    root = manifest["host"]["root"]
    pod = root["pod"]
    programs = {
        file["path"].rpartition("/")[2] for file in manifest["files"] if file["kind"] == "binary"
    }
    daemon = pod["daemon"] if pod["daemon"] and pod["daemon"][0] in programs else []
    values = {
        "command": pod["command"],
        "folder": root["path"].rpartition("/")[0],
        "offered": root["path"],
        "parameters": pod["parameters"],
        "names": " ".join(module["name"] for module in manifest["modules"]),
        "sidecars": " ".join(pod["sidecars"]),
        "modules": "/host" if manifest.get("kmm") else "",
        "firmware": _firmware_folder(manifest),
        "daemon_pid": pod["daemon_pid"] if daemon else "",
    }
    return "".join(
        [
            "#!/bin/sh\n",
            *(f"{name}={word(value)}\n" for name, value in values.items()),
            _function("own_parameters", [f"echo options {word(line)}" for line in defaults]),
            _function("start_daemon", [" ".join(map(word, daemon))] if daemon else []),
            body,
        ]
    )


def _firmware_folder(manifest: Mapping[str, Any]) -> str:
    for file in manifest["files"]:
        before, found, _ = file["path"].partition("/lib/firmware/")
        if file["kind"] == "firmware" and found:
            return f"{before}/lib/firmware"
    return ""


def write_pod(out: Path, scripts: Path, tool: Tool) -> bool:
    """Write loader and command of the driver pod into an image; return if it is to have them.

    ``out`` is the artifact as the collector left it, which the image has as ``/opt``; ``tool`` runs
    modinfo and readelf.
    """
    manifest = json.loads((out / "driver/manifest.json").read_text())
    root = manifest["host"]["root"]
    if not root or not root["pod"]:
        return False
    pod = root["pod"]
    identities = {
        module["name"]: _identity(out / module["path"], module, tool)
        for module in manifest["modules"]
    }
    text = loader(
        (scripts / "load.sh").read_text(),
        manifest,
        Place("/opt", is_here=True),
        identities,
        without=pod["without"],
        only_unloaded=pod["sidecars"],
    )
    _write(out.parent / "usr/lib/provision/load", text)
    defaults = [
        f"{module['name']} {parameter}"
        for module in manifest["modules"]
        for parameter in pod["defaults"].get(module["name"], [])
        if _has_parameter(out / module["path"], parameter.partition("=")[0], tool)
    ]
    text = pod_command((scripts / "pod.sh").read_text(), manifest, defaults)
    _write(out.parent / "usr/bin" / pod["command"], text)
    return True


def _has_parameter(path: Path, name: str, tool: Tool) -> bool:
    lines = tool(["modinfo", "-F", "parmtype", str(path)]).splitlines()
    return name in {line.partition(":")[0] for line in lines}


def _identity(path: Path, module: Mapping[str, Any], tool: Tool) -> Identity:
    """Return by what a module is recognised, as kmod/modules.py reads it on hosts."""
    found = _BUILD_ID.search(tool(["readelf", "--notes", "--wide", str(path)]))
    note = _note(bytes.fromhex(found[1])) if found else b""
    srcversion = tool(["modinfo", "-F", "srcversion", str(path)]).strip()
    return Identity(note.hex(), srcversion, module["version"] or "", module["sha256"])


def _note(build_id: bytes) -> bytes:
    """Return the note of a build id, as /sys/module has it: elf(5), NT_GNU_BUILD_ID."""
    return struct.pack("=III", 4, len(build_id), 3) + b"GNU\0" + build_id


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(_EXECUTABLE)
