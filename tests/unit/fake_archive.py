"""Indexes made of samples of Debian's own, as of `tests/data/apt`; what a test adds is made up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from provision.distros import find_distro
from provision.distros.debian import ArchiveIndex, Suite
from provision.distros.debian.packages_file import PackageTable, parse_packages, write_table
from provision.distros.debian.suites import SuiteAddress

DATA = Path(__file__).parents[1] / "data/apt"


def sample(suite: str, component: str) -> str:
    """Return a real Packages file, cut down to some packages and fields."""
    return (DATA / f"{suite}_{component}").read_text()


def sample_index(folder: Path, distro: str = "debian:12") -> ArchiveIndex:
    """Return the index of a distro, made of the real packages in ``tests/data/apt``."""
    pin = find_distro(distro)
    texts = {
        (suite, component): path.read_text()
        for path in sorted(DATA.iterdir())
        for suite, _, component in [path.name.partition("_")]
        if suite.partition("-")[0] == pin.codename
    }
    return index_of(folder, texts, distro=distro)


def index_of(
    folder: Path, texts: Mapping[tuple[str, str], str], *, distro: str = "debian:12"
) -> ArchiveIndex:
    """Return an index of Packages texts by suite and component."""
    tables = []
    for (suite, component), text in texts.items():
        path = folder / f"{suite}_{component}.sqlite"
        folder.mkdir(parents=True, exist_ok=True)
        write_table(path, parse_packages([text.encode()]))
        automatic = not suite.endswith("-backports")
        tables.append(
            PackageTable(
                path,
                suite=suite,
                component=component,
                uri=_suite(suite, component).address.uri,
                is_automatic=automatic,
            )
        )
    return ArchiveIndex(
        distro=find_distro(distro),
        architecture="amd64",
        tables=tables,
        suites=[_suite(suite, part) for suite, part in texts],
    )


def _suite(suite: str, component: str) -> Suite:
    security = "-security" if suite.endswith("-security") else ""
    place = SuiteAddress(f"http://mirror.example/debian{security}", suite, ())
    return Suite(place, (component,), (component,))


def stanza(name: str, version: str, *, depends: str = "", architecture: str = "amd64") -> str:
    """Return an entry of a Packages file."""
    sha256 = hashlib.sha256(f"{name}{version}".encode()).hexdigest()
    return (
        f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nDepends: {depends}\n"
        f"Filename: pool/{name}_{version}.deb\nSize: 1\nSHA256: {sha256}\n"
    )
