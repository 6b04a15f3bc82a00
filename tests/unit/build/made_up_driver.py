"""A made-up driver in a sample of Debian's archive, and the Pin of a request for it."""

import hashlib
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

from provision.build.dockerfile import recipe_digest
from provision.build.package_store import Closure
from provision.build.request import DriverRequest, VersionRequest
from provision.build.resolve import kernel_pin, make_pin
from provision.build.versions import choose_version
from provision.catalogue import Entry, Recipe
from provision.catalogue.suitability import chosen_flavour
from provision.config import Untried
from provision.distros.archive import Archive
from provision.distros.distro import source_names
from provision.errors import ExitCode, NotFoundError
from provision.pin import (
    BasePin,
    ClosurePackage,
    DistroPin,
    PackagePin,
    Pin,
)
from provision.sources.candidates import SourceContext
from unit.fake_archive import archive_of, sample, stanza
from unit.recipes import recipe, variant

BASE = BasePin(image="debian:bookworm", digest="sha256:" + "b" * 64)


KERNEL = "6.1.0-47-amd64"


DISTRO = DistroPin(id="debian", version="12", codename="bookworm")


PATCH = b"--- a\n+++ b\n"


_COMPILER = PackagePin(name="gcc-12", version="12.2.0-14+deb12u1")


CLOSURE = Closure(
    distro=DISTRO,
    kernel=KERNEL,
    architecture="x86_64",
    cc_version_text="gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0",
    compiler=_COMPILER,
    headers=(PackagePin(name=f"linux-headers-{KERNEL}", version="6.1.170-3"),),
    tools=(PackagePin(name="make", version="4.3-4.1"),),
    packages=(
        ClosurePackage(
            name="gcc-12",
            version=_COMPILER.version,
            arch="amd64",
            sha256="f" * 64,
            size=1,
            repository="main",
            location="pool/main/g/gcc-12/gcc-12_12.2.0-14+deb12u1_amd64.deb",
        ),
    ),
)


def digest(of: Recipe, flavour: str = "plain") -> str:
    return recipe_digest(of, variant(of, flavour))


def packages(*more: str) -> str:
    return "\n".join(
        [
            sample("bookworm", "main"),
            stanza("tool-source", "1.9-2"),
            stanza("tool-source", "1.10-0+deb12u1"),
            stanza("tool-other-source", "2.0-1"),
            stanza("tool-user", "1.10-0+deb12u1"),
            stanza("tool-user", "2.0-1"),
            stanza("tool-companion", "0.5-1"),
            stanza("tool-companion", "0.7-1"),
            *more,
        ]
    )


@pytest.fixture
def index() -> Archive:
    return archive_of(
        {
            ("bookworm", "main"): packages(),
            ("bookworm-security", "main"): sample("bookworm-security", "main"),
        },
    )


class Options(TypedDict, total=False):
    kernel: str
    of: Recipe
    version: str
    branches: tuple[str, ...]
    flavour: str
    prefer: str
    force: bool
    untried: Untried
    ended: frozenset[str]
    architecture: str


def decided(
    request: DriverRequest,
    of: Recipe,
    distro: DistroPin,
    version: VersionRequest,
    context: SourceContext,
    untried: Untried = "build",
) -> Pin:
    entry = Entry(Path("/drivers/made-up"), of, {"fix.patch": PATCH})
    kernel = kernel_pin(request.kernel or "", context.architecture)
    flavour = chosen_flavour(of, request.flavour, request.version, version.cards)
    chosen = choose_version(
        of, flavour, version, kernel.release, context, untried=untried, force=request.force
    )
    return make_pin(entry, flavour, chosen, kernel, distro, None, BASE, CLOSURE)


def pin(index: Archive, **options: Unpack[Options]) -> Pin:
    return decided(
        DriverRequest(
            "made-up",
            kernel=options.get("kernel", KERNEL),
            flavour=options.get("flavour"),
            force=options.get("force", False),
        ),
        options.get("of", recipe()),
        DISTRO,
        VersionRequest(
            options.get("version"),
            options.get("branches"),
            options.get("prefer"),
            options.get("ended", frozenset()),
        ),
        SourceContext(
            "debian 12", source_names(DISTRO), index, options.get("architecture", "x86_64")
        ),
        untried=options.get("untried", "build"),
    )


def refused(index: Archive, **options: Unpack[Options]) -> NotFoundError:
    with pytest.raises(NotFoundError) as caught:
        pin(index, **options)
    assert caught.value.exit_code is ExitCode.NOT_FOUND
    return caught.value


ROCKY = DistroPin(id="rocky", version="9", codename="el9")


SOURCES = [
    {
        "kind": "deb",
        "distros": ["debian"],
        "versions": "<2",
        "userspace": ["tool-user"],
        "build": {"plain": {"package": "tool-source", "command": ["make"], "modules": ["t.ko"]}},
    },
    {
        "kind": "runfile",
        "url": "https://driver.example/{version}/driver-{arch}.run",
        "checksums": "https://driver.example/{version}/sums",
        "releases": [{"version": "2.0"}, {"version": "1.10"}],
        "build": {
            "plain": {"directory": "kernel-open", "command": ["make", "own"], "modules": ["t.ko"]}
        },
    },
]


def several(**changes: object) -> Recipe:
    plain = {"licences": ["MIT"]}
    return recipe(**{"source": SOURCES, "flavours": {"plain": plain}, "files": [], **changes})


def pin_for_rocky(version: str | None = None, of: Recipe | None = None) -> Pin:
    return decided(
        DriverRequest("made-up", kernel="6.1.0-1.el9.x86_64"),
        of or several(),
        ROCKY,
        VersionRequest(version),
        SourceContext(
            "rocky 9",
            source_names(ROCKY),
            published_sum=lambda url, sums: hashlib.sha256(f"{url} {sums}".encode()).hexdigest(),
        ),
    )
