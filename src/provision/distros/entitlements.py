"""What a host has that lets it use its distro's repositories, for the container that solves.

A subscription's files lie at known paths, which the distro's data name. Clouds sell RHEL without
one: the repository files of their update infrastructure (RHUI) name certificates of their own.
Those that ask for an instance's identity too, by a plugin of dnf (AWS, Google), refuse the
container.

Source: dnf.conf(5), ``sslclientcert`` and its like.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from provision.distros.distro import Distro, Entitlement
from provision.files import glob_in_root, holds_something, in_root

_FILES = ("sslclientcert", "sslclientkey", "sslcacert")
_OFF = {"0", "no", "false", "off"}


def entitlements_of(distro: Distro, root: Path) -> dict[str, str]:
    """Return what a host has: path on the host by path in the container."""
    paths = {one.container: in_root(root, one.host) for one in distro.entitlement}
    found = {inside: str(path) for inside, path in paths.items() if holds_something(path)}
    if distro.family == "dnf" and _lacking(distro, found):
        found |= _of_a_cloud(root)
    return found


def lacking_entitlements(distro: Distro, root: Path) -> list[Entitlement]:
    """Return what nothing can be solved without, and the host has not."""
    lacking = _lacking(distro, entitlements_of(distro, root))
    return [] if distro.family == "dnf" and _of_a_cloud(root) else lacking


def _lacking(distro: Distro, found: dict[str, str]) -> list[Entitlement]:
    return [one for one in distro.entitlement if one.required and one.container not in found]


def _of_a_cloud(root: Path) -> dict[str, str]:
    """Return repository files that name a client's certificate, and what they name, if enabled."""
    found: dict[str, str] = {}
    for name in glob_in_root(root, "etc/yum.repos.d/*.repo"):
        named = {
            PurePosixPath(path): in_root(root, path) for path in _named(in_root(root, name), root)
        }
        files = {str(path): str(place) for path, place in named.items() if place.is_file()}
        if files:
            found |= {f"/{name}": str(in_root(root, name)), **files}
    return found


def _named(file: Path, root: Path) -> Iterator[str]:
    """Yield the files that the enabled repositories of a file name; none without a certificate."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        text = file.read_text(errors="replace")
        parser.read_string(text)
    except (OSError, configparser.Error):
        # dnf leaves it out too.
        return
    is_used = False
    for name in parser.sections():
        section = parser[name]
        if section.get("sslclientcert") and section.get("enabled", "1").lower() not in _OFF:
            is_used = True
            yield from (path for key in _FILES if (path := section.get(key, "")).startswith("/"))
            for address in section.get("gpgkey", "").replace(",", " ").split():
                if address.startswith("file:///"):
                    yield address.removeprefix("file://")
    # What stands for $NAME in addresses, such as the minor release that a host stays at.
    for variable in glob_in_root(root, "etc/dnf/vars/*") if is_used else ():
        if f"${variable.name}" in text:
            yield f"/{variable}"
