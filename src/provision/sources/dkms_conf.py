"""Reads a dkms.conf that ``templates/dkms/dkms.bash`` has evaluated in a container.

Variables and defaults: dkms(8) of DKMS 3,
https://github.com/dkms-project/dkms/blob/main/dkms.8.in
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from provision.errors import ProvisionError, UsageError

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
    """The parts of a dkms.conf that a recipe, or its author, needs; builds evaluate the rest.

    Attributes:
        exclusive: ``BUILD_EXCLUSIVE_…`` by the rest of the name. An index other than 0 follows in
            brackets, because the value is for one module then.
        depends: Other DKMS packages that are built first.
    """

    name: str
    version: str
    modules: tuple[BuiltModule, ...]
    exclusive: Mapping[str, str] | None = None
    depends: tuple[str, ...] = ()
    host_scripts: Mapping[str, str] | None = None


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
    last = max((index for name, index in variables if name.startswith(_OF_MODULES)), default=0)
    if last >= _MAX_MODULES:
        raise UsageError(
            f"The dkms.conf names a module with the index {last}.",
            resolution=f"Count from 0; there may be {_MAX_MODULES} modules.",
        )
    modules = _modules(variables)
    problems = [*_naming_problems(variables), *_module_problems(variables, modules)]
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
        depends=_depends(variables),
        host_scripts={n: words for n in _HOST_SCRIPTS if (words := _words(variables, n))},
    )


def _naming_problems(variables: Variables) -> list[str]:
    problems = []
    for name in ("PACKAGE_NAME", "PACKAGE_VERSION"):
        text = variables.get((name, 0), "")
        if not text:
            problems.append(f"{name} is not set")
        elif not _NAME.fullmatch(text):
            problems.append(f"{name} is {text!r}, which is a template")
    return problems


def _modules(variables: Variables) -> tuple[BuiltModule, ...]:
    count = 1 + max(
        (i for name, i in variables if name.startswith(_OF_MODULES)),
        default=-1,
    )
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


def _module_problems(variables: Variables, modules: Sequence[BuiltModule]) -> list[str]:
    if not modules:
        return ["neither BUILT_MODULE_NAME nor DEST_MODULE_LOCATION is set"]
    problems = []
    for index, module in enumerate(modules):
        if not module.name:
            problems.append(f"BUILT_MODULE_NAME[{index}] is not set")
        for name in ("BUILT_MODULE_NAME", "DEST_MODULE_NAME"):
            text = variables.get((name, index), "")
            if text.endswith((".o", ".ko")) or "/" in text:
                problems.append(f"{name}[{index}] is {text!r}: a name without a folder and .ko")
        if not module.destination:
            problems.append(f"DEST_MODULE_LOCATION[{index}] is not set")
    names = [module.name for module in modules]
    doubled = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    return [*problems, *(f"two modules are called {name}" for name in doubled)]


def _words(variables: Variables, name: str) -> str:
    return " ".join(variables.get((name, 0), "").split())


def _depends(variables: Variables) -> tuple[str, ...]:
    own = variables.get(("PACKAGE_NAME", 0), "")
    named = [variables[key] for key in sorted(variables) if key[0] == "BUILD_DEPENDS"]
    return tuple(dict.fromkeys(word for text in named for word in text.split() if word != own))
