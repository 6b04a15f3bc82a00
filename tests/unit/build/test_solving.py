"""A solve: its request, its container, and its two rounds, headers and tools, then the compiler."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pytest

from kit.files import write, write_all
from kit.fileserver import Mirror
from kit.probe import is_root, need
from provision.build.base_image import base_request, ensure_distro_base
from provision.build.package_store import Closure, PackageStore
from provision.build.request import packaged_distro
from provision.build.solve import closure_of, request_key
from provision.build.workspace import Settings, load_settings
from provision.distros.distro import find_distro, release_of
from provision.distros.family import HeadersGoneError, Repository, SolveRequest, Toolchain
from provision.distros.repositories import repositories_of
from provision.engine.docker_api import Container, ContainerRequest, Image, Ran
from provision.errors import (
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UsageError,
)
from provision.pin import BasePin, DistroPin, PackagePin
from unit.engine.fake_engine import FakeEngine, no_engine, using

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


BOTH = "\n".join([line("kernel-devel", "5.14.0"), line("gcc", "11.4.1"), line("make", "4.3")])
GOOD = [(0, "", line("kernel-devel", "5.14.0")), (0, "", BOTH)]


_REPOSITORY = """
[[distros.{id}.repositories]]
id = "own"
urls = ["https://m.example/os"]
"""
_KEYS = 'keys = ["/etc/pki/own.asc"]\n'


def _host(
    root: Path, text: str = "", *, os_release: str = "ID=debian\nVERSION_ID=12\n"
) -> Settings:
    for name in ("etc/provision", "etc/pki", "etc/yum.repos.d", "etc/zypp/repos.d"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/os-release").write_text(os_release)
    (root / "etc/pki/own.asc").write_bytes(b"KEY")
    (root / "etc/provision/provision.toml").write_text(text)
    return load_settings(root)


def own_repositories(settings: Settings, distro: DistroPin) -> tuple[Repository, ...]:
    return repositories_of(distro, settings.config.distro(distro.id), settings.root)


@pytest.mark.parametrize(
    ("name", "more", "signed"),
    [
        ("rocky:9", "", False),
        ("rocky:9", "signed = true\n", True),
        ("opensuse-leap:15.6", "", True),
        ("sles:15.6", "", True),
        ("opensuse-leap:15.6", "signed = false\n", False),
    ],
)
def test_an_index_has_to_be_signed_as_the_distro_does_it_or_as_is_said(
    tmp_path: Path, name: str, more: str, *, signed: bool
) -> None:
    distro = find_distro(name)
    settings = _host(tmp_path, f"{_REPOSITORY.format(id=distro.id)}{_KEYS}{more}")
    (found,) = own_repositories(settings, distro)
    assert found.is_signed == signed
    assert dict(found.keys) == {"own.asc": b"KEY"}


def test_a_minor_release_is_one_of_its_release(tmp_path: Path) -> None:
    """People write what os-release has."""
    tables = "".join(
        f'{_REPOSITORY.format(id="rocky")}version = "{version}"\n' for version in ("9.4", "8.10")
    )
    images = '[distros.rocky.base_images]\n"9.4" = "mine:9.4"\n"8.10" = "mine:8.10"\n'
    settings = _host(tmp_path, tables + images)
    (found,) = own_repositories(settings, find_distro("rocky:9.4"))
    assert found.id == "own"
    assert base_request(settings, find_distro("rocky:9")).name == "mine:9.4"
    assert base_request(settings, find_distro("rocky:10")).name == "rockylinux/rockylinux:10"
    assert not own_repositories(settings, find_distro("rocky:10"))


def test_keys_of_one_name_are_two_keys(tmp_path: Path) -> None:
    names = ["/etc/pki/own.asc", "/etc/pki/other/own.asc", "/etc/pki/my own.asc"]
    settings = _host(tmp_path, f"{_REPOSITORY.format(id='rocky')}keys = {names}\n")
    (tmp_path / "etc/pki/other").mkdir()
    for name in names[1:]:
        (tmp_path / name.lstrip("/")).write_bytes(name.encode())
    (found,) = own_repositories(settings, find_distro("rocky:9"))
    assert sorted(found.keys.values()) == [
        b"/etc/pki/my own.asc",
        b"/etc/pki/other/own.asc",
        b"KEY",
    ]
    assert {"own.asc", "my_own.asc"} < set(found.keys)
    assert not any(" " in name for name in found.keys)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """How dnf and zypper are called, which fail; engine tests have the real ones."""
    need(is_root(), "root", "a program that makes a base image gets namespaces of its own")
    path = tmp_path / "calls"
    for name in ("dnf", "zypper"):
        program = f'#!/bin/sh\necho "$0 $*" >>"{path}"\nexit 1\n'
        write(tmp_path / "programs" / name, program, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:/usr/bin:/bin")
    return path


def _base(settings: Settings, name: str) -> None:
    ensure_distro_base(using(settings, FakeEngine()), base_request(settings, find_distro(name)))


def test_the_distros_key_has_to_be_named_where_no_image_has_it_yet(tmp_path: Path) -> None:
    settings = _host(tmp_path, _REPOSITORY.format(id="rocky"))
    with pytest.raises(NotFoundError):
        _base(settings, "rocky:9")


@pytest.mark.parametrize(
    ("os_release", "name", "words"),
    [
        (
            "ID=rocky\nVERSION_ID=9.6\n",
            "rocky:9",
            "--releasever=9.6 --setopt=reposdir={}/yum.repos.d",
        ),
        (
            "ID=opensuse-leap\nVERSION_ID=15.6\n",
            "opensuse-leap:15.6",
            "--reposd-dir {}/zypp/repos.d",
        ),
    ],
)
def test_a_host_of_the_distro_takes_its_own_repositories(
    tmp_path: Path, calls: Path, os_release: str, name: str, words: str
) -> None:
    with pytest.raises(ProvisionError):
        _base(_host(tmp_path, os_release=os_release), name)
    assert words.format(tmp_path / "etc") in calls.read_text()
    # It believes the keys that are named, and no other.
    assert "gpg-auto-import" not in calls.read_text()


@pytest.mark.parametrize("name", ["rocky:8", "almalinux:9", "fedora:43"])
def test_another_host_says_what_to_name(tmp_path: Path, name: str) -> None:
    settings = _host(tmp_path, os_release="ID=rocky\nVERSION_ID=9.6\n")
    with pytest.raises(NotFoundError) as caught:
        _base(settings, name)
    assert f"[distros.{name.partition(':')[0]}] repositories" in str(caught.value.resolution)


def test_repositories_of_an_archive_are_refused_with_file_and_key(tmp_path: Path) -> None:
    """They were passed over in silence: packages came from elsewhere than was said."""
    settings = _host(tmp_path, _REPOSITORY.format(id="debian"))
    with pytest.raises(UsageError) as caught:
        own_repositories(settings, find_distro("debian:12"))
    assert '[distros.debian.archive] mirror = "https://m.example/os"' in str(
        caught.value.resolution
    )


@pytest.mark.parametrize(
    ("kernel", "release"),
    [
        ("6.11.4-301.fc41.x86_64", "fedora:41"),
        ("6.17.1-300.fc43.aarch64", "fedora:43"),
        ("6.12.0-65.fc42", "fedora:42"),
        ("5.14.0-427.el9.x86_64", "fedora:40"),
        ("6.6.74-flatcar", "fedora:40"),
        ("6.1.0-fc41custom", "fedora:40"),
    ],
)
def test_the_release_of_fedora_is_that_of_the_kernel(
    tmp_path: Path, kernel: str, release: str
) -> None:
    settings = _host(tmp_path, os_release="ID=fedora\nVERSION_ID=40\n")
    assert packaged_distro(settings, None, kernel) == release


def test_only_addresses_that_can_be_downloaded_from_are_kept(tmp_path: Path) -> None:
    """Base images name folders and discs too."""
    more = "url\tfile:///srv/gcc.rpm\nurl\thttps://one.example/$releasever/make.rpm"
    more += "\nurl\thttps://one.example/make.rpm"
    found, _ = _solved(tmp_path, FakeContainer([GOOD[0], (0, "", f"{BOTH}\n{more}")]))
    assert list(found.urls.values()) == [("https://one.example/make.rpm",)]


def test_every_input_counts(tmp_path: Path) -> None:
    plain = Repository("own", ("http://m",))
    keyed = plain._replace(keys={"k": b"K"})
    # The last two decide which indexes count.
    repositories = (plain, keyed, plain._replace(is_snapshot=True), plain._replace(is_signed=True))
    changes: list[dict[str, Any]] = [
        {},
        {"kernel": "5.14.0-428.el9.x86_64"},
        {"tools": ("make",)},
        {"base": BasePin(image="rocky:9", digest=f"sha256:{'c' * 64}")},
        {"toolchain": Toolchain("gcc (GCC) 11.4.1", ())},
        {"toolchain": Toolchain(None, ())},
        *({"repositories": (one,)} for one in repositories),
    ]
    keys = {request_key(request(tmp_path, "rocky:9", **change)) for change in changes}
    assert len(keys) == len(changes)
    before = request_key(request(tmp_path, "rhel:9"))
    write(tmp_path / "etc/pki/entitlement/1.pem", b"")
    assert request_key(request(tmp_path, "rhel:9")) != before


def test_an_https_mirror_is_read_in_an_image_that_knows_no_authorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's and Ubuntu's own images have no certificates."""
    kernel, bundle = "6.1.0-47-amd64", tmp_path / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(b"those that count")

    def given(distro: str, url: str, **more: object) -> dict[str, bytes]:
        container = FakeContainer([(43, "no package holds a configuration", "")])
        repositories = (Repository("bookworm", (url,)),)
        wish = request(tmp_path, distro, repositories=repositories, **more)
        with pytest.raises(ProvisionError):
            closure_of(lambda: SolvingEngine(container), wish, PackageStore(tmp_path))
        return container.files_given

    files = given("debian:12", "https://m.example/debian", kernel=kernel)
    assert files["authorities.crt"] == b"those that count"
    assert b"Acquire::https::CaInfo=/provision/solve/authorities.crt" in files["script.sh"]
    assert "authorities.crt" not in given("debian:12", "http://m.example/debian", kernel=kernel)
    for distro, other in (
        ("rocky:9", "5.14.0-427.13.1.el9_4.x86_64"),
        ("opensuse-leap:15.6", "6.4.0-150600.23.17-default"),
    ):
        files = given(distro, "https://m.example/rpm", kernel=other)
        assert files["authorities.crt"] == b"those that count"
        said = files["script.sh"]
        assert b"sslcacert=/provision/solve/authorities.crt" in said or b"trust/anchors" in said
        assert "authorities.crt" not in given(distro, "http://m.example/rpm", kernel=other)
    # A proxy that reads along has an authority of its own.
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert "authorities.crt" in given("rocky:9", "http://m.example/rpm")


