"""`provision drivers import` up to the container, which answers from here."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from kit.fileserver import served
from kit.process import run, run_bytes
from provision.build import archive as archive_module
from provision.build import dkms_import
from provision.build.dkms_import import (
    BuiltModule,
    DkmsConf,
    Draft,
    Packed,
    import_dkms,
    write_recipe,
)
from provision.build.package_store import PackageStore
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import BasePin, KernelPin
from unit.deb_file import deb
from unit.engine.fake_engine import using
from unit.fake_archive import have_apt_answer, stanza, write_apt_sources

KERNEL = "6.1.0-56-amd64"
CONF = DkmsConf("tool", "2.1", (BuiltModule("tool.ko", "tool", "/extra", is_stripped=True),))
BASE = BasePin(image="debian:bookworm", digest=f"sha256:{'0' * 64}")


def no_engine() -> NoReturn:
    raise AssertionError("no engine is needed")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Packed]:
    """What the container got; it always finds the same."""
    got: list[Packed] = []

    def inspect(
        _engine: Engine,
        _base: BasePin,
        source: Packed,
        _name: str,
        kernel: KernelPin,
        **_more: object,
    ) -> DkmsConf:
        assert kernel == KernelPin(release=KERNEL, architecture="x86_64")
        got.append(source)
        return CONF

    monkeypatch.setattr(dkms_import, "inspect_source", inspect)
    monkeypatch.setattr(dkms_import, "ensure_distro_base", lambda *_args, **_more: BASE)
    monkeypatch.setattr(archive_module, "ensure_distro_base", lambda *_args, **_more: BASE)
    return got


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n")
    return Settings(root=root, config=Config(), catalogue=Catalogue([]), state=tmp_path / "state")


def files_of(source: Packed) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(source.content)) as archive:
        assert {(one.uid, one.gid) for one in archive.getmembers()} <= {(0, 0)}
        return archive.getnames()


def made_of(settings: Settings, what: str) -> Draft:
    return import_dkms(using(settings, lambda: None), what, kernel=KERNEL)[0]  # type: ignore[arg-type, return-value]  # the stand-ins ignore it


def test_a_folder_becomes_a_driver_that_is_never_overwritten(
    settings: Settings, looked_at: list[Packed], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "dkms.conf").touch()
    draft = made_of(settings, str(source))
    file = write_recipe(draft, tmp_path / "drivers")
    assert file == tmp_path / "drivers/tool/driver.toml"
    assert file.read_text() == draft.text
    assert [files_of(one) for one in looked_at] == [["dkms.conf"]]
    with pytest.raises(UsageError):
        write_recipe(draft, tmp_path / "drivers")


def test_a_checkout_is_pinned(settings: Settings, looked_at: list[Packed], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "Makefile").write_text("all:\n")

    def git(*words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        return run(["git", "-C", source, *who, *words]).stdout.strip()

    git("init", "--quiet")
    git("remote", "add", "origin", "git@example.org:maker/tool.git")
    git("add", "Makefile")
    git("update-index", "--add", "--cacheinfo", f"160000,{'c' * 40},src/common")
    git("commit", "--quiet", "--message", "m")
    # A checkout's settings may name programs: what compares and packs looks at a copy.
    git("config", "core.fsmonitor", f"touch {tmp_path}/ran")
    draft = made_of(settings, str(source))
    assert 'url = "https://example.org/maker/tool.git"' in draft.text
    assert f'commit = "{git("rev-parse", "HEAD")}"' in draft.text
    assert 'homepage = "https://example.org/maker/tool"' in draft.text
    archived = hashlib.sha256(
        run_bytes(["git", "-C", source, "archive", "HEAD"], stdin=b"")
    ).hexdigest()
    assert f'sha256 = "{archived}"' in draft.text
    [modules] = [line for line in draft.unknown if "submodules" in line]
    assert "src/common" in modules
    assert "Makefile" not in modules
    assert len(looked_at) == 1
    assert not (tmp_path / "ran").exists()
    # A checkout with changed files is not the commit that was evaluated.
    (source / "Makefile").write_text("all: more\n")
    draft = made_of(settings, str(source))
    assert "commit" not in draft.text


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://me:secret@git.example:8443/a/b.git", "https://git.example:8443/a/b.git"),
        ("git@example.org:a/b.git", "https://example.org/a/b.git"),
        ("ssh://git@example.org/a/b.git", "https://example.org/a/b.git"),
        ("ssh://git@example.org:2222/a/b.git", "https://example.org/a/b.git"),
        ("file:///srv/b.git", None),
        ("https://[::1]:8/x", None),
    ],
)
def test_a_remote_becomes_an_address_that_others_can_use(remote: str, url: str | None) -> None:
    assert dkms_import.public_address(remote) == url


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Vendor]:
    (tmp_path / "vendor").mkdir()
    with served(tmp_path / "vendor") as url:
        yield Vendor(tmp_path / "vendor", url)


@dataclass(frozen=True)
class Vendor:
    """A server with files that anyone may download."""

    folder: Path
    url: str

    def tar(self, name: str, mode: str, **files: bytes) -> str:
        """Offer a tar file; returns its address."""
        with tarfile.open(self.folder / name, mode) as archive:  # type: ignore[call-overload]  # the mode varies
            for place, content in files.items():
                info = tarfile.TarInfo(place)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return f"{self.url}/{name}"

    def sha256(self, name: str) -> str:
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()


def test_an_archive_is_unpacked_and_pinned_as_it_came(
    settings: Settings, looked_at: list[Packed], vendor: Vendor
) -> None:
    draft = made_of(settings, vendor.tar("tool.tar.gz", "w:gz", **{"tool-2.1/dkms.conf": b""}))
    assert files_of(looked_at[0]) == ["dkms.conf"]
    assert f'sha256 = "{vendor.sha256("tool.tar.gz")}"' in draft.text
    assert "strip" not in draft.text
    assert not (settings.state / "import").exists()


def test_a_vendors_package_is_unpacked_as_it_would_be_installed(
    settings: Settings, looked_at: list[Packed], vendor: Vendor
) -> None:
    vendor.tar("data", "w:xz", **{"./usr/src/tool-2.1/dkms.conf": b""})
    package = deb(vendor.folder, (vendor.folder / "data").read_bytes())
    draft = made_of(settings, f"{vendor.url}/{package.name}")
    # One folder at its top, and still nothing is dropped: its source is looked for in usr/src.
    assert files_of(looked_at[0]) == ["usr/src/tool-2.1/dkms.conf"]
    assert "strip = 0" in draft.text


@pytest.mark.parametrize("kind", ["page", "damaged", "many bytes", "many files", "zip"])
def test_an_archive_that_is_none_or_grows_is_refused_before_it_does(
    settings: Settings, vendor: Vendor, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    noise = random.Random(0).randbytes(1 << 16).hex().encode()  # noqa: S311 - the same each time
    url = vendor.tar("tool.tar.xz", "w:xz", **{"tool/a": noise, "tool/b": noise})
    path = vendor.folder / "tool.tar.xz"
    match kind:
        case "page":
            path.write_bytes(b"<html>")
        case "damaged":
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 4 : len(raw) // 4 + 40] = b"\xff" * 40
            path.write_bytes(raw)
        case "many bytes":
            monkeypatch.setattr(dkms_import, "MAX_BYTES", 200_000)
        case "many files":
            monkeypatch.setattr(dkms_import, "MAX_FILES", 0)
        case _:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                file.writestr("tool/dkms.conf", "#" * 100_000)
            monkeypatch.setattr(dkms_import, "MAX_BYTES", 99_999)
    with pytest.raises(ProvisionError):
        import_dkms(using(settings, no_engine), url, kernel=KERNEL)
    assert not (settings.state / "import").exists()


def test_an_address_with_a_secret_is_refused_without_showing_it(settings: Settings) -> None:
    for url in ("https://me:hush@x.example/t.tar", "https://x.example/t.tar?token=hush"):
        with pytest.raises(UsageError) as caught:
            import_dkms(using(settings, no_engine), url, kernel=KERNEL)
        assert "hush" not in f"{caught.value.message}{caught.value.resolution}"


@pytest.fixture
def archive(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        ("bookworm", "main"): "\n".join(
            stanza(name, "5-1") for name in ("dkms", "kmod", "libc6-dev", "perl")
        ),
        ("bookworm", "contrib"): stanza(
            "tool-dkms", "2.1-3", depends="dkms (>= 3), perl:any | none, libc6-dev | libc-dev, kmod"
        ),
    }
    write_apt_sources(settings.root)
    package = tmp_path / "tool.deb"
    package.write_bytes(b"a package")
    have_apt_answer(monkeypatch, texts)
    monkeypatch.setattr(PackageStore, "fetch", lambda *_args, **_more: package)


@pytest.mark.usefixtures("archive")
def test_a_package_brings_its_component_and_tools(
    settings: Settings, looked_at: list[Packed]
) -> None:
    draft = made_of(settings, "tool-dkms")
    assert 'package = "tool-dkms"' in draft.text
    assert 'components = ["contrib"]' in draft.text
    assert 'packages = ["perl", "libc6-dev"]' in draft.text
    assert looked_at == [Packed("package.deb", b"a package")]


@pytest.mark.usefixtures("archive", "looked_at")
@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (("no-dkms", KERNEL, None), NotFoundError),
        (("no/folder", KERNEL, None), NotFoundError),
        (("https://x/t.git", KERNEL, None), UsageError),
        (("tool-dkms", "no kernel", None), UsageError),
        (("tool-dkms", None, None), NotFoundError),
        (("tool-dkms", KERNEL, "rocky:9"), NotFoundError),
    ],
)
def test_what_is_not_there_is_said_with_a_way_out(
    settings: Settings,
    request_: tuple[str, str | None, str | None],
    error: type[ProvisionError],
) -> None:
    what, kernel, distro = request_
    with pytest.raises(error) as caught:
        import_dkms(using(settings, no_engine), what, kernel=kernel, distro=distro)
    assert caught.value.resolution
