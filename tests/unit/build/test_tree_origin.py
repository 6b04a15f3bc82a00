"""Trees of which nothing has changed: neither packed nor downloaded again, and never by mistake."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.files import sha256, write
from kit.fileserver import Mirror
from kit.media import tar_of
from provision.build import trees
from provision.build.package_store import PackageStore
from provision.build.trees import ensure_cos_tree, ensure_tree
from provision.build.workspace import Settings, default_cache, load_settings
from provision.config import TreeConfig
from provision.distros.distro import release_address
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import state_of
from provision.pin import TreePin

_KERNEL = "6.6.74-mine"
_CONFIG = "CONFIG_64BIT=y\nCONFIG_MODULES=y\n"
_FOLDER = TreeConfig(kernels="*", kind="prepared", path="/srv/{kernel}/build")
_BUILD = "18613.164.68"


@dataclass(frozen=True)
class Tar:
    """The real tar, behind a program on PATH that counts, and may do something afterwards."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Tar:
        program = folder / "tar"
        folder.mkdir()
        real = shutil.which("tar")
        text = f'#!/bin/sh\necho >>"{folder}/calls"\n{real} "$@" || exit\n. "{folder}/then"\n'
        program.write_text(text)
        program.chmod(0o755)
        tar = cls(folder)
        tar.then("")
        return tar

    @property
    def calls(self) -> int:
        path = self.folder / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def then(self, script: str) -> None:
        (self.folder / "then").write_text(f"{script}\n")


def _tree(text: str) -> bytes:
    """A tree as others pack it: a configuration, and something that differs."""
    return tar_of({"./.config": _CONFIG.encode(), "./Makefile": text.encode()})


def _stored(sha256: str | None) -> Path:
    return PackageStore(default_cache()).path(str(sha256))


def _packed(tree: tuple[TreePin, object], name: str = "./Makefile") -> bytes:
    with tarfile.open(_stored(tree[0].tree)) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


@pytest.fixture
def tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tar:
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:/usr/bin:/bin")
    return Tar.make(tmp_path / "programs")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A host with a folder that a kernel's build left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "host"
    build = root / "srv" / _KERNEL / "build"
    (build / "scripts").mkdir(parents=True)
    (build / "Makefile").write_text("all:")
    (build / ".config").write_text(_CONFIG)
    (build / "scripts/modpost").write_text("a program")
    return load_settings(root)


@pytest.fixture
def makefile(settings: Settings) -> Path:
    return settings.root / "srv" / _KERNEL / "build/Makefile"


def test_a_folder_that_has_not_changed_is_not_packed_again(settings: Settings, tar: Tar) -> None:
    first = ensure_tree(settings, _FOLDER, _KERNEL)
    asked = tar.calls
    assert ensure_tree(settings, _FOLDER, _KERNEL) == first
    assert tar.calls == asked
    assert first[1] == {"CONFIG_64BIT": "y", "CONFIG_MODULES": "y"}


def test_a_change_of_content_is_seen_although_size_and_date_are_the_same(
    settings: Settings, makefile: Path
) -> None:
    first = ensure_tree(settings, _FOLDER, _KERNEL)
    status = makefile.stat()
    makefile.write_text("ALL:")
    os.utime(makefile, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert makefile.stat().st_size == status.st_size
    assert makefile.stat().st_mtime_ns == status.st_mtime_ns
    second = ensure_tree(settings, _FOLDER, _KERNEL)
    assert (_packed(first), _packed(second)) == (b"all:", b"ALL:")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "scripts/more").touch(),
        lambda folder: (folder / "scripts/modpost").unlink(),
        lambda folder: (folder / "scripts/modpost").rename(folder / "scripts/other"),
        lambda folder: (folder / "scripts/modpost").chmod(0o755),
        lambda folder: (folder / "scripts/empty").mkdir(),
        lambda folder: (folder / "link").symlink_to("Makefile"),
    ],
)
def test_every_change_of_a_folder_changes_its_state_of(makefile: Path, change: object) -> None:
    before = state_of(makefile.parent)
    assert state_of(makefile.parent) == before
    assert callable(change)
    change(makefile.parent)
    assert state_of(makefile.parent) != before


