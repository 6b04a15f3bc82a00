"""From a wish to an archive: sources of a served mirror, and an engine that builds in no time."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from provision.build.diagnosis import BuildError
from provision.build.workspace import Settings, load_settings
from provision.distros.debian.distro_archive import SourceFile, SourcePackage
from provision.engine.docker_api import BuildOptions, Image, Message
from provision.errors import NotFoundError, UsageError
from provision.export.host_python import PythonRequest, make_python, plan_python, python_sources
from provision.export.host_python.python_sources import python_package
from provision.progress import Event, Note
from unit.engine.fake_engine import FakeEngine
from unit.export.host_python.elf_files import elf_file
from unit.fake_archive import index_of, stanza

_BASE = Image("sha256:" + "a" * 64, ("debian:bookworm",), architecture="amd64")
_PREFIX = "/opt/provision/python"
_SOURCES = {"orig": b"source", "debian": b"patches"}


@dataclass
class Workshop:
    """What is needed to make one.

    Attributes:
        settings: A Debian 12 machine.
        engine: Its engine; builds what ``content`` has.
        content: What the next image holds.
        served: Sources that the mirror has, by their addresses.
    """

    settings: Settings
    engine: FakeEngine
    content: Path
    served: dict[str, bytes]

    def options(self, output: Path) -> dict[str, object]:
        return {"distro": "debian:12", "prefix": _PREFIX, "output": output}


def _source(version: str) -> SourcePackage:
    def file(part: str) -> SourceFile:
        name = f"python3.11_{version}.{part}.tar.xz"
        digest = hashlib.sha256(_SOURCES[part]).hexdigest()
        return SourceFile(name, f"http://mirror.example/{name}", digest, len(_SOURCES[part]))

    return SourcePackage("python3.11", version, (file("orig"), file("debian")))


class _Engine(FakeEngine):
    """Has an image with the right labels after a build that said nothing bad."""

    content: Path

    def build(self, context: IO[bytes], options: BuildOptions) -> Iterator[Message]:
        del options
        files = {}
        with tarfile.open(fileobj=context) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                files[member.name] = stream.read() if stream else b""
        digest = json.loads(files["bundle.json"])["digest"]
        self.calls.append(f"build {sorted(files)}")
        yield from self.conversation
        identity = "sha256:" + "c" * 64
        self.have(Image(identity, labels={"provision.python.digest": digest}), self.content)
        yield {"aux": {"ID": identity}}
        yield {"stream": "Successfully built cccccccccccc\n"}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    root = tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    packages = "".join(f"{stanza(name, '1.0')}\n" for name in python_sources._PACKAGES)  # noqa: SLF001
    python = stanza("python3", "3.11.2-1", depends="python3.11 (>= 3.11.2-1~), libc6")
    texts = {("bookworm", "main"): f"{packages}{python}"}
    monkeypatch.setattr(
        python_sources, "open_index", lambda *_, **__: index_of(tmp_path / "index", texts)
    )
    sources = [_source("3.11.2-6+deb12u9"), _source("3.11.2-6")]
    monkeypatch.setattr(python_sources, "find_sources", lambda *_, **__: sources)
    served = {file.url: _SOURCES[part] for source in sources for part, file in _parts(source)}

    def download(url: str, *, sha256: str, destination: Path, **_: object) -> bool:
        if url not in served:
            raise NotFoundError(f"'{url}' does not exist (404 Not Found).")
        assert hashlib.sha256(served[url]).hexdigest() == sha256
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_bytes(served[url])
        return True

    monkeypatch.setattr(python_sources, "download", download)
    engine = _Engine()
    engine.have(_BASE)
    engine.conversation = [{"stream": "Step 1/1 : FROM base\n"}]
    engine.content = tmp_path / "content"
    _fill(engine.content)
    return Workshop(load_settings(root), engine, engine.content, served)


def _parts(source: SourcePackage) -> Iterator[tuple[str, SourceFile]]:
    yield "orig", source.file(".orig.tar.")
    yield "debian", source.file(".debian.tar.")


def _fill(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    program = elf_file(loader=f"{_PREFIX}/lib/ld.so", rpath=f"{_PREFIX}/lib")
    (folder / "bin/python3").write_bytes(program)
    (folder / "lib/ld.so").write_bytes(elf_file())


def test_an_archive_is_made_and_the_image_serves_a_second_time(
    workshop: Workshop, tmp_path: Path
) -> None:
    first = make_python(
        workshop.settings, lambda: workshop.engine, PythonRequest("debian:12", _PREFIX, tmp_path)
    )
    assert first.built
    assert first.path == tmp_path / "provision-python-3.11.2-x86_64.tar.gz"
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    with tarfile.open(first.path) as archive:
        assert "opt/provision/python/bin/python3" in archive.getnames()
    (built,) = [call for call in workshop.engine.calls if call.startswith("build")]
    assert "source/python3.11_3.11.2-6+deb12u9.orig.tar.xz" in built
    again = make_python(
        workshop.settings,
        lambda: workshop.engine,
        PythonRequest("debian:12", _PREFIX, tmp_path / "again.tar.gz"),
    )
    assert not again.built
    assert again.sha256 == first.sha256


def test_a_mirror_that_lags_behind_gives_an_older_source(
    workshop: Workshop, tmp_path: Path
) -> None:
    events: list[Event] = []
    for url in [url for url in workshop.served if "deb12u9" in url]:
        del workshop.served[url]
    planned = plan_python(
        workshop.settings,
        lambda: workshop.engine,
        PythonRequest("debian:12", _PREFIX, tmp_path),
        progress=events.append,
    )
    assert planned.pin.package == "3.11.2-6"
    assert planned.would_build
    notes = [event.text for event in events if isinstance(event, Note)]
    assert any("Not python3.11 3.11.2-6+deb12u9" in note for note in notes)
    assert workshop.engine.calls == []


def test_a_python_that_is_not_whole_is_not_packed(workshop: Workshop, tmp_path: Path) -> None:
    (workshop.content / "lib/ld.so").unlink()
    target = tmp_path / "made.tar.gz"
    with pytest.raises(Exception, match="would need something of the host"):
        make_python(
            workshop.settings, lambda: workshop.engine, PythonRequest("debian:12", _PREFIX, target)
        )
    assert not target.exists()


def test_a_failed_step_is_reported_with_its_last_lines(workshop: Workshop, tmp_path: Path) -> None:
    workshop.engine.conversation = [
        {"stream": "Step 1/2 : RUN make\n"},
        {"stream": "Modules/_ssl.c:1:2: error: no OpenSSL\n"},
        {"error": "the command 'make' returned 2", "errorDetail": {"code": 2}},
    ]
    with pytest.raises(BuildError, match=r"Python 3\.11\.2 could not be built") as caught:
        make_python(
            workshop.settings,
            lambda: workshop.engine,
            PythonRequest("debian:12", _PREFIX, tmp_path),
        )
    assert "no OpenSSL" in (caught.value.details or "")
    assert caught.value.log is not None
    assert "RUN make" in caught.value.log.read_text()


def test_a_prefix_that_is_none_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'/opt'"):
        plan_python(
            workshop.settings, lambda: workshop.engine, PythonRequest("debian:12", "/opt", tmp_path)
        )


def test_a_distro_without_a_python_says_so(tmp_path: Path) -> None:
    texts = {("bookworm", "main"): stanza("python3", "1", depends="libc6")}
    with pytest.raises(NotFoundError, match="no Python of its own"):
        python_package(index_of(tmp_path, texts))
