"""An engine whose containers answer a solve, by hand; apt, dnf and zypper do in tests/engine."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from provision.distros.distro import find_distro, release_of
from provision.distros.family import SolveRequest
from provision.engine.docker_api import Container, ContainerRequest, Engine, Image, Ran
from provision.pin import BasePin
from unit.engine.fake_engine import FakeEngine

KERNEL = "5.14.0-427.el9.x86_64"


BASE_DIGEST = f"sha256:{'b' * 64}"


KERNEL_CONFIG = b'CONFIG_CC_VERSION_TEXT="gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)"\n'


PACKAGE_FILES = {"kernel-devel.rpm": b"headers", "gcc.rpm": b"compiler", "make.rpm": b"tool"}


def line(name: str, version: str) -> str:
    content = PACKAGE_FILES[f"{name}.rpm"]
    digest = hashlib.sha256(content).hexdigest()
    return (
        f"package\t{name}\t(none)\t{version}\t1.el9\tx86_64\t{len(content)}\t{digest}\t{name}.rpm"
    )


class FakeContainer:
    """Answers scripts in the order of ``answers``: status, output, listing."""

    def __init__(self, answers: list[tuple[int, str, str]], config: bytes = KERNEL_CONFIG) -> None:
        self.answers = answers
        self.config = config
        self.scripts: list[str] = []
        self.listing = b""
        self.files_given: dict[str, bytes] = {}

    def put(self, files: dict[str, bytes], folder: str) -> None:
        assert folder == "/provision/solve"
        self.files_given = files
        self.scripts.append(files["script.sh"].decode())

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        if "os-release" in script:
            return Ran(0, "9.6")
        assert script == "sh /provision/solve/script.sh"
        status, said, listing = self.answers.pop(0)
        on_line(said)
        self.listing = listing.encode()
        return Ran(status, said)

    def read(self, path: str) -> bytes:
        return self.config if path.endswith("/config") else self.listing

    def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
        assert path == "/provision/solve/packages"
        for name, content in PACKAGE_FILES.items():
            yield name, io.BytesIO(content)


class SolvingEngine(FakeEngine):
    """Starts fake containers, one after the other."""

    def __init__(self, *containers: FakeContainer, architecture: str = "amd64") -> None:
        super().__init__()
        self.containers = list(containers)
        self.requests: list[ContainerRequest] = []
        self.have(Image(id=BASE_DIGEST, tags=("rocky:9",), architecture=architecture))

    @contextmanager
    def container(self, request: ContainerRequest) -> Iterator[Container]:
        self.requests.append(request)
        yield cast("Any", self.containers.pop(0))


def request(root: Path, distro: str = "rocky:9", **changes: object) -> SolveRequest:
    data, release = release_of(find_distro(distro))
    wish = SolveRequest(
        distro=data,
        release=release,
        base=BasePin(image="rocky:9", digest=BASE_DIGEST),
        kernel=KERNEL,
        architecture="x86_64",
        tools=("gcc", "make"),
        root=root,
    )
    return wish._replace(**cast("Any", changes))


def never() -> Engine:
    raise AssertionError("the engine was asked for")


BOTH = "\n".join([line("kernel-devel", "5.14.0"), line("gcc", "11.4.1"), line("make", "4.3")])


GOOD = [(0, "", line("kernel-devel", "5.14.0")), (0, "", BOTH)]


def touch_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