def test_a_closure_of_before_keeps_its_name(tmp_path: Path) -> None:
    """It would be solved for again, and artifacts get other names, without need."""
    first = "24fea5a7311e84f0a8464e5e0337f99cdacbfb57fe8770fb78767f115cdac655"
    assert request_key(request(tmp_path)) == first


def test_a_vault_has_the_release_of_the_base_image_in_its_address(tmp_path: Path) -> None:
    said = f"No match for argument: kernel-devel-uname-r = {KERNEL}"
    with pytest.raises(NotFoundError) as caught:
        _solved(tmp_path, FakeContainer([(1, said, "")]))
    assert "vault/rocky/9.6/BaseOS" in str(caught.value.resolution)


_FEDORA = "6.17.1-300.fc43.x86_64"
_GONE = (1, f"No match for argument: kernel-devel-uname-r = {_FEDORA}", "")
_SIGNED = "/6.17.1/300.fc43/data/signed/{}/x86_64/kernel-devel-6.17.1-300.fc43.x86_64.rpm"
_KEYRINGS = ("105ef944", "31645531")
_OWN = (Repository("own", ("http://m",)),)


@pytest.fixture
def koji(tmp_path: Path) -> Iterator[Mirror]:
    """Koji's files, where the second key has signed the headers."""
    path = tmp_path / "koji" / _SIGNED.format(_KEYRINGS[1]).lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"headers")
    made = Mirror(tmp_path / "koji")
    with made.serving():
        yield made


