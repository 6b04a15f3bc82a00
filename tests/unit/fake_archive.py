"""Archives for tests: indexes made of samples of the real ones, and a mirror to serve them from."""

from __future__ import annotations

import hashlib
import lzma
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import MappingProxyType

import pytest

from provision.distros import find_distro
from provision.distros.debian import ArchiveIndex, Suite
from provision.distros.debian.packages_file import PackageTable, parse_packages, write_table
from provision.distros.debian.suites import SuiteAddress
from provision.run import Completed

DATA = Path(__file__).parents[1] / "data/apt"
_HEAD = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n"
_TAIL = "-----BEGIN PGP SIGNATURE-----\n\nfake\n-----END PGP SIGNATURE-----\n"


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


@dataclass
class Mirror:
    """An archive's folder, to be served over HTTP.

    Attributes:
        folder: Where it lies.
        fields: Fields of its Release files, besides those that it works out.
        date: When its Release files say that they were made.
        published: How many suites were written so far.
    """

    folder: Path
    fields: dict[str, str] = field(default_factory=lambda: {"Origin": "Debian"})
    date: datetime = field(default_factory=lambda: datetime.now(UTC))
    published: int = 0

    def publish(
        self,
        suite: str,
        sections: Mapping[str, str],
        *,
        architectures: Sequence[str] = ("amd64",),
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write a suite with a Packages file for each section, and a Sources file for some."""
        root = self.folder / "dists" / suite
        files = {
            f"{section}/binary-{architecture}/Packages.xz": text
            for section, text in sections.items()
            for architecture in architectures
        }
        files |= {f"{section}/source/Sources.xz": text for section, text in sources.items()}
        sums = []
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(lzma.compress(text.encode()))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            sums.append(f" {digest} {path.stat().st_size} {name}")
        fields = {
            "Suite": suite,
            "Date": format_datetime(self.date, usegmt=True),
            "Architectures": " ".join(architectures),
            "Components": " ".join(sections),
            **self.fields,
        }
        lines = [*(f"{key}: {value}" for key, value in fields.items()), "SHA256:", *sums]
        (root / "InRelease").write_text(_HEAD + "\n".join(lines) + "\n" + _TAIL)
        # HTTP dates count whole seconds; two versions must differ for a conditional request.
        self.published += 1
        os.utime(root / "InRelease", times=(self.published, self.published))

    def expire(self) -> None:
        """Let what is published next be out of date."""
        self.fields["Valid-Until"] = format_datetime(self.date - timedelta(days=1), usegmt=True)


def fake_gpgv(monkeypatch: pytest.MonkeyPatch, *, good: bool = True) -> None:
    """Put a stand-in for ``gpgv`` in place, because unit tests start no processes."""

    def run(argv: Sequence[str | Path], *, why: str, check: bool) -> Completed:
        assert why
        assert not check
        words = [str(word) for word in argv]
        output, source = Path(words[words.index("--output") + 1]), Path(words[-1])
        output.write_text(source.read_text().removeprefix(_HEAD).removesuffix(_TAIL))
        status = "GOODSIG 0 Archive" if good else "BADSIG 0 Archive"
        return Completed(tuple(words), 0 if good else 1, f"[GNUPG:] {status}\n", "gpgv: said so")

    monkeypatch.setattr("provision.fetch.signed.run", run)
    monkeypatch.setattr("provision.fetch.signed.find_program", {"gpgv": "/usr/bin/gpgv"}.get)
