"""`provision import dkms` up to the container, which answers from here."""

from __future__ import annotations

import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from provision.build.dkms_inspection import Inspected, SourceToInspect
from provision.build.package_store import PackageStore
from provision.catalogue import Catalogue
from provision.config import Config
from provision.distros.debian import ArchiveIndex
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import BasePin
from provision.pipeline import dkms_import
from provision.pipeline.dkms_import import ImportRequest, import_dkms
from provision.pipeline.workspace import Settings
from provision.run import Completed
from unit.deb_file import deb
from unit.fake_archive import index_of, stanza

KERNEL = "6.1.0-56-amd64"
VARIABLES = b"".join(
    part.encode() + b"\0"
    for record in (
        ("PACKAGE_NAME", "0", "tool"),
        ("PACKAGE_VERSION", "0", "2.1"),
        ("DEST_MODULE_LOCATION", "0", "/extra"),
        (".", "0", ""),
    )
    for part in record
)
BASE = BasePin(image="debian:bookworm", digest=f"sha256:{'0' * 64}")


def no_engine() -> NoReturn:
    raise AssertionError("no engine is needed")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[SourceToInspect]:
    """What the container got; it always finds the same."""
    got: list[SourceToInspect] = []

    def inspect(
        _engine: Engine, _base: BasePin, source: SourceToInspect, **_more: object
    ) -> Inspected:
        assert source.path.exists()
        got.append(source)
        return Inspected(VARIABLES, "dkms.conf", (), (), ())

    monkeypatch.setattr(dkms_import, "inspect_source", inspect)
    monkeypatch.setattr(dkms_import, "find_base", lambda *_args, **_more: BASE)
    return got


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n")
    return Settings(root=root, config=Config(), catalogue=Catalogue([]), state=tmp_path / "state")