def test_a_fingerprint_is_of_what_a_link_leads_to(makefile: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(makefile.parent)
    before = state_of(tmp_path / "link")
    makefile.write_text("all: more")
    assert state_of(tmp_path / "link") != before


def test_what_changes_while_it_is_packed_is_packed_again(
    settings: Settings, tar: Tar, makefile: Path
) -> None:
    tar.then(f"printf 'all: changed' >'{makefile}'")
    ensure_tree(settings, _FOLDER, _KERNEL)
    tar.then("")
    assert _packed(ensure_tree(settings, _FOLDER, _KERNEL)) == b"all: changed"


def test_a_tree_that_the_store_lost_or_that_is_wanted_again_is_packed_again(
    settings: Settings, tar: Tar
) -> None:
    first = ensure_tree(settings, _FOLDER, _KERNEL)
    file = _stored(first[0].tree)
    file.write_bytes(b"cut")
    asked = tar.calls
    assert ensure_tree(settings, _FOLDER, _KERNEL) == first
    file.unlink()
    assert ensure_tree(settings, _FOLDER, _KERNEL) == first
    assert tar.calls == 3 * asked
    ensure_tree(settings, _FOLDER, _KERNEL, update=True)
    assert tar.calls == 4 * asked


def test_the_configuration_is_the_trees_own(settings: Settings, makefile: Path) -> None:
    folder = makefile.parent
    others = ("kernel/configs/hardening.config", "scripts/kconfig/tests/.config", ".config.old")
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("CONFIG_MODULES=n\n")
    found = ensure_tree(settings, _FOLDER, _KERNEL)
    assert found[1] == {"CONFIG_64BIT": "y", "CONFIG_MODULES": "y"}
    # As Debian packs headers: below folders.
    (folder / "usr/src").mkdir(parents=True)
    (folder / ".config").rename(folder / "usr/src/.config")
    (folder / "scripts/kconfig/tests/.config").rename(folder / "usr/src/configs")
    found = ensure_tree(settings, _FOLDER, _KERNEL)
    assert found[1] == {"CONFIG_64BIT": "y", "CONFIG_MODULES": "y"}
    # As its own build packs them: the configuration is in /boot.
    (folder / "usr/src/.config").unlink()
    with pytest.raises(NotFoundError):
        ensure_tree(settings, _FOLDER, _KERNEL)
    boot = settings.root / f"boot/config-{_KERNEL}"
    boot.parent.mkdir()
    boot.write_text("CONFIG_64BIT=y\n")
    found = ensure_tree(settings, _FOLDER, _KERNEL)
    assert found[1] == {"CONFIG_64BIT": "y"}
    assert _stored(found[0].config).read_text() == "CONFIG_64BIT=y\n"


_NAMES = ("kernel-headers.tgz", "toolchain.tar.xz")


@pytest.fixture
def cos(tmp_path: Path) -> Iterator[Mirror]:
    """A mirror of COS' files without HTTPS; each has its name in it."""
    folder = tmp_path / "cos"
    for name in _NAMES:
        write(folder / _BUILD / name, _tree(name))
    mirror = Mirror(folder)
    with mirror.serving():
        yield mirror


def _on_mirror(settings: Settings, mirror: Mirror, **sums: str) -> Settings:
    """Have provision.toml name the mirror, and checksums of its files."""
    named = ", ".join(f'"{_BUILD}/{name}" = "{sums.get(name[:1], "")}"' for name in _NAMES)
    text = f'[distros.cos.archive]\nmirror = "{mirror.url}"\n'
    text += f"sha256 = {{ {named} }}\n" if sums else ""
    write(settings.root / "etc/provision/provision.toml", text)
    return load_settings(settings.root)


def test_files_of_cos_are_downloaded_once(settings: Settings, cos: Mirror) -> None:
    sums = {name[:1]: sha256(_tree(name)) for name in _NAMES}
    named = _on_mirror(settings, cos, **sums)
    first = ensure_cos_tree(named, _BUILD)
    assert first[0].tree == sha256(_tree("kernel-headers.tgz"))
    for update in (False, True):
        assert ensure_cos_tree(named, _BUILD, update=update) == first
    assert cos.asked == [f"/{_BUILD}/{name}" for name in _NAMES]
    # A checksum that is named later counts.
    with pytest.raises(ProvisionError):
        ensure_cos_tree(_on_mirror(settings, cos, **{**sums, "t": "0" * 64}), _BUILD)
    assert len(cos.asked) == 3
    # What is damaged is not.
    kept = PackageStore(settings.state).path(sums["k"])
    kept.write_bytes(b"x" * kept.stat().st_size)
    assert ensure_cos_tree(named, _BUILD, update=True) == first
    assert len(cos.asked) == 4


def test_a_mirror_without_https_needs_the_files_checksums(settings: Settings, cos: Mirror) -> None:
    with pytest.raises(UsageError) as caught:
        ensure_cos_tree(_on_mirror(settings, cos), _BUILD)
    assert f'sha256 = {{ "{_BUILD}/kernel-headers.tgz"' in str(caught.value.resolution)
    assert cos.asked == []
    place = f"https://storage.googleapis.com/cos-tools/{_BUILD}"
    assert release_address("cos", _BUILD, "x86_64", mirror=None) == place


def test_what_is_known_of_a_tree_goes_when_it_was_of_no_use_for_long(settings: Settings) -> None:
    ensure_tree(settings, _FOLDER, _KERNEL)
    store = PackageStore(settings.state)
    assert store.collect([], days=30) == []
    (record,) = store.trees.iterdir()
    # Of a kernel's tree: an address may hold a password.
    assert record.stat().st_mode & 0o777 == 0o600
    assert (
        trees.known_tree(
            PackageStore(settings.state), str(settings.root / "srv" / _KERNEL / "build")
        )
        is not None
    )
    gone = {name for name, _size in store.collect([], days=-1)}
    assert record.name in gone
    assert not record.exists()
