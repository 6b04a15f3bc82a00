"""Reads a dkms.conf that ``templates/dkms/dkms.bash`` has evaluated, and makes a driver.toml of it.

Variables and defaults: dkms(8) of DKMS 3,
https://github.com/dkms-project/dkms/blob/main/dkms.8.in
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from provision.catalogue import Recipe
from provision.documents import parse_json
from provision.errors import ProvisionError, UsageError
from provision.pin import ArchiveSource, GitSource

# The largest known output, that of DAHDI with 32 modules, has 4 kB.
MAX_BYTES = 1 << 20
# DKMS's own array of modules has no limit; the largest drivers have some forty.
_MAX_MODULES = 1000
_END = b"."
_INDEX = re.compile(r"[0-9]{1,6}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9.+~:_-]*")
_OF_MODULES = ("BUILT_MODULE_", "DEST_MODULE_")
_EXCLUSIVE = ("KERNEL", "KERNEL_MIN", "KERNEL_MAX", "ARCH", "CONFIG")
# What DKMS runs on the host, and a build does not.
_HOST_SCRIPTS = ("POST_ADD", "PRE_INSTALL", "POST_INSTALL", "POST_REMOVE")
_RESOLUTION = (
    "Correct the dkms.conf. A package's name or version in it may be a template that the vendor's"
    " own build fills in: run that build, and take the dkms.conf that it makes."
)

Variables = Mapping[tuple[str, int], str]


@dataclass(frozen=True, slots=True)
class BuiltModule:
    """One module of a dkms.conf.

    Attributes:
        built: Path of the file that the build makes, relative to the source, with ``.ko``.
        destination: Folder below ``/lib/modules/KERNEL`` that DKMS installs it to.
    """

    built: str
    name: str
    destination: str
    is_stripped: bool


@dataclass(frozen=True, slots=True)
class DkmsConf:
    """What a recipe, or its author, needs of a source with a dkms.conf; builds evaluate the rest.

    Attributes:
        exclusive: ``BUILD_EXCLUSIVE_…`` by the rest of the name. An index other than 0 follows in
            brackets, because the value is for one module then.
        licences: Those that the source names; only shown.
        pci: Devices that the source names by numbers: vendor and device, four digits each.
        unset: The variables that it uses and nothing sets.
    """

    name: str
    version: str
    modules: tuple[BuiltModule, ...]
    exclusive: Mapping[str, str] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    host_scripts: Mapping[str, str] = field(default_factory=dict)
    path: str = "dkms.conf"
    kernel: str = ""
    licences: tuple[str, ...] = ()
    pci: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()


def parse_variables(data: bytes) -> Variables:
    """Return the variables that the script printed, by name and index.

    Each is NAME, INDEX and VALUE. Each of these ends with a NUL, which no value of bash can hold.
    """
    if len(data) > MAX_BYTES:
        raise ProvisionError(
            f"The variables of the dkms.conf have more than {MAX_BYTES} bytes.",
            resolution="Look at what it sets: a dkms.conf of this size is no ordinary one.",
        )
    parts = data.split(b"\0")
    texts = iter(parts[:-1])
    records = list(zip(texts, texts, texts, strict=False))
    if parts[-1] or not records or records[-1] != (_END, b"0", b""):
        raise ProvisionError(
            "The dkms.conf ends itself before all of it is read.",
            resolution="Remove 'exit' and 'exec' from it: a dkms.conf only sets variables.",
        )
    found: dict[tuple[str, int], str] = {}
    for name, index, value in takewhile(lambda record: record[0] != _END, records):
        # The keys of an associative array are no indices, and DKMS ignores such arrays.
        if _INDEX.fullmatch(number := index.decode(errors="replace")):
            text = value.decode(errors="replace").removesuffix("\r")
            found[name.decode(errors="replace"), int(number)] = text
    return found


def read_conf(variables: Variables) -> DkmsConf:
    """Return the dkms.conf of variables, with DKMS's defaults."""
    last = max((index for name, index in variables if name.startswith(_OF_MODULES)), default=-1)
    if last >= _MAX_MODULES:
        raise UsageError(
            f"The dkms.conf names a module with the index {last}.",
            resolution=f"Count from 0; there may be {_MAX_MODULES} modules.",
        )
    modules = _modules(variables, last + 1)
    problems = list(_problems(variables, modules))
    if problems:
        raise UsageError(
            f"The dkms.conf has {len(problems)} mistake{'' if len(problems) == 1 else 's'}.",
            resolution=_RESOLUTION,
            details="\n".join(problems),
        )
    return DkmsConf(
        name=variables["PACKAGE_NAME", 0],
        version=variables["PACKAGE_VERSION", 0],
        modules=modules,
        exclusive={
            part if index == 0 else f"{part}[{index}]": variables[name, index]
            for part in _EXCLUSIVE
            for name, index in variables
            if name == f"BUILD_EXCLUSIVE_{part}" and variables[name, index]
        },
        depends=tuple(
            dict.fromkeys(
                word
                for key in sorted(variables)
                if key[0] == "BUILD_DEPENDS"
                for word in variables[key].split()
                if word != variables["PACKAGE_NAME", 0]
            )
        ),
        host_scripts={
            name: " ".join(script.split())
            for name in _HOST_SCRIPTS
            if (script := variables.get((name, 0), "").strip())
        },
    )