def _fedora(
    folder: Path, *answers: tuple[int, str, str], **changes: object
) -> tuple[FakeContainer, Closure]:
    """Solve for a kernel that the repositories have dropped."""
    container = FakeContainer([_GONE, *answers])
    wish = request(folder, "fedora:43", kernel=_FEDORA, **changes)
    return container, closure_of(lambda: SolvingEngine(container), wish, PackageStore(folder))


@pytest.mark.parametrize("repositories", [(), _OWN])
def test_a_kernel_that_the_repositories_have_dropped_comes_from_koji(
    tmp_path: Path, koji: Mirror, repositories: tuple[Repository, ...]
) -> None:
    keys = (0, "", "\n".join([*_KEYRINGS, ""]))
    container, found = _fedora(
        tmp_path, keys, *GOOD, archive_mirror=koji.url, repositories=repositories
    )
    assert koji.asked == [_SIGNED.format(key) for key in _KEYRINGS]
    assert [header.name for header in found.headers] == ["kernel-devel"]
    *_, first, second = container.scripts
    path = "/provision/solve/archived/kernel-devel-6.17.1-300.fc43.x86_64.rpm"
    assert f"install --downloadonly {path} gcc make\n" in first
    assert f"{path} gcc make" in second
    assert container.files_given[path.removeprefix("/provision/solve/")] == b"headers"


