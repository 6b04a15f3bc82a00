"""A host whose apt reads a signed mirror on the loopback interface."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from kit.apt_archive import AptArchive
from kit.fileserver import served
from provision.config import Config
from provision.distros import find_distro
from provision.distros.debian import (
    ArchiveAccess,
    ArchiveIndex,
    archive_cache,
    open_index,
)
from provision.distros.debian.distro_archive import layout_of
from provision.fetch import UnreachableError
from provision.progress import Progress, silent
from unit.fake_archive import stanza

KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"


class Host:
    """A host whose apt is set up with a mirror on the loopback interface."""

    def __init__(self, folder: Path, url: str) -> None:
        self.root = folder / "root"
        self.cache = folder / "cache"
        self.url = url
        self.mirror = AptArchive(folder / "mirror")
        (self.root / KEYRING).parent.mkdir(parents=True)
        (self.root / KEYRING).write_bytes(self.mirror.key.keyring.read_bytes())
        self.sources(f"deb {url} bookworm main\n")

    def sources(self, text: str) -> None:
        path = self.root / "etc/apt/sources.list"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def publish(self, *versions: str, suite: str = "bookworm") -> None:
        text = "\n".join(stanza("tool", version) for version in versions)
        self.mirror.publish(suite, {"main": text, "contrib": ""})

    def open(
        self,
        distro: str = "debian:12",
        *,
        architecture: str = "x86_64",
        components: Sequence[str] = (),
        config: Config | None = None,
        progress: Progress = silent,
    ) -> ArchiveIndex:
        index = open_index(
            find_distro(distro),
            layout_of(find_distro(distro)),
            ArchiveAccess(config or Config(), self.root, self.cache, progress),
            architecture=architecture,
            components=components,
        )
        index.read()
        return index

    def newest(self) -> str:
        with closing(self.open()) as index:
            package = index.package("tool")
        assert package is not None
        return package.version

    def go_offline(self) -> None:
        self.mirror.folder.rename(self.mirror.folder.with_name("gone"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr("provision.fetch.http._PAUSE", 0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mirror").mkdir()
    with served(tmp_path / "mirror") as url:
        made = Host(tmp_path, url)
        made.publish("1.0-1", "1.1-1")
        yield made


def outdate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every cached index be too old, so that the archive is asked."""
    monkeypatch.setattr(archive_cache, "MAX_AGE", 0)


def go_unreachable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no archive answer; returns the addresses that are asked for."""
    asked: list[str] = []

    def unreachable(url: str, **_options: object) -> None:
        asked.append(url)
        raise UnreachableError("no network")

    monkeypatch.setattr(archive_cache, "get_signed", unreachable)
    return asked


def host_state(host: Host) -> dict[str, float]:
    """Return what is noted of the one suite."""
    (state,) = host.cache.glob("archive/*/state.json")
    noted: dict[str, float] = json.loads(state.read_text())
    return noted