def _modules(variables: Variables, count: int) -> tuple[BuiltModule, ...]:
    first = variables.get(("STRIP", 0), "")
    found = []
    for index in range(count):
        name = variables.get(("BUILT_MODULE_NAME", index), "")
        if not name and count == 1:
            name = variables.get(("PACKAGE_NAME", 0), "")
        folder = variables.get(("BUILT_MODULE_LOCATION", index), "").strip("/")
        folder = "" if folder == "." else folder.removeprefix("./")
        strip = variables.get(("STRIP", index), "") or first
        found.append(
            BuiltModule(
                built=f"{folder}/{name}.ko".lstrip("/"),
                name=variables.get(("DEST_MODULE_NAME", index), "") or name,
                destination=variables.get(("DEST_MODULE_LOCATION", index), ""),
                is_stripped=not strip.lower().startswith("n"),
            )
        )
    return tuple(found)


def _problems(variables: Variables, modules: Sequence[BuiltModule]) -> Iterator[str]:
    for name in ("PACKAGE_NAME", "PACKAGE_VERSION"):
        text = variables.get((name, 0), "")
        if not text:
            yield f"{name} is not set"
        elif not _NAME.fullmatch(text):
            yield f"{name} is {text!r}, which is a template"
    yield from _module_problems(variables, modules)
    for name, count in Counter(module.name for module in modules if module.name).items():
        if count > 1:
            yield f"two modules are called {name}"


def _module_problems(variables: Variables, modules: Sequence[BuiltModule]) -> Iterator[str]:
    if not modules:
        yield "neither BUILT_MODULE_NAME nor DEST_MODULE_LOCATION is set"
    for index, module in enumerate(modules):
        if not module.name:
            yield f"BUILT_MODULE_NAME[{index}] is not set"
        for name in ("BUILT_MODULE_NAME", "DEST_MODULE_NAME"):
            text = variables.get((name, index), "")
            if text.endswith((".o", ".ko")) or "/" in text:
                yield f"{name}[{index}] is {text!r}: a name without a folder and .ko"
        if not module.destination:
            yield f"DEST_MODULE_LOCATION[{index}] is not set"


# Both stand in a recipe until its author corrects them. NOASSERTION is SPDX's word for "unknown".
UNKNOWN_LICENCE = "NOASSERTION"
_FEATURE = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a source with a dkms.conf.

    Attributes:
        packages: Tools that the build needs, as far as they are known.
        submodules: Folders of the repository that other repositories fill.
    """

    name: str
    package: str | None = None
    component: str = "main"
    release: ArchiveSource | GitSource | None = None
    packages: tuple[str, ...] = ()
    homepage: str | None = None
    submodules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A recipe, and what its author has to check."""

    name: str
    text: str
    unknown: tuple[str, ...]
    ignored: tuple[str, ...]