def test_a_folder_becomes_a_driver_that_is_never_overwritten(
    settings: Settings, looked_at: list[SourceToInspect], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    request = ImportRequest(str(source), kernel=KERNEL, output=tmp_path / "drivers")
    made = import_dkms(settings, lambda: None, request)  # type: ignore[arg-type, return-value]  # the stand-ins ignore it
    assert made.file == tmp_path / "drivers/tool/driver.toml"
    assert made.file.read_text() == made.draft.text
    assert looked_at == [SourceToInspect(source, str(source), KERNEL, "x86_64")]
    with pytest.raises(UsageError, match="There is a driver already"):
        import_dkms(settings, lambda: None, request)  # type: ignore[arg-type, return-value]  # as above


def test_a_checkout_is_pinned(
    settings: Settings,
    looked_at: list[SourceToInspect],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "source"
    (source / ".git").mkdir(parents=True)
    answers = {
        "rev-parse": f"{'a' * 40}\n",
        "remote": "git@example.org:maker/tool.git\n",
        "ls-tree": f"100644 blob {'b' * 40}\tMakefile\n160000 commit {'c' * 40}\tsrc/common\n",
    }

    ran: list[list[str]] = []

    def run(argv: list[str], **_more: object) -> Completed:
        for word in argv:
            if word.startswith("--output="):
                Path(word.removeprefix("--output=")).write_bytes(b"tar")
        ran.append(argv)
        said = next((text for word, text in answers.items() if word in argv), "")
        return Completed(tuple(argv), 0, said, "")

    monkeypatch.setattr(dkms_import, "run", run)
    monkeypatch.setattr(dkms_import, "find_program", lambda name: name)
    made = import_dkms(settings, lambda: None, ImportRequest(str(source), kernel=KERNEL))  # type: ignore[arg-type, return-value]  # as above
    assert 'url = "https://example.org/maker/tool.git"' in made.draft.text
    assert f'commit = "{"a" * 40}"' in made.draft.text
    assert 'homepage = "https://example.org/maker/tool"' in made.draft.text
    [modules] = [line for line in made.draft.unknown if "submodules" in line]
    assert "src/common" in modules
    assert "Makefile" not in modules
    # As the container that fetches has it, or the checksum would be another one.
    [fetched] = [argv for argv in ran if "fetch" in argv]
    assert "--depth=1" in fetched
    assert fetched[-2] == source.as_uri()
    assert made.file is None
    assert len(looked_at) == 1
    # A checkout's settings may name programs: what compares and packs looks at a copy.
    inside = [argv for argv in ran if "-C" in argv]
    assert {argv[3] for argv in inside} == {"rev-parse", "remote"}
    answers["diff"] = "dkms.conf\n"
    made = import_dkms(settings, lambda: None, ImportRequest(str(source), kernel=KERNEL))  # type: ignore[arg-type, return-value]  # as above
    assert "commit" not in made.draft.text


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


def test_an_archive_is_unpacked_and_pinned_as_it_came(
    settings: Settings,
    looked_at: list[SourceToInspect],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "dkms.conf").write_text("")
    tarball = tmp_path / "tool.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(tmp_path / "dkms.conf", arcname="tool-2.1/dkms.conf")

    def download(_url: str, *, destination: Path, **_more: object) -> str:
        destination.write_bytes(tarball.read_bytes())
        return "b" * 64

    monkeypatch.setattr(dkms_import, "download_any", download)
    request = ImportRequest("https://x.example/tool.tar.gz", kernel=KERNEL)
    made = import_dkms(settings, lambda: None, request)  # type: ignore[arg-type, return-value]  # as above
    assert looked_at[0].path.name == "tool-2.1"
    assert f'sha256 = "{"b" * 64}"' in made.draft.text
    assert "strip" not in made.draft.text
    assert not (settings.state / "import").exists()
    tarball.write_bytes(b"<html>")
    with pytest.raises(ProvisionError, match="can't be unpacked"):
        import_dkms(settings, no_engine, request)
    monkeypatch.setattr(dkms_import, "MAX_BYTES", -1)
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(tmp_path / "dkms.conf", arcname="tool-2.1/dkms.conf")
    with pytest.raises(ProvisionError, match="too large"):
        import_dkms(settings, no_engine, request)


def test_a_vendors_package_is_unpacked_as_it_would_be_installed(
    settings: Settings,
    looked_at: list[SourceToInspect],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "dkms.conf").write_text("")
    data = tmp_path / "data"
    with tarfile.open(data, "w:xz") as archive:
        archive.add(tmp_path / "dkms.conf", arcname="./usr/src/tool-2.1/dkms.conf")
    package = deb(tmp_path, data.read_bytes())

    def download(_url: str, *, destination: Path, **_more: object) -> str:
        destination.write_bytes(package.read_bytes())
        return "b" * 64

    monkeypatch.setattr(dkms_import, "download_any", download)
    request = ImportRequest("https://x.example/tool-dkms_2.1_all.deb", kernel=KERNEL)
    made = import_dkms(settings, lambda: None, request)  # type: ignore[arg-type, return-value]  # as above
    # One folder at its top, and still nothing is dropped: its source is looked for in usr/src.
    assert looked_at[0].path.name == "tree"
    assert "strip = 0" in made.draft.text
    monkeypatch.setattr(dkms_import, "MAX_FILES", -1)
    with pytest.raises(ProvisionError, match="too large"):
        import_dkms(settings, no_engine, request)


def test_a_zip_file_that_grows_is_refused_before_it_does(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "tool.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("tool/dkms.conf", "#" * 100_000)

    def download(_url: str, *, destination: Path, **_more: object) -> str:
        destination.write_bytes(packed.read_bytes())
        return "b" * 64

    monkeypatch.setattr(dkms_import, "download_any", download)
    monkeypatch.setattr(dkms_import, "MAX_BYTES", 99_999)
    with pytest.raises(ProvisionError, match="too large"):
        import_dkms(settings, no_engine, ImportRequest("https://x.example/tool.zip", kernel=KERNEL))


def test_an_address_with_a_secret_is_refused_without_showing_it(settings: Settings) -> None:
    for url in ("https://me:hush@x.example/t.tar", "https://x.example/t.tar?token=hush"):
        with pytest.raises(UsageError, match="password or token") as caught:
            import_dkms(settings, no_engine, ImportRequest(url, kernel=KERNEL))
        assert "hush" not in f"{caught.value.message}{caught.value.resolution}"


def test_a_damaged_archive_is_no_traceback(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tarball = tmp_path / "tool.tar.xz"
    content = random.Random(0).randbytes(1 << 20)  # noqa: S311 - the same each time
    (tmp_path / "a").write_bytes(content.hex().encode())
    with tarfile.open(tarball, "w:xz") as archive:
        archive.add(tmp_path / "a", arcname="tool/a")
        archive.add(tmp_path / "a", arcname="tool/b")
    raw = bytearray(tarball.read_bytes())
    raw[len(raw) // 4 : len(raw) // 4 + 40] = b"\xff" * 40

    def download(_url: str, *, destination: Path, **_more: object) -> str:
        destination.write_bytes(raw)
        return "b" * 64

    monkeypatch.setattr(dkms_import, "download_any", download)
    with pytest.raises(ProvisionError, match="can't be unpacked: damaged"):
        import_dkms(
            settings, no_engine, ImportRequest("https://x.example/tool.tar.xz", kernel=KERNEL)
        )


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    texts = {
        ("bookworm", "main"): "\n".join(
            stanza(name, "5-1") for name in ("dkms", "kmod", "libc6-dev", "perl")
        ),
        ("bookworm", "contrib"): stanza(
            "tool-dkms", "2.1-3", depends="dkms (>= 3), perl:any | none, libc6-dev | libc-dev, kmod"
        ),
    }
    made: list[ArchiveIndex] = []

    def open_index(*_args: object, **_more: object) -> ArchiveIndex:
        made.append(index_of(tmp_path / f"index-{len(made)}", texts))
        return made[-1]

    package = tmp_path / "tool.deb"
    package.write_bytes(b"")
    monkeypatch.setattr(dkms_import, "open_index", open_index)
    monkeypatch.setattr(PackageStore, "fetch", lambda *_args, **_more: package)
    yield
    for index in made:
        index.close()


@pytest.mark.usefixtures("archive")
def test_a_package_brings_its_component_and_tools(
    settings: Settings, looked_at: list[SourceToInspect]
) -> None:
    request = ImportRequest("tool-dkms", kernel=KERNEL)
    made = import_dkms(settings, lambda: None, request)  # type: ignore[arg-type, return-value]  # as above
    assert 'package = "tool-dkms"' in made.draft.text
    assert 'components = ["contrib"]' in made.draft.text
    assert 'packages = ["perl", "libc6-dev"]' in made.draft.text
    assert looked_at[0].path.name == "tool.deb"


@pytest.mark.usefixtures("archive", "looked_at")
@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (ImportRequest("no-dkms", kernel=KERNEL), NotFoundError, "no package 'no-dkms'"),
        (ImportRequest("no/folder", kernel=KERNEL), NotFoundError, "no folder 'no/folder'"),
        (ImportRequest("https://x/t.git", kernel=KERNEL), UsageError, "is a repository"),
        (ImportRequest("tool-dkms", kernel="no kernel"), UsageError, "no kernel release"),
        (ImportRequest("tool-dkms"), NotFoundError, "no kernel under"),
        (
            ImportRequest("tool-dkms", kernel=KERNEL, distro="rocky:9"),
            NotFoundError,
            "no archive that apt reads",
        ),
    ],
)
def test_what_is_not_there_is_said_with_a_way_out(
    settings: Settings, request_: ImportRequest, error: type[ProvisionError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        import_dkms(settings, no_engine, request_)
    assert caught.value.resolution
