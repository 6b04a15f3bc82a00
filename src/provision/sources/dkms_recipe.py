"""Makes a driver.toml from a dkms.conf, with a list of its gaps. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.catalogue import Recipe
from provision.documents import parse_json
from provision.errors import UsageError
from provision.pin import ArchiveSource, GitSource
from provision.sources.dkms_conf import DkmsConf

# Both stand in a recipe until its author corrects them. NOASSERTION is SPDX's word for "unknown".
UNKNOWN_LICENCE = "NOASSERTION"
_FEATURE = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a source with a dkms.conf.

    Attributes:
        release: The release that can be pinned; None: the source has no address.
        packages: Tools that the build needs, as far as they are known.
        submodules: Folders of the repository that other repositories fill.
    """

    name: str
    conf: str
    package: str | None = None
    component: str = "main"
    release: ArchiveSource | GitSource | None = None
    packages: tuple[str, ...] = ()
    homepage: str | None = None
    submodules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A recipe, and what its author has to check.

    Attributes:
        unknown: The values that could not be found out, one sentence each.
        ignored: The parts of the dkms.conf without an effect in a build, one sentence each.
    """

    name: str
    text: str
    unknown: tuple[str, ...]
    ignored: tuple[str, ...]


def draft_recipe(
    conf: DkmsConf,
    origin: Origin,
    *,
    licences: Sequence[str] = (),
    pci: Sequence[tuple[str, str]] = (),
    unset: Sequence[str] = (),
) -> Draft:
    """Write the recipe of a driver that brings a dkms.conf.

    Args:
        licences: The licences that the source names; only shown.
    """
    name = re.sub(r"[^a-z0-9._-]+", "-", conf.name.lower()).strip("-._")
    if not name:
        raise UsageError(
            f"No driver can be called after PACKAGE_NAME, which is '{conf.name}'.",
            resolution="Give the package a name with letters or digits in its dkms.conf.",
        )
    text = _recipe_text(name, conf, origin, pci)
    # The text must be readable; mistakes name this command's input.
    parse_json(json.dumps(tomllib.loads(text)), Recipe, name=f"recipe of {origin.name}")
    unknown = [*_unknown(origin, licences, pci), *_unset(unset)]
    return Draft(name, text, tuple(unknown), tuple(_ignored(conf)))


def _recipe_text(name: str, conf: DkmsConf, origin: Origin, pci: Sequence[tuple[str, str]]) -> str:
    flag = "OCI_" + re.sub(r"[^A-Z0-9]+", "_", name.upper())
    lines = [
        re.sub(r"[^ -~]", "?", f"# {conf.name} {conf.version}. Made from {origin.conf}."),
        "schema = 1",
        f"name = {_text(name)}",
        f"summary = {_text(f'Kernel modules of {conf.name}')}",
        'vendor = "unknown"',
        f"homepage = {_text(origin.homepage or 'unknown')}",
        *_hardware(pci),
        "",
        *_source(conf, origin),
        "",
        "[flavours.dkms]",
        f"licences = [{_text(UNKNOWN_LICENCE)}]",
        "",
        "[container]",
        f"activation_flag = {_text(flag)}",
        f"driver_feature = [{_text(_FEATURE)}]",
        "",
        f"[container.features.{_FEATURE}]",
        "devices = []",
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    # TOML's basic strings take JSON's escapes, but no pairs of surrogates, and no bare DEL:
    # https://toml.io/en/v1.0.0#string
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _hardware(pci: Iterable[tuple[str, str]]) -> list[str]:
    devices: dict[str, list[str]] = {}
    for vendor, device in pci:
        devices.setdefault(vendor, []).append(device)
    lines = []
    for vendor, found in devices.items():
        listed = ", ".join(map(_text, found))
        lines += ["", "[[hardware.pci]]", f"vendor = {_text(vendor)}", f"devices = [{listed}]"]
    return lines


def _source(conf: DkmsConf, origin: Origin) -> list[str]:
    lines = ["[source]", 'kind = "dkms"']
    if origin.package is not None:
        lines.append(f"package = {_text(origin.package)}")
        if origin.component != "main":
            lines.append(f"components = [{_text(origin.component)}]")
    if origin.packages:
        lines.append(f"packages = [{', '.join(map(_text, origin.packages))}]")
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


def _unknown(
    origin: Origin, licences: Sequence[str], pci: Sequence[tuple[str, str]]
) -> Iterable[str]:
    said = f" The source says: {'; '.join(licences)}." if licences else ""
    yield f"licences: the licences of the modules, as SPDX expressions.{said}"
    yield "container.features: the device nodes that the modules make, below /dev, and features."
    if not pci:
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


def _unset(names: Sequence[str]) -> Iterable[str]:
    if names:
        yield (
            f"The dkms.conf uses {', '.join(names)}, which nothing sets: check whether the build"
            " needs it."
        )


def _ignored(conf: DkmsConf) -> Iterable[str]:
    for name, script in (conf.host_scripts or {}).items():
        yield (
            f"{name} ({script}) is not run: say in [host] and [[files]] what the host needs of it."
        )
    if conf.depends:
        yield (
            f"BUILD_DEPENDS names {', '.join(conf.depends)}: such a driver is refused, because one"
            " recipe builds one source. Build the sources together instead: kind 'git' with"
            " submodules, or an archive that holds both, and a 'command' of your own."
        )
