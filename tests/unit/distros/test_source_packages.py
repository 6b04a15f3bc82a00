"""Source packages in a signed index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.apt_archive import AptArchive
from kit.fileserver import served
from provision.distros import find_distro
from provision.distros.debian import ArchiveAccess
from provision.distros.debian.distro_archive import (
    SourcePackage,
    _packages,
    find_sources,
    layout_of,
)
from provision.errors import NotFoundError, ProvisionError

_KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"


def _entry(name: str, version: str) -> str:
    return (
        f"Package: {name}\nBinary: {name}, lib{name}\nVersion: {version}\n"
        f"Files:\n {'0' * 32} 5 {name}_{version}.orig.tar.xz\n"
        f"Checksums-Sha256:\n {'1' * 64} 5 {name}_{version}.orig.tar.xz\n"
        f" {'2' * 64} 5 {name}_{version}.orig.tar.xz.asc\n"
        f" {'3' * 64} 7 {name}_{version}-1.debian.tar.xz\n"
        f"Directory: pool/{name}\n"
    )


class Host:
    """A host whose apt is set up with a mirror on the loopback interface."""

    def __init__(self, folder: Path, url: str) -> None:
        self.root = folder / "root"
        self.cache = folder / "cache"
        self.mirror = AptArchive(folder / "mirror")
        (self.root / _KEYRING).parent.mkdir(parents=True)
        (self.root / _KEYRING).write_bytes(self.mirror.key.keyring.read_bytes())
        (self.root / "etc/apt").mkdir(parents=True)
        (self.root / "etc/apt/sources.list").write_text(
            f"deb {url} bookworm main\ndeb {url} bookworm-updates main\n"
        )

    def find(self, name: str) -> list[SourcePackage]:
        pin = find_distro("debian:12")
        return find_sources(
            name, pin, layout_of(pin), ArchiveAccess(root=self.root, cache=self.cache)
        )


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "mirror").mkdir()
    with served(tmp_path / "mirror") as url:
        host = Host(tmp_path, url)
        text = f"{_entry('tool-two', '9')}\n{_entry('tool', '1.9')}"
        host.mirror.publish("bookworm", {"main": ""}, sources={"main": text})
        newer = {"main": _entry("tool", "1.10")}
        host.mirror.publish("bookworm-updates", {"main": ""}, sources=newer)
        yield host


def test_all_suites_versions_are_found_the_newest_first(host: Host) -> None:
    newest, older = host.find("tool")
    assert (newest.version, older.version) == ("1.10", "1.9")
    original = newest.file(".orig.tar.")
    assert original.name == "tool_1.10.orig.tar.xz"
    assert original.url.endswith("/pool/tool/tool_1.10.orig.tar.xz")
    assert original.sha256 == "1" * 64
    assert newest.file(".debian.tar.").sha256 == "3" * 64


def test_an_index_that_was_read_once_serves_without_the_archive(host: Host) -> None:
    assert len(host.find("tool")) == 2
    host.mirror.folder.rename(host.mirror.folder.with_name("gone"))
    assert len(host.find("tool-two")) == 1


def test_an_unknown_source_is_reported_with_the_archives_searched(host: Host) -> None:
    with pytest.raises(NotFoundError, match="debian 12 has no source package 'too'") as caught:
        host.find("too")
    assert "bookworm-updates" in (caught.value.details or "")


def test_a_missing_part_is_reported(host: Host) -> None:
    with pytest.raises(NotFoundError, match=r"tool 1\.10 has 0 files '\*\.diff\.\*'"):
        host.find("tool")[0].file(".diff.")


def test_a_changed_index_takes_the_old_ones_place(host: Host) -> None:
    host.find("tool")
    for state in host.cache.rglob("state.json"):
        state.unlink()
    host.mirror.publish("bookworm", {"main": ""}, sources={"main": _entry("tool", "1.11")})
    assert [package.version for package in host.find("tool")] == ["1.11", "1.10"]
    assert len(list(host.cache.rglob("main-source-*"))) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Directory: pool/python\n", ""),
        ("Version: 1.0\n", ""),
        ("Version: 1.0\n", "Version: 1 0\n"),
        (" 5 python_1.0.orig.tar.xz\n", " big python_1.0.orig.tar.xz\n"),
        ("Checksums-Sha256", "Checksums-None"),
    ],
)
def test_a_broken_entry_is_an_error_of_ours(old: str, new: str) -> None:
    entry = _entry("python", "1.0")
    assert old in entry
    with pytest.raises(ProvisionError, match=r"broken entry \(package 'python'\)"):
        list(_packages(entry.replace(old, new).encode(), "python", "http://mirror.example"))