def draft_recipe(conf: DkmsConf, origin: Origin) -> Draft:
    """Write the recipe of a driver that brings a dkms.conf."""
    name = re.sub(r"[^a-z0-9._-]+", "-", conf.name.lower()).strip("-._")
    if not name:
        raise UsageError(
            f"No driver can be called after PACKAGE_NAME, which is '{conf.name}'.",
            resolution="Give the package a name with letters or digits in its dkms.conf.",
        )
    devices: dict[str, list[str]] = {}
    for vendor, device in conf.pci:
        devices.setdefault(vendor, []).append(device)
    flag = "OCI_" + re.sub(r"[^A-Z0-9]+", "_", name.upper())
    lines = [
        re.sub(r"[^ -~]", "?", f"# {conf.name} {conf.version}. Made from {conf.path}."),
        "schema = 1",
        f"name = {_text(name)}",
        f"summary = {_text(f'Kernel modules of {conf.name}')}",
        'vendor = "unknown"',
        f"homepage = {_text(origin.homepage or 'unknown')}",
    ]
    for vendor, found in devices.items():
        lines += ["", "[[hardware.pci]]", f"vendor = {_text(vendor)}", f"devices = {_list(found)}"]
    lines += [
        "",
        *_source(conf, origin),
        "",
        "[flavours.dkms]",
        f"licences = {_list([UNKNOWN_LICENCE])}",
        "",
        "[container]",
        f"activation_flag = {_text(flag)}",
        f"driver_feature = {_list([_FEATURE])}",
        "",
        f"[container.features.{_FEATURE}]",
        "devices = []",
    ]
    text = "\n".join(lines) + "\n"
    # The text must be readable; mistakes name this command's input.
    parse_json(json.dumps(tomllib.loads(text)), Recipe, name=f"recipe of {origin.name}")
    return Draft(name, text, tuple(_unknown(conf, origin)), tuple(_ignored(conf)))


def _text(value: str) -> str:
    # TOML's basic strings take JSON's escapes, but no pairs of surrogates, and no bare DEL:
    # https://toml.io/en/v1.0.0#string
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _source(conf: DkmsConf, origin: Origin) -> list[str]:
    lines = ["[source]", 'kind = "dkms"']
    if origin.package is not None:
        lines.append(f"package = {_text(origin.package)}")
        if origin.component != "main":
            lines.append(f"components = {_list([origin.component])}")
    if origin.packages:
        lines.append(f"packages = {_list(origin.packages)}")
    if origin.package is not None:
        return lines
    release = origin.release or ArchiveSource(
        url="https://vendor.example/source.tar.gz", sha256="0" * 64
    )
    lines += ["", "[[source.releases]]", f"version = {_text(conf.version)}"]
    lines += [f"url = {_text(release.url)}"]
    if isinstance(release, GitSource):
        lines.append(f"commit = {_text(release.commit)}")
    lines.append(f"sha256 = {_text(release.sha256)}")
    if isinstance(release, ArchiveSource) and release.strip != 1:
        lines.append(f"strip = {release.strip}")
    return lines


def _unknown(conf: DkmsConf, origin: Origin) -> Iterator[str]:
    said = f" The source says: {'; '.join(conf.licences)}." if conf.licences else ""
    yield f"licences: the licences of the modules, as SPDX expressions.{said}"
    yield "container.features: the device nodes that the modules make, below /dev, and features."
    if not conf.pci:
        yield "hardware.pci: the devices that the driver is for; none are named by numbers."
    yield (
        "host.conflicts: the kernel's own modules for the same hardware, which must not be loaded."
    )
    yield "vendor, summary, homepage: what people read."
    if origin.package is None and origin.release is None:
        yield (
            "source.releases: where the source can be downloaded, and its sha256. What stands there"
            " is a stand-in."
        )
    if origin.submodules:
        yield (
            f"source.releases.submodules: {', '.join(origin.submodules)} of the repository stay"
            " empty: those that the build needs, each with path, url, commit and sha256."
        )
    if origin.package is None:
        yield "source.packages: tools that the build needs besides compiler, make and headers."
    if conf.unset:
        yield (
            f"The dkms.conf uses {', '.join(conf.unset)}, which nothing sets: check whether the"
            " build needs it."
        )


def _ignored(conf: DkmsConf) -> Iterator[str]:
    for name, script in conf.host_scripts.items():
        yield (
            f"{name} ({script}) is not run: say in [host] and [[files]] what the host needs of it."
        )
    if conf.depends:
        yield (
            f"BUILD_DEPENDS names {', '.join(conf.depends)}: such a driver is refused, because one"
            " recipe builds one source. Build the sources together instead: kind 'git' with"
            " submodules, or an archive that holds both, and a 'command' of your own."
        )
