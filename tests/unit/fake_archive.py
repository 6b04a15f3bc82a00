"""What apt answers, from samples of Debian's own indexes in `tests/data/apt`; more is made up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from provision.distros import Repository, find_distro
from provision.distros.debian.archive import ArchiveIndex

if TYPE_CHECKING:
    import pytest

DATA = Path(__file__).parents[1] / "data/apt"
MIRROR = "http://mirror.example/debian"
# Packages texts by suite and component.
Texts = Mapping[tuple[str, str], str]


def sample(suite: str, component: str) -> str:
    """Return a real Packages file, cut down to some packages and fields."""
    return (DATA / f"{suite}_{component}").read_text()


def samples(codename: str = "bookworm") -> Texts:
    """Return the real packages of a release in ``tests/data/apt``."""
    return {
        (suite, component): path.read_text()
        for path in sorted(DATA.iterdir())
        for suite, _, component in [path.name.partition("_")]
        if suite.partition("-")[0] == codename
    }


def answer(texts: Texts, words: tuple[str, ...]) -> bytes:
    """Return what apt's ``madison`` and ``show`` answer to words, as our script has it."""
    places, shown = [], []
    for (suite, component), text in texts.items():
        for entry in text.strip().split("\n\n"):
            lines = entry.splitlines()
            fields = dict(line.split(": ", 1) for line in lines if ": " in line)
            name = fields.get("Package", "")
            if any(name == w or (w[-1] == "*" and name.startswith(w[:-1])) for w in words):
                uri = _address(suite).urls[0]
                place = f"{uri} {suite}/{component} amd64 Packages"
                places.append(f"{name:>10} | {fields['Version']:>10} | {place}")
                shown.append(entry)
    return "\n".join([*places, "", "\n\n".join(shown), ""]).encode()


def index_of(texts: Texts, *, distro: str = "debian:12") -> ArchiveIndex:
    """Return an index of what apt says of texts."""
    return ArchiveIndex(
        distro=find_distro(distro),
        architecture="amd64",
        suites=[_address(suite) for suite in dict.fromkeys(suite for suite, _ in texts)],
        components=list(dict.fromkeys(component for _, component in texts)),
        words=[],
        answer=lambda words: answer(texts, words),
    )


def sample_index() -> ArchiveIndex:
    """Return the index of Debian 12, made of the real packages in ``tests/data/apt``."""
    return index_of(samples())


def have_apt_answer(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> list[tuple[str, ...]]:
    """Have apt in every container answer from texts; return what it is asked."""
    asked: list[tuple[str, ...]] = []

    def answered(_apt: object, _request: object, words: tuple[str, ...]) -> bytes:
        asked.append(words)
        return answer(texts, words)

    monkeypatch.setattr("provision.build.archive.Archive._run_apt", answered)
    return asked


def write_apt_sources(root: Path, *, distro: str = "debian", codename: str = "bookworm") -> None:
    """Have a host's apt read the mirror."""
    keyring = root / f"usr/share/keyrings/{distro}-archive-keyring.gpg"
    keyring.parent.mkdir(parents=True, exist_ok=True)
    keyring.write_bytes(b"\x99key")
    sources = root / "etc/apt/sources.list"
    sources.parent.mkdir(parents=True, exist_ok=True)
    component = "main"
    sources.write_text(
        f"deb {MIRROR} {codename} {component}\n"
        f"deb {MIRROR}-security {codename}-security {component}\n"
    )


def stanza(name: str, version: str, *, depends: str = "", architecture: str = "amd64") -> str:
    """Return an entry of a Packages file."""
    sha256 = hashlib.sha256(f"{name}{version}".encode()).hexdigest()
    return (
        f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nDepends: {depends}\n"
        f"Filename: pool/{name}_{version}.deb\nSize: 1\nSHA256: {sha256}\n"
    )


def _address(suite: str) -> Repository:
    return Repository(suite, (f"{MIRROR}-security" if suite.endswith("-security") else MIRROR,))
