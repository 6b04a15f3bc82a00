"""What apt answers, from samples of Debian's own indexes in `tests/data/apt`; more is made up."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from provision.distros import Repository, Script
from provision.distros.debian.archive import Archive

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


def archive_of(texts: Texts) -> Archive:
    """Return an archive with what apt says of texts."""
    components = tuple(dict.fromkeys(component for _, component in texts))
    suites = [_address(suite, components) for suite in dict.fromkeys(suite for suite, _ in texts)]
    return Archive("debian:12", suites, [], lambda names: answer(texts, names))


def have_apt_answer(
    monkeypatch: pytest.MonkeyPatch, texts: Texts, *, at: str = "_run"
) -> list[tuple[str, ...]]:
    """Have apt in every container answer from texts; return what it is asked.

    Args:
        at: ``_answer``: without a base image, and nothing is kept.
    """
    asked: list[tuple[str, ...]] = []

    def answered(_session: object, *given: object) -> bytes:
        asked.append(asked_for(given[-1]))
        return answer(texts, asked[-1])

    monkeypatch.setattr(f"provision.build.session.SolvingSession.{at}", answered)
    return asked


def asked_for(script: object) -> tuple[str, ...]:
    """Return the names that a script asks for; their beginnings with ``*``."""
    assert isinstance(script, Script)
    line = next(line for line in script.text.splitlines() if line.startswith("set -- "))
    return tuple(re.sub(r"\$\(apt_cache pkgnames (\S+)\)", r"\1*", line).split()[2:])


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


def _address(suite: str, components: tuple[str, ...] = ()) -> Repository:
    uri = f"{MIRROR}-security" if suite.endswith("-security") else MIRROR
    return Repository(suite, (uri,), components=components)
