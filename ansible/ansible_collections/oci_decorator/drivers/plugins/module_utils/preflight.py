"""Finds what a controller lacks before a host is touched. Reads files and changes nothing.

Each function returns lines that say what is missing or wrong, and what to do; none: all is well.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.oci_decorator.drivers.plugins.module_utils.bundles import (
    BundleError,
    constraints_of,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.provision_toml import parsed

# The name of each architecture, by its number in the ELF header of a program.
# Source: elf(5), and https://www.sco.com/developers/gabi/latest/ch4.eheader.html
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 22: "s390x"}
_ELF = struct.Struct("<4s14xH")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_BY_DIGEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:\[\]-]*@sha256:[0-9a-f]{64}")
_RECIPE = re.compile(r"(?:.*/share/provision/)?driver_images/([^/]+)/driver\.toml")
_KEY_SUFFIXES = (".pub", ".pem")
_LONGEST_KEY = 64 << 10
_BUILD = "python ansible/build_collection.py"


def own_source(collection: Path) -> Path | None:
    """Return the wheel in a collection, or the checkout that contains the collection."""
    wheels = sorted((collection / "files").glob("provision-*.whl"))
    if wheels:
        return wheels[-1]
    clone = _clone(collection)
    return clone if clone and (clone / "src/provision").is_dir() else None


def own_programs(collection: Path) -> list[Path]:
    """Return the programs oci-decorator of a collection or of its checkout."""
    brought = sorted((collection / "files").glob("oci-decorator-*"))
    clone = _clone(collection)
    if brought or clone is None:
        return brought
    return [path for path in [clone / "build/oci-decorator"] if path.is_file()]


def programs_by_machine(paths: list[Path]) -> tuple[dict[str, str], list[str]]:
    """Return the paths of programs by architecture, and the mistakes."""
    found: dict[str, str] = {}
    wrong: list[str] = []
    for path in paths:
        machine = machine_of(path) if path.is_file() else None
        if machine is not None:
            found[machine] = str(path)
        else:
            what = "is no program" if path.is_file() else "is not there"
            wrong.append(
                f"The program '{path}' (provision_hook_program) {what}."
                " 'make build' makes it in a checkout, as build/oci-decorator."
            )
    if not paths:
        wrong.append(
            "There is no program oci-decorator: this collection brings none, and no checkout"
            " around it has one. Run 'make build' in the checkout, install the collection from the"
            f" archive that '{_BUILD}' makes, or set provision_hook_program."
            " Hosts with a repository of packages need none: provision_driver_install: package."
        )
    return found, wrong


def machine_of(path: Path) -> str | None:
    """Return a program's architecture as ``uname -m`` prints it; None if it is unknown."""
    with path.open("rb") as stream:
        head = stream.read(_ELF.size)
    if len(head) < _ELF.size:
        return None
    magic, number = _ELF.unpack(head)
    return _MACHINES.get(number) if magic == b"\x7fELF" else None


def source_mistakes(source: Path | None) -> list[str]:
    """Return the mistakes of the source of provision."""
    if source is None:
        line = (
            "There is no provision to install: this collection brings no wheel, and lies in no"
            f" checkout. Install it from the archive that '{_BUILD}' makes, or set"
            " provision_driver_source to a checkout of the project or a wheel of it. Hosts with a"
            " repository of packages need none: provision_driver_install: package."
        )
        return [line]
    wrong = []
    try:
        constraints_of(source)
    except (BundleError, OSError) as error:
        wrong.append(
            f"{error} (provision_driver_source). Name a checkout of the project, or a wheel of it."
        )
    if importlib.util.find_spec("pip") is None:
        wrong.append(
            "The Python that runs Ansible here has no pip, which packs provision for hosts."
            " Install it: python3 -m ensurepip, or the distro's python3-pip."
        )
    return wrong


def packages_mistakes(source: Path, constraints: str, wheelhouse: str) -> list[str]:
    """Return which packages are missing.

    Args:
        source: A checkout or a wheel, which has constraints of its own.
        constraints: A file to be used in their place; empty: none.
        wheelhouse: The folder that has to have them; empty: the package index has them.
    """
    if constraints and not Path(constraints).is_file():
        line = (
            f"There is no file '{constraints}' (provision_driver_constraints)."
            " Leave the variable empty to use provision's own."
        )
        return [line]
    if not wheelhouse:
        return []
    text = Path(constraints).read_text(encoding="utf-8") if constraints else constraints_of(source)
    names = {_normal(path.name) for path in Path(wheelhouse).glob("*.whl")}
    missing = [
        f"{name} {version}"
        for name, version in _PIN.findall(text)
        if not any(wheel.startswith(_normal(f"{name}-{version}-")) for wheel in names)
    ]
    if not missing:
        return []
    line = (
        f"The folder '{wheelhouse}' (provision_driver_wheelhouse) has no wheel of"
        f" {', '.join(missing)}. Fill it where there is a package index: pip download"
        " --require-hashes --no-deps -r constraints.txt --dest FOLDER, with the checkout's file."
    )
    return [line]


