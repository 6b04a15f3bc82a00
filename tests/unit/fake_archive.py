"""What apt answers, from samples of Debian's own indexes in `tests/data/apt`; more is made up."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from provision.distros.archive import Archive
from provision.distros.family import Repository
from provision.engine.docker_api import Container, ContainerRequest, Image, Ran
from provision.errors import ProvisionError
from unit.engine.fake_engine import FakeEngine

DATA = Path(__file__).parents[1] / "data/apt"
MIRROR = "http://mirror.example/debian"
# Packages texts by suite and component.
Texts = Mapping[tuple[str, str], str]


def sample(suite: str, component: str) -> str:
    """Return a real Packages file, cut down to some packages and fields."""
    return (DATA / f"{suite}_{component}").read_text()


def samples() -> Texts:
    """Return the real packages of Debian 12 in ``tests/data/apt``."""
    return {
        (suite, component): path.read_text()
        for path in sorted(DATA.iterdir())
        for suite, _, component in [path.name.partition("_")]
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


BASE_IMAGE = Image("sha256:" + "a" * 64, ("debian:bookworm",), architecture="amd64")
_GCC = "gcc-12_12.2.0-14+deb12u1_amd64.deb"
_CONFIG = b'CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0"\n'


class AptEngine(FakeEngine):
    """Has Debian 12's base image; its containers answer apt's scripts, which engine tests run.

    Attributes:
        texts: What the archive has.
        asked: The names of each question; their beginnings with ``*``.
        solved: The files of each solve, which finds GCC; all else is in the image.
        unpacked: What each container had that unpacked a kernel.
        requests: The containers.
        trouble: What a container fails with.
    """

    def __init__(self, texts: Texts, image: Image = BASE_IMAGE) -> None:
        super().__init__()
        self.texts = texts
        self.asked: list[tuple[str, ...]] = []
        self.solved: list[dict[str, bytes]] = []
        self.unpacked: list[dict[str, Any]] = []
        self.requests: list[ContainerRequest] = []
        self.trouble: ProvisionError | None = None
        self.have(image)

    @contextmanager
    def container(self, request: ContainerRequest) -> Iterator[Container]:
        if self.trouble is not None:
            raise self.trouble
        self.requests.append(request)
        yield cast("Any", _AptContainer(self))


class _AptContainer:
    def __init__(self, engine: AptEngine) -> None:
        self._engine = engine
        self._files: dict[str, Any] = {}
        self._output = b""

    def put(self, files: dict[str, Any], folder: str) -> None:
        assert folder in {"/provision/solve", "/provision/boot", "/provision/boot/packages"}
        self._files |= files

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        del on_line
        if "kernel.sh" in script:
            self._engine.unpacked.append(self._files)
            return Ran(0, "")
        text = self._files["script.sh"].decode()
        line = next(line for line in text.splitlines() if line.startswith("set -- "))
        if "--print-uris" in text:
            names = re.sub(r'"\$\(first_of (\S+)[^)]*\)"', r"\1", line).split()[2:]
            sha256 = hashlib.sha256(_GCC.encode()).hexdigest()
            package = f"package\t{MIRROR}/pool/main/g/gcc-12/{_GCC}\t{_GCC}\t1\tSHA256:{sha256}"
            rows = [f"installed\t{name}\tamd64\t1" for name in names if name != "gcc-12"]
            self._output = "\n".join([*rows, package, ""]).encode()
            self._engine.solved.append(self._files)
        else:
            asked = re.sub(r"\$\(apt_cache pkgnames (\S+)\)", r"\1*", line).split()[2:]
            self._engine.asked.append(tuple(asked))
            self._output = answer(self._engine.texts, tuple(asked))
        return Ran(0, "")

    def read(self, path: str) -> bytes:
        return _CONFIG if path.endswith("/config") else self._output

    def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
        if path == "/provision/boot/out.tar":
            yield "out.tar", io.BytesIO(self._files["arguments"])
            return
        assert path == "/provision/solve/packages"
        yield _GCC, io.BytesIO(_GCC.encode())


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
