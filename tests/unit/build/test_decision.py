"""From a request to a Pin."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

from provision.build.decision import decide, recipe_digest
from provision.build.package_store import Closure
from provision.build.templates import Templates
from provision.build.version_choice import BuildTarget, KernelRequest
from provision.catalogue import Entry, Recipe
from provision.distros.debian import ArchiveIndex
from provision.errors import ExitCode, NotFoundError, ProvisionError, UsageError
from provision.pin import (
    ArchiveSource,
    BasePin,
    ClosurePackage,
    DistroPin,
    GitSource,
    PackagePin,
    Pin,
)
from provision.sources import components_of
from provision.sources.market import VersionRequest
from unit.fake_archive import index_of, sample, stanza
from unit.recipes import recipe, variant

BASE = BasePin(image="debian:bookworm", digest="sha256:" + "b" * 64)
TEMPLATES = Templates("apt", "Dockerfile", {"Dockerfile": "FROM scratch"}, {})
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
def index(tmp_path: Path) -> Iterator[ArchiveIndex]:
    made = index_of(
        tmp_path,
        {
            ("bookworm", "main"): packages(),
            ("bookworm-security", "main"): sample("bookworm-security", "main"),
        },
    )
    yield made
    made.close()


class Options(TypedDict, total=False):
    kernel: str
    of: Recipe
    version: str
    branches: tuple[str, ...]
    flavour: str
    prefer: str
    force: bool
    architecture: str


def target(of: Recipe, distro: DistroPin) -> BuildTarget:
    entry = Entry(Path("/drivers/made-up"), of, {"fix.patch": PATCH})
    return BuildTarget(entry, distro, TEMPLATES)


def pin(index: ArchiveIndex, **options: Unpack[Options]) -> Pin:
    return decide(
        KernelRequest(
            options.get("kernel", KERNEL),
            options.get("architecture", "x86_64"),
            VersionRequest(options.get("version"), options.get("branches"), options.get("prefer")),
            flavour=options.get("flavour"),
            force=options.get("force", False),
        ),
        target(options.get("of", recipe()), DISTRO),
        index=index,
    ).pin(BASE, CLOSURE)


def test_everything_is_pinned(index: ArchiveIndex) -> None:
    found = pin(index)
    assert (found.driver.name, found.driver.version, found.driver.flavour) == (
        "made-up",
        "1.10",
        "plain",
    )
    assert (found.kernel.release, found.kernel.architecture) == (KERNEL, "x86_64")
    assert found.distro.codename == "bookworm"
    assert (found.base, found.template) == (BASE, TEMPLATES.digest)
    assert (found.compiler, found.headers) == (CLOSURE.compiler, CLOSURE.headers)
    assert (found.packages, found.closure) == (CLOSURE.tools, CLOSURE.packages)
    assert [(source.name, source.version) for source in found.sources if source.kind == "deb"] == [
        ("tool-source", "1.10-0+deb12u1"),
        ("tool-user", "1.10-0+deb12u1"),
        ("tool-companion", "0.7-1"),
    ]
    assert [patch.name for patch in found.patches] == ["fix.patch"]
    assert found.signing_key is None


def test_the_same_request_gives_the_same_pin(index: ArchiveIndex) -> None:
    assert pin(index).digest == pin(index).digest
    assert pin(index).digest == pin(index, version="1.10", flavour="plain", force=True).digest


def test_a_flavour_has_its_own_package_and_patches(index: ArchiveIndex) -> None:
    found = pin(index, flavour="other")
    assert found.driver.version == "2.0"
    assert found.patches == ()


def test_the_newest_version_that_fits_the_kernel_is_taken(tmp_path: Path) -> None:
    more = [stanza("tool-source", "3.0-1"), stanza("tool-user", "3.0-1")]
    index = index_of(tmp_path / "i", {("bookworm", "main"): packages(*more)})
    kernels = [
        {"versions": "==1.*", "kernels": ">=6.1,<6.2"},
        {"versions": ">=2", "kernels": ">=6.5"},
    ]
    assert pin(index, of=recipe(kernels=kernels)).driver.version == "1.10"
    assert pin(index).driver.version == "3.0"
    index.close()


def test_a_branch_stands_for_its_newest_version_that_fits(tmp_path: Path) -> None:
    more = [
        stanza(name, f"{v}-1")
        for v in ("3.1", "3.10", "3.2")
        for name in ("tool-source", "tool-user")
    ]
    index = index_of(tmp_path / "i", {("bookworm", "main"): packages(*more)})
    assert pin(index, version="3").driver.version == "3.10"
    assert pin(index, version="1").driver.version == "1.10"
    # 3.1 is a version, and no branch with 3.10 in it.
    assert pin(index, version="3.1").driver.version == "3.1"
    older = [{"versions": "<3.10", "kernels": ">=6.1"}]
    assert pin(index, of=recipe(kernels=older), version="3").driver.version == "3.2"
    assert refused(index, version="4").message.startswith("'made-up' (plain) has no version 4")
    index.close()


def test_a_version_stays_as_long_as_it_fits_what_is_asked(tmp_path: Path) -> None:
    more = [stanza(name, f"{v}-1") for v in ("3.1", "3.2") for name in ("tool-source", "tool-user")]
    index = index_of(tmp_path / "i", {("bookworm", "main"): packages(*more)})
    assert pin(index, prefer="3.1").driver.version == "3.1"
    assert pin(index, version="3", prefer="3.1").driver.version == "3.1"
    assert pin(index, version="1", prefer="3.1").driver.version == "1.10"
    assert pin(index, prefer="2.9").driver.version == "3.2"
    newer = [{"versions": ">=3.2", "kernels": ">=6.1"}]
    assert pin(index, of=recipe(kernels=newer), prefer="3.1").driver.version == "3.2"
    index.close()


def test_a_kind_of_branch_stands_for_the_first_of_its_branches_that_is_offered(
    tmp_path: Path,
) -> None:
    more = [
        stanza(name, f"{v}-1")
        for v in ("3.1", "3.2", "4.1", "40.1")
        for name in ("tool-source", "tool-user")
    ]
    index = index_of(tmp_path / "i", {("bookworm", "main"): packages(*more)})

    def version(*branches: str, prefer: str = "") -> str:
        found = pin(index, version="lts", branches=branches, prefer=prefer)
        return found.driver.version

    assert version("5", "3", "4") == "3.2"
    assert version("4") == "4.1"
    assert version("3.1") == "3.1"
    # What was chosen stays as long as its branch is accepted.
    assert version("4", "3", prefer="3.1") == "3.1"
    assert version("4", prefer="3.1") == "4.1"
    older = [{"versions": "<4", "kernels": ">=6.1"}]
    found = pin(index, of=recipe(kernels=older), version="lts", branches=("4", "3"))
    assert found.driver.version == "3.2"
    error = refused(index, version="lts", branches=("5", "6"))
    assert error.message == "'made-up' (plain) has no version lts for debian 12."
    assert (error.resolution or "").startswith("Branches of this kind: 5, 6. There are 40.1, 4.1,")
    assert (refused(index, version="tls").resolution or "").startswith("Did you mean 'lts'?")
    assert "none that are known" in (refused(index, version="lts", branches=()).resolution or "")
    index.close()


def refused(index: ArchiveIndex, **options: Unpack[Options]) -> NotFoundError:
    with pytest.raises(NotFoundError) as caught:
        pin(index, **options)
    assert caught.value.exit_code is ExitCode.NOT_FOUND
    return caught.value


def test_an_unknown_version_is_answered_with_those_there_are(index: ArchiveIndex) -> None:
    error = refused(index, version="1.1")
    assert error.message == "'made-up' (plain) has no version 1.1 for debian 12."
    assert error.resolution == "Did you mean '1.10'? There are 1.10, 1.9."
    assert "  http://mirror.example/debian bookworm main" in (error.details or "")


def test_an_unknown_flavour_is_answered_with_those_there_are(index: ArchiveIndex) -> None:
    error = refused(index, flavour="plane")
    assert error.resolution == "Did you mean 'plain'? There are plain, other."


def test_a_flavour_that_the_distro_lacks_points_to_another(tmp_path: Path) -> None:
    text = packages().replace("Package: tool-source", "Package: renamed")
    index = index_of(tmp_path, {("bookworm", "main"): text})
    error = refused(index)
    assert "there is no package tool-source" in error.message
    assert error.resolution == "Take another flavour (--flavour): other."
    index.close()


def test_a_driver_that_the_distro_lacks_altogether(tmp_path: Path) -> None:
    index = index_of(tmp_path, {("bookworm", "main"): sample("bookworm", "main")})
    assert refused(index).resolution is None
    index.close()


def test_a_kernel_without_headers_is_refused(index: ArchiveIndex) -> None:
    assert "No headers are packaged" in refused(index, kernel="6.1.0-48-amd64").message


def test_a_kernel_that_the_driver_isnt_known_to_build_on_is_refused(index: ArchiveIndex) -> None:
    error = refused(index, kernel="6.12.117+deb12-amd64")
    assert error.message == (
        "'made-up' 1.10 is not known to build on the kernel 6.12.117+deb12-amd64."
    )
    assert "--force" in (error.resolution or "")
    assert (error.details or "").splitlines() == [
        "driver.toml, ==1.*: kernels >=6.1,<6.2",
        "packaged kernels that it builds on: 6.1.0-56-amd64, 6.1.0-50-amd64, 6.1.0-47-amd64",
    ]


def test_force_goes_on_all_the_same(index: ArchiveIndex) -> None:
    found = pin(index, kernel="6.12.117+deb12-amd64", force=True)
    assert found.kernel.release == "6.12.117+deb12-amd64"


def test_nothing_known_about_a_version_is_said(index: ArchiveIndex) -> None:
    kernels = [{"versions": "==7.*", "kernels": ">=5"}]
    error = refused(index, of=recipe(kernels=kernels))
    assert "nothing about this version" in (error.details or "")
    assert "another version" in (error.resolution or "")


@pytest.mark.parametrize("kernel", ["no kernel", ""])
def test_what_is_no_kernel_is_wrong_usage(kernel: str, index: ArchiveIndex) -> None:
    with pytest.raises(UsageError, match="is no kernel release"):
        pin(index, kernel=kernel)


@pytest.mark.parametrize("architecture", ["i686", "armv7l"])
def test_a_machine_that_nothing_is_built_for_is_named(
    architecture: str, index: ArchiveIndex
) -> None:
    with pytest.raises(NotFoundError, match=f"'{architecture}' is not supported"):
        pin(index, architecture=architecture)


def test_user_space_of_another_version_is_named(index: ArchiveIndex) -> None:
    error = refused(index, version="1.9")
    assert "no user space of 'made-up' 1.9" in error.message
    assert error.details == "tool-user: 2.0, 1.10"


@pytest.mark.parametrize("key", ["userspace", "companions"])
def test_user_space_that_the_archive_lacks_is_named(key: str, index: ArchiveIndex) -> None:
    source: dict[str, object] = {"kind": "deb", key: ["tool-missing"]}
    assert "has no package tool-missing" in refused(index, of=recipe(source=source)).message


VENDOR = {
    "plain": {"licences": ["MIT"], "build": {"command": ["make"], "modules": ["tool.ko"]}},
}


def test_a_vendors_archive_is_pinned_by_its_checksum(index: ArchiveIndex) -> None:
    release = {"version": "1.5", "url": "https://driver.example/1.5.zip", "sha256": "d" * 64}
    source = {"kind": "archive", "releases": [release]}
    found = pin(index, of=recipe(source=source, flavours=VENDOR, patches=[]))
    assert found.sources == (ArchiveSource(url=release["url"], sha256="d" * 64),)


def test_a_vendors_repository_is_pinned_by_commit_and_checksum(index: ArchiveIndex) -> None:
    release = {
        "version": "1.5",
        "url": "https://driver.example/git",
        "commit": "e" * 40,
        "sha256": "d" * 64,
    }
    source = {"kind": "git", "releases": [release]}
    found = pin(index, of=recipe(source=source, flavours=VENDOR, patches=[]))
    assert found.sources == (
        GitSource(url=release["url"], commit=release["commit"], sha256=release["sha256"]),
    )


def test_main_needs_no_mention() -> None:
    source = {"kind": "deb", "components": ["non-free", "main", "contrib"]}
    assert components_of(recipe(source=source), ("debian",)) == ("contrib", "non-free")


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": "Another text"},
        {"vendor": "Someone"},
        {"homepage": "https://elsewhere.example"},
        {"kernels": [{"kernels": ">=1"}]},
        {"hardware": {"pci": []}},
    ],
)
def test_what_doesnt_reach_the_build_leaves_the_digest(changes: dict[str, object]) -> None:
    assert digest(recipe(**changes)) == digest(recipe())


def test_what_reaches_the_build_changes_the_digest() -> None:
    base = recipe()
    flavours = {name: value.model_dump(mode="json") for name, value in base.flavours.items()}
    other = {**flavours, "plain": {**flavours["plain"], "licences": ["BSD-3-Clause"]}}
    container = {**base.container.model_dump(mode="json"), "log_level": "LOG_DEBUG"}
    changed = [recipe(flavours=other), recipe(container=container), recipe(files=[])]
    digests = {digest(one) for one in [base, *changed]}
    assert len(digests) == 4
    assert digest(recipe(flavours=other), "other") == digest(base, "other")


@pytest.mark.parametrize(
    "more",
    [
        stanza("tool-source", "1.11_1-1"),
        stanza("tool-companion", "0.9_1-1"),
        "\n".join(stanza(f"tool-{part}", f"1.{'1' * 70}-1") for part in ("source", "user")),
    ],
)
def test_a_package_that_a_pin_cant_hold_is_an_error_of_ours(tmp_path: Path, more: str) -> None:
    made = index_of(tmp_path / "odd", {("bookworm", "main"): packages(more)})
    with pytest.raises(ProvisionError) as caught:
        pin(made)
    assert (
        "be pinned" in caught.value.message or "a version that is not valid" in caught.value.message
    )
    made.close()


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
    return decide(
        KernelRequest("6.1.0-1.el9.x86_64", "x86_64", VersionRequest(version)),
        target(of or several(), ROCKY),
        index=None,
        published_sum=lambda url, sums: hashlib.sha256(f"{url} {sums}".encode()).hexdigest(),
    ).pin(BASE, CLOSURE)


def test_each_distro_has_the_source_that_serves_it(index: ArchiveIndex) -> None:
    ours, theirs = pin(index, of=several()), pin_for_rocky("1.10")
    assert [source.kind for source in ours.sources] == ["deb", "deb"]
    (run,) = theirs.sources
    assert run.kind == "runfile"
    assert run.address == "https://driver.example/1.10/driver-x86_64.run"
    sums = "https://driver.example/1.10/sums"
    assert run.sha256 == hashlib.sha256(f"{run.address} {sums}".encode()).hexdigest()
    assert ours.recipe != theirs.recipe


def test_the_first_source_goes_before_newer_versions_of_others(index: ArchiveIndex) -> None:
    kernels = [{"kernels": ">=6.1,<6.13"}]
    assert pin(index, of=several(kernels=kernels)).driver.version == "1.10"
    # A branch that the first does not serve is the other's.
    assert pin_for_rocky(of=several(kernels=kernels)).driver.version == "2.0"


def test_a_version_that_nothing_lists_is_taken_from_the_source_that_serves_any() -> None:
    assert pin_for_rocky("2.5.1").driver.version == "2.5.1"
    with pytest.raises(NotFoundError, match="has no version 3 for rocky 9"):
        pin_for_rocky("3")


def test_a_distro_that_no_source_serves_gets_the_list_of_served_ones() -> None:
    with pytest.raises(NotFoundError, match="its sources serve debian") as caught:
        pin_for_rocky(of=several(source=[SOURCES[0]]))
    assert "provision drivers" in str(caught.value.resolution)


def test_a_version_of_another_distro_or_flavour_is_said_to_be_there() -> None:
    def source(
        name: str, distro: str, version: str, flavour: str, served: str
    ) -> dict[str, object]:
        url = f"https://driver.example/{version}.tar"
        return {
            "kind": "archive",
            "name": name,
            "distros": [distro],
            "versions": served,
            "releases": [{"version": version, "url": url, "sha256": "0" * 64}],
            "build": {flavour: {"command": ["make"], "modules": ["t.ko"]}},
        }

    sources = [
        source("first", "ubuntu", "3.1", "plain", ""),
        source("own", "rocky", "2.0", "plain", "<4"),
        source("third", "rocky", "4.0", "other", ">=4"),
    ]
    flavours = {name: {"licences": ["MIT"]} for name in ("plain", "other")}
    of = several(source=sources, flavours=flavours)
    for wish, said in (
        ("3", "the source 'first' has it, for ubuntu only"),
        ("4.0", "the flavour 'other' has it for rocky 9 (--flavour)"),
        ("5", None),
    ):
        with pytest.raises(NotFoundError, match="has no version") as caught:
            pin_for_rocky(wish, of)
        assert caught.value.details == said