def config_mistakes(config: dict[str, Any], source: Path | None) -> list[str]:
    """Return the mistakes of a configuration that can be found on the controller.

    Args:
        config: The content of provision.toml.
        source: A checkout or a wheel, whose catalogue counts; None: none is known.
    """
    good, mistakes = parsed(config)
    wrong = [f"provision_driver_{mistake}" for mistake in mistakes]
    known = drivers_of(source) if source is not None else []
    # The host's own catalogue folders may have any driver.
    if not known or good.get("catalogue"):
        return wrong
    for name in good.get("drivers", {}):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            guess = f" Did you mean '{close[0]}'?" if close else ""
            wrong.append(
                f"provision_driver_config.drivers.{name}: there is no such driver;"
                f" there are {', '.join(known)}.{guess} A driver of your own needs its folder"
                " in provision_driver_catalogue."
            )
    return wrong


def drivers_of(source: Path) -> list[str]:
    """Return the names of the drivers whose recipes a checkout or a wheel contains."""
    if source.is_dir():
        return sorted(path.parent.name for path in source.glob("driver_images/*/driver.toml"))
    try:
        with zipfile.ZipFile(source) as wheel:
            found = (_RECIPE.fullmatch(name) for name in wheel.namelist())
            return sorted(match.group(1) for match in found if match)
    except (zipfile.BadZipFile, OSError):
        return []


def keys_mistakes(paths: list[str]) -> list[str]:
    """Return which public keys are missing, or must not be copied to hosts."""
    wrong = []
    for path in paths:
        try:
            with Path(path).open("rb") as stream:
                text = stream.read(_LONGEST_KEY)
        except OSError:
            wrong.append(
                f"There is no key '{path}' (provision_driver_trust_keys)."
                " 'provision registry key' makes a pair; hosts get the file that ends with .pub."
            )
            continue
        if b"PRIVATE KEY" in text:
            wrong.append(
                f"'{path}' (provision_driver_trust_keys) is a private key, which no host that only"
                " verifies may have. Name the file that ends with .pub."
            )
        elif b"BEGIN PUBLIC KEY" not in text:
            wrong.append(f"'{path}' (provision_driver_trust_keys) is no public key in PEM.")
        elif Path(path).suffix not in _KEY_SUFFIXES:
            wrong.append(
                f"'{path}' (provision_driver_trust_keys) would not be read on a host: its name has"
                " to end with .pub or .pem."
            )
    return wrong + _twice("keys", "provision_driver_trust_keys", paths)


def _twice(what: str, variable: str, paths: list[str]) -> list[str]:
    """Return which names are given twice: hosts have all files of a variable in one folder."""
    names = [Path(path).name for path in paths]
    return [
        f"Several {what} of {variable} are called '{name}', and one would replace the other."
        " Give them different names."
        for name in sorted({name for name in names if names.count(name) > 1})
    ]


def catalogue_mistakes(folder: str) -> list[str]:
    """Return the mistakes of a folder with recipes of the user's own; empty: there is none."""
    if not folder or any(Path(folder).glob("*/driver.toml")):
        return []
    reason = "has no driver: it has to have a folder for each, with a driver.toml"
    return [
        f"'{folder}' (provision_driver_catalogue) {reason}. Give the folder above the driver's."
    ]


def folder_mistakes(folder: str, drivers: list[str]) -> list[str]:
    """Return the mistakes of a folder of images for hosts without a network.

    Args:
        folder: Empty: hosts have a network.
        drivers: What hosts should have.
    """
    if not folder:
        return []
    if not Path(folder).is_dir():
        unpack = " It is an archive: unpack it (tar -xf)." if Path(folder).is_file() else ""
        return [f"'{folder}' (provision_driver_folder) is no folder.{unpack}"]
    return [
        f"The folder '{folder}' (provision_driver_folder) has no images of {driver}: 'provision"
        f" build {driver} --push oci:{folder} --sign' adds one."
        for driver in drivers
        if not (Path(folder) / driver / "index.json").is_file()
    ]


def image_mistakes(image: str) -> list[str]:
    """Return the mistakes of the agent's image for hosts without Python."""
    if not image or _BY_DIGEST.fullmatch(image):
        return []
    line = (
        f"'{image}' (provision_host_agent_image) does not name an image by its digest:"
        " registry.example/agent@sha256:…"
    )
    return [line]


def numbered(mistakes: list[str]) -> Iterator[str]:
    """Return mistakes as lines of one message."""
    yield from (f"{number}. {mistake}" for number, mistake in enumerate(mistakes, 1))


def _clone(collection: Path) -> Path | None:
    """Return the checkout that a collection lies in: below ansible/ansible_collections."""
    root = collection / "../../../.."
    return root.resolve() if (root / "pyproject.toml").is_file() else None


def _normal(name: str) -> str:
    """Return a name as wheels spell it: https://packaging.python.org/en/latest/specifications/."""
    return re.sub(r"[-_.]+", "-", name).lower()