def test_beside_repositories_of_ones_own_no_archive_is_asked_that_is_not_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(NotFoundError):
        _fedora(tmp_path, repositories=_OWN)


def test_a_kernel_without_a_signed_copy_says_where_it_was_looked_for(
    tmp_path: Path, koji: Mirror
) -> None:
    with pytest.raises(NotFoundError) as caught:
        _fedora(tmp_path, (0, "", f"{_KEYRINGS[0]}\n"), archive_mirror=koji.url)
    assert _SIGNED.format(_KEYRINGS[0]) in str(caught.value.details)
    with pytest.raises(UnreachableError):
        _fedora(tmp_path, (0, "", f"{_KEYRINGS[0]}\n"), archive_mirror="http://127.0.0.1:9")


_GCC = PackagePin(name="gcc", version="11.4.1-1.el9")
_OLDER = (0, "", BOTH.replace("11.4.1", "8.5.0"))


def _solved(
    folder: Path, *containers: FakeContainer, distro: str = "rocky:9", **changes: object
) -> tuple[Closure, SolvingEngine]:
    engine = SolvingEngine(*containers)
    wish = request(folder, distro, **changes)
    return closure_of(lambda: engine, wish, PackageStore(folder)), engine


def test_one_round_where_headers_and_tools_bring_the_compiler(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", BOTH)])
    found, engine = _solved(tmp_path, container)
    assert found.compiler == _GCC
    assert [tool.name for tool in found.tools] == ["make"]
    assert all(PackageStore(tmp_path).whole(package.sha256) for package in found.packages)
    (only,) = container.scripts
    assert f"'kernel-devel-uname-r = {KERNEL}' gcc make" in only
    assert len(engine.requests) == 1


def test_a_compiler_that_no_repository_has_costs_no_further_container(tmp_path: Path) -> None:
    packages = BOTH.replace("package\tkernel-devel\t", "package\tkernel-default-devel\t")
    absent = (104, "No provider of 'gcc11' found.", "")
    container = FakeContainer([(0, "", line("make", "4.3")), absent, (0, "", packages)])
    kernel = "6.4.0-150600.23.17-default"
    found, engine = _solved(
        tmp_path, container, distro="opensuse-leap:15.6", kernel=kernel, tools=()
    )
    assert found.compiler == _GCC
    assert len(engine.requests) == 1
    assert " gcc11\n" in container.scripts[1]


def test_what_was_solved_once_is_not_solved_again(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    engine = SolvingEngine(FakeContainer(list(GOOD)), FakeContainer(list(GOOD)))
    found = closure_of(lambda: engine, request(tmp_path), store)
    assert closure_of(no_engine, request(tmp_path), store) == found
    assert closure_of(lambda: engine, request(tmp_path), store, update=True) == found
    assert len(engine.requests) == 2


def test_a_kernel_tree_takes_compiler_and_tools_in_one_round(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", "\n".join([line("gcc", "11.4.1"), line("make", "4.3")]))])
    toolchain = Toolchain("gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", ("make",))
    found, _ = _solved(tmp_path, container, kernel="6.6.74-flatcar", toolchain=toolchain)
    assert (found.compiler, found.headers) == (_GCC, ())
    assert [package.name for package in found.packages] == ["gcc", "make"]
    assert "gcc make" in container.scripts[0]
    assert "kernel-devel" not in container.scripts[0]


def test_a_compiler_that_is_a_file_is_not_solved_for(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", line("make", "4.3"))])
    found, _ = _solved(tmp_path, container, toolchain=Toolchain(None, ()), tools=("make",))
    assert found.compiler is None
    assert [package.name for package in found.packages] == ["make"]
    assert " gcc" not in container.scripts[0]


def test_a_compiler_of_another_major_version_is_not_taken(tmp_path: Path) -> None:
    """The next package that may hold it is; in a container of its own."""
    toolset = BOTH.replace("package\tgcc", "package\tgcc-toolset-11-gcc")
    first, second = FakeContainer([GOOD[0], _OLDER]), FakeContainer([(0, "", toolset)])
    found, _ = _solved(tmp_path, first, second)
    assert found.compiler is not None
    assert found.compiler.name == "gcc-toolset-11-gcc"


_NO_TOOLSET = (1, "No match for argument: gcc-toolset-11-gcc", "")


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        # No compiler of that major version: which kernel asks for it is said.
        ([[GOOD[0], _OLDER], [_NO_TOOLSET]], {}),
        ([[(0, "", BOTH)], [(0, "", BOTH)]], {"toolchain": Toolchain("gcc (GCC) 9.4.0", ())}),
        # A missing tool is no missing compiler.
        ([[GOOD[0], (1, "No match for argument: make", "")]], {}),
    ],
)
def test_what_no_repository_has_is_not_found_and_not_kept(
    tmp_path: Path, answers: list[list[tuple[int, str, str]]], changes: dict[str, Any]
) -> None:
    with pytest.raises(NotFoundError):
        _solved(tmp_path, *map(FakeContainer, answers), **changes)
    assert PackageStore(tmp_path).kept(request_key(request(tmp_path, **changes))) is None


def test_a_configuration_that_names_no_compiler_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="CONFIG_CC_VERSION_TEXT"):
        _solved(tmp_path, FakeContainer([GOOD[0]], config=b"# empty\n"))


def test_headers_that_apt_took_a_name_for_a_pattern_of_are_refused(tmp_path: Path) -> None:
    said = (
        "package\thttp://m.example/pool/main/l/linux/linux-headers-6.1.0-47-amd64_6.1-1_amd64.deb"
        f"\tlinux-headers-6.1.0-47-amd64_6.1-1_amd64.deb\t1\tSHA256:{'a' * 64}\n"
        "installed\tgcc-12\tamd64\t12.2.0\n"
    )
    config = b'CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14) 12.2.0"\n'
    container = FakeContainer([(0, "", said)], config)
    with pytest.raises(HeadersGoneError):
        _solved(tmp_path, container, distro="debian:12", kernel="6.1.0-4-amd64", tools=())


def test_a_file_with_other_content_than_was_listed_is_refused(tmp_path: Path) -> None:
    lying = BOTH.replace(hashlib.sha256(b"tool").hexdigest(), "d" * 64)
    with pytest.raises(ProvisionError, match=r"make\.rpm"):
        _solved(tmp_path, FakeContainer([GOOD[0], (0, "", lying)]))
    assert PackageStore(tmp_path).kept(request_key(request(tmp_path))) is None


def test_a_base_image_for_another_architecture_is_refused(tmp_path: Path) -> None:
    engine = SolvingEngine(architecture="arm64")
    with pytest.raises(ProvisionError) as caught:
        closure_of(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert "--platform linux/amd64" in str(caught.value.resolution)


# As the packages of clouds write them, with one that is switched off and one of someone else.
_RHUI = """\
[rhui-rhel-9-baseos]
name=BaseOS
baseurl=https://rhui.example/pulp/content/dist/rhel9/$relver/x86_64/baseos/os
enabled=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-redhat-release
sslcacert=/etc/pki/rhui/cdn-chain.crt
sslclientcert=/etc/pki/rhui/product/content.crt
sslclientkey=/etc/pki/rhui/content.key
[rhui-source]
enabled=0
sslclientcert=/etc/pki/rhui/source.crt
"""
_PUBLIC = "[epel]\nbaseurl=https://epel.example/\nsslcacert=/etc/pki/epel.crt\n"
_OTHER_FILES = {
    "etc/yum.repos.d/epel.repo": _PUBLIC,
    "etc/yum.repos.d/broken.repo": "sslclientcert=/etc/shadow\n",
}
_CLOUD = (
    "etc/dnf/vars/relver",
    "etc/pki/rhui/cdn-chain.crt",
    "etc/pki/rhui/content.key",
    "etc/pki/rhui/product/content.crt",
    "etc/pki/rpm-gpg/RPM-GPG-KEY-redhat-release",
    "etc/yum.repos.d/redhat-rhui.repo",
)


_SUBSCRIPTION = "etc/pki/entitlement/1.pem"
_SECRETS = {"/run/secrets/etc-pki-entitlement": "etc/pki/entitlement"}


@pytest.mark.parametrize(
    ("files", "repositories", "binds"),
    [
        (
            (_SUBSCRIPTION, "etc/rhsm/rhsm.conf"),
            None,
            {**_SECRETS, "/run/secrets/rhsm": "etc/rhsm"},
        ),
        # A cloud entitles by what its repository files name; a subscription goes before it.
        (_CLOUD, _RHUI, {f"/{name}": name for name in _CLOUD}),
        ((*_CLOUD, _SUBSCRIPTION), _RHUI, _SECRETS),
        # A host that is no longer registered has the empty folder.
        ((), None, None),
        (("etc/pki/entitlement/",), None, None),
        # Repository files without a certificate entitle to nothing.
        (_CLOUD, _PUBLIC, None),
        (_CLOUD, _RHUI.replace("enabled=1", "enabled=0"), None),
        (_CLOUD, "[", None),
        (_CLOUD, "", None),
    ],
)
def test_entitlements_are_read_only_binds_of_the_solving_container(
    tmp_path: Path,
    files: tuple[str, ...],
    repositories: str | None,
    binds: dict[str, str] | None,
) -> None:
    for name in files:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        else:
            write(tmp_path / name, b"")
    if repositories is not None:
        more = ("etc/dnf/vars/other", "etc/pki/rhui/source.crt", "etc/pki/epel.crt")
        others = {**dict.fromkeys(more, ""), **_OTHER_FILES}
        write_all(tmp_path, {**others, "etc/yum.repos.d/redhat-rhui.repo": repositories})
    engine = SolvingEngine(FakeContainer(list(GOOD)))
    if binds is None:
        with pytest.raises(NotFoundError) as caught:
            closure_of(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
        assert "/etc/pki/entitlement" in str(caught.value.resolution)
        assert not engine.requests
    else:
        closure_of(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
        found = engine.requests[0].binds
        assert found == {place: str(tmp_path / name) for place, name in binds.items()}


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "ssh://root@builder.example"])
def test_an_engine_elsewhere_gets_no_entitlement(tmp_path: Path, host: str) -> None:
    """It would bind what lies at those paths of its own machine."""
    write(tmp_path / "etc/pki/entitlement/1.pem", b"")
    engine = SolvingEngine()
    engine.host = host
    with pytest.raises(ProvisionError) as caught:
        closure_of(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
    assert host in caught.value.message
    assert not engine.requests


def test_named_repositories_need_no_entitlement(tmp_path: Path) -> None:
    found, engine = _solved(tmp_path, FakeContainer([*GOOD]), distro="rhel:9", repositories=_OWN)
    assert found.packages
    assert not engine.requests[0].binds
