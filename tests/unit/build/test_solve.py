"""The two rounds of a solve, with a container that answers as a recorded one did."""

from __future__ import annotations

import fcntl
import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import IO, Any, cast

import pytest

from provision.build import solve_request
from provision.build.package_store import PackageStore
from provision.build.solve import list_kernels, solve
from provision.build.solve_request import SolveRequest
from provision.distros import Repository, find_distro, release_of
from provision.distros.kernel_tree import Toolchain
from provision.distros.rpm_based.rpm import DOWNLOADED
from provision.engine.containers import Container, ContainerRequest, Ran
from provision.engine.docker_api import Engine, Image
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.pin import BasePin, PackagePin
from unit.engine.fake_engine import FakeEngine

KERNEL = "5.14.0-427.el9.x86_64"
_DIGEST = f"sha256:{'b' * 64}"
_CONFIG = b'CONFIG_CC_VERSION_TEXT="gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)"\n'
_FILES = {"kernel-devel.rpm": b"headers", "gcc.rpm": b"compiler", "make.rpm": b"tool"}


def line(name: str, version: str) -> str:
    content = _FILES[f"{name}.rpm"]
    digest = hashlib.sha256(content).hexdigest()
    return (
        f"package\t{name}\t(none)\t{version}\t1.el9\tx86_64\t{len(content)}\t{digest}\t{name}.rpm"
    )


class FakeContainer:
    """Answers scripts in the order of ``answers``: status, output, listing."""

    def __init__(self, answers: list[tuple[int, str, str]], config: bytes = _CONFIG) -> None:
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
        for name, content in _FILES.items():
            yield name, io.BytesIO(content)


class SolvingEngine(FakeEngine):
    """Starts fake containers, one after the other."""

    def __init__(self, *containers: FakeContainer, architecture: str = "amd64") -> None:
        super().__init__()
        self.containers = list(containers)
        self.requests: list[ContainerRequest] = []
        self.have(Image(id=_DIGEST, tags=("rocky:9",), architecture=architecture))

    @contextmanager
    def container(self, request: ContainerRequest) -> Iterator[Container]:
        self.requests.append(request)
        yield cast("Any", self.containers.pop(0))


def request(root: Path, distro: str = "rocky:9", **changes: object) -> SolveRequest:
    data, release = release_of(find_distro(distro))
    wish = SolveRequest(
        distro=data,
        release=release,
        base=BasePin(image="rocky:9", digest=_DIGEST),
        kernel=KERNEL,
        architecture="x86_64",
        tools=("gcc", "make"),
        root=root,
    )
    return replace(wish, **cast("Any", changes))


def never() -> Engine:
    raise AssertionError("the engine was asked for")


BOTH = "\n".join([line("kernel-devel", "5.14.0"), line("gcc", "11.4.1"), line("make", "4.3")])
GOOD = [(0, "", line("kernel-devel", "5.14.0")), (0, "", BOTH)]


def test_one_round_where_headers_and_tools_bring_the_compiler(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", BOTH)])
    engine = SolvingEngine(container)
    store = PackageStore(tmp_path)
    found = solve(lambda: engine, request(tmp_path), store)
    assert found.compiler == PackagePin(name="gcc", version="11.4.1-1.el9")
    assert [tool.name for tool in found.tools] == ["make"]
    assert all(store.whole(package.sha256) for package in found.packages)
    (only,) = container.scripts
    assert f"'kernel-devel-uname-r = {KERNEL}' gcc make" in only
    assert len(engine.requests) == 1


class Checking(FakeContainer):
    """Says when its packages are downloaded; counts how often they are asked for."""

    def __init__(self, answers: list[tuple[int, str, str]]) -> None:
        super().__init__(answers)
        self.sent = 0
        self.content = dict(_FILES)
        self.begun = Event()

    def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
        assert path == "/provision/solve/packages"
        self.sent += 1
        self.begun.set()
        for name, content in self.content.items():
            yield name, io.BytesIO(content)

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        if "script.sh" in script:
            on_line(DOWNLOADED)
            # The checks: meanwhile the files come.
            assert self.begun.wait(10)
            on_line(DOWNLOADED)
        return super().run(script, on_line=on_line)


def _drafts(store: PackageStore) -> list[Path]:
    return list(store.files.glob(".*"))


def test_packages_come_while_they_are_checked(tmp_path: Path) -> None:
    container = Checking([(0, "", BOTH)])
    store = PackageStore(tmp_path)
    found = solve(lambda: SolvingEngine(container), request(tmp_path), store)
    assert all(store.whole(package.sha256) for package in found.packages)
    assert container.sent == 1
    assert _drafts(store) == []


def test_packages_that_fail_their_check_do_not_stay(tmp_path: Path) -> None:
    container = Checking([(41, "packages/gcc.rpm: signature NOT OK", "")])
    store = PackageStore(tmp_path)
    with pytest.raises(ProvisionError, match="not signed with a key"):
        solve(lambda: SolvingEngine(container), request(tmp_path), store)
    assert container.sent == 1
    assert list(store.files.iterdir()) == []


def test_what_came_too_early_is_asked_for_again(tmp_path: Path) -> None:
    """A mirror may have the package manager print the same line."""
    container = Checking([(0, "", BOTH)])
    container.content = {"gcc.rpm": b"comp", "make.rpm": _FILES["make.rpm"]}

    def files(path: str) -> Iterator[tuple[str, IO[bytes]]]:
        yield from Checking.files(container, path)
        container.content = dict(_FILES)

    container.files = files  # type: ignore[method-assign] # a second answer
    store = PackageStore(tmp_path)
    found = solve(lambda: SolvingEngine(container), request(tmp_path), store)
    assert all(store.whole(package.sha256) for package in found.packages)
    assert container.sent == 2
    assert _drafts(store) == []


def test_a_stream_that_breaks_is_asked_for_again(tmp_path: Path) -> None:
    container = Checking([(0, "", BOTH)])

    def files(path: str) -> Iterator[tuple[str, IO[bytes]]]:
        if container.sent == 0:
            container.sent = 1
            container.begun.set()
            raise ProvisionError("The connection broke.")
        yield from Checking.files(container, path)

    container.files = files  # type: ignore[method-assign] # another answer first
    store = PackageStore(tmp_path)
    found = solve(lambda: SolvingEngine(container), request(tmp_path), store)
    assert all(store.whole(package.sha256) for package in found.packages)
    assert container.sent == 2


def test_a_compiler_that_no_repository_has_costs_no_further_container(tmp_path: Path) -> None:
    wish = request(tmp_path, "opensuse-leap:15.6", kernel="6.4.0-150600.23.17-default", tools=())
    packages = BOTH.replace("package\tkernel-devel\t", "package\tkernel-default-devel\t")
    absent = (104, "No provider of 'gcc11' found.", "")
    container = FakeContainer([(0, "", line("make", "4.3")), absent, (0, "", packages)])
    engine = SolvingEngine(container)
    found = solve(lambda: engine, wish, PackageStore(tmp_path))
    assert found.compiler == PackagePin(name="gcc", version="11.4.1-1.el9")
    assert len(engine.requests) == 1
    assert " gcc11\n" in container.scripts[1]


def test_where_they_bring_none_the_compiler_is_solved_for_with_them(tmp_path: Path) -> None:
    container = FakeContainer(list(GOOD))
    engine = SolvingEngine(container)
    store = PackageStore(tmp_path)
    found = solve(lambda: engine, request(tmp_path), store)
    assert found.compiler == PackagePin(name="gcc", version="11.4.1-1.el9")
    assert [header.name for header in found.headers] == ["kernel-devel"]
    assert [tool.name for tool in found.tools] == ["make"]
    assert len(found.packages) == 3
    assert all(store.whole(package.sha256) for package in found.packages)
    _first, second = container.scripts
    assert f"'kernel-devel-uname-r = {KERNEL}' gcc make" in second


def test_what_was_solved_once_is_not_solved_again(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    engine = SolvingEngine(FakeContainer(list(GOOD)), FakeContainer(list(GOOD)))
    found = solve(lambda: engine, request(tmp_path), store)
    assert solve(never, request(tmp_path), store) == found
    assert solve(lambda: engine, request(tmp_path), store, update=True) == found
    assert len(engine.requests) == 2


def test_only_addresses_that_can_be_downloaded_from_are_kept(tmp_path: Path) -> None:
    """Base images name folders and discs too."""
    more = "url\tfile:///srv/gcc.rpm\nurl\thttps://one.example/$releasever/make.rpm"
    more += "\nurl\thttps://one.example/make.rpm"
    engine = SolvingEngine(FakeContainer([GOOD[0], (0, "", f"{BOTH}\n{more}")]))
    found = solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert list(found.urls.values()) == [("https://one.example/make.rpm",)]


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "5.14.0-428.el9.x86_64"},
        {"tools": ("make",)},
        {"base": BasePin(image="rocky:9", digest=f"sha256:{'c' * 64}")},
        {"repositories": (Repository("own", ("http://m",)),)},
        {"toolchain": Toolchain("gcc (GCC) 11.4.1", ())},
        {"toolchain": Toolchain(None, ())},
        {"repositories": (Repository("own", ("http://m",), {"k": b"K"}),)},
    ],
)
def test_every_input_counts(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert request(tmp_path, "rocky:9", **changes).key != request(tmp_path).key


def _have(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()


def test_an_https_mirror_is_read_in_an_image_that_knows_no_authorities(tmp_path: Path) -> None:
    """Debian's and Ubuntu's own images have no certificates."""
    kernel, bundle = "6.1.0-47-amd64", tmp_path / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(b"those that count")

    def given(distro: str, url: str, **more: object) -> dict[str, bytes]:
        container = FakeContainer([(43, "no package holds a configuration", "")])
        repositories = (Repository("bookworm", (url,)),)
        wish = request(tmp_path, distro, repositories=repositories, **more)
        with pytest.raises(ProvisionError):
            solve(lambda: SolvingEngine(container), wish, PackageStore(tmp_path))
        return container.files_given

    files = given("debian:12", "https://m.example/debian", kernel=kernel)
    assert files["authorities.crt"] == b"those that count"
    assert b"Acquire::https::CaInfo=/provision/solve/authorities.crt" in files["script.sh"]
    assert "authorities.crt" not in given("debian:12", "http://m.example/debian", kernel=kernel)
    # Theirs bring the package of certificates.
    assert "authorities.crt" not in given("rocky:9", "https://m.example/rocky")


def test_what_decides_which_indexes_count_names_another_closure(tmp_path: Path) -> None:
    plain = Repository("own", ("http://m",))
    snapshot, signed = replace(plain, is_snapshot=True), replace(plain, is_signed=True)
    keys = {request(tmp_path, repositories=(one,)).key for one in (plain, snapshot, signed)}
    assert len(keys) == 3
    before = request(tmp_path, "rhel:9").key
    _have(tmp_path, "etc/pki/entitlement/1.pem")
    assert request(tmp_path, "rhel:9").key != before


def test_a_closure_of_before_keeps_its_name(tmp_path: Path) -> None:
    """It would be solved for again, and artifacts get other names, without need."""
    first = "24fea5a7311e84f0a8464e5e0337f99cdacbfb57fe8770fb78767f115cdac655"
    assert request(tmp_path).key == first


def test_a_kernel_tree_takes_compiler_and_tools_in_one_round(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", "\n".join([line("gcc", "11.4.1"), line("make", "4.3")]))])
    engine = SolvingEngine(container)
    toolchain = Toolchain("gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", ("make",))
    wish = request(tmp_path, kernel="6.6.74-flatcar", toolchain=toolchain)
    found = solve(lambda: engine, wish, PackageStore(tmp_path))
    assert found.compiler == PackagePin(name="gcc", version="11.4.1-1.el9")
    assert found.headers == ()
    assert [package.name for package in found.packages] == ["gcc", "make"]
    assert "gcc make" in container.scripts[0]
    assert "kernel-devel" not in container.scripts[0]


def test_a_compiler_that_is_a_file_is_not_solved_for(tmp_path: Path) -> None:
    container = FakeContainer([(0, "", line("make", "4.3"))])
    engine = SolvingEngine(container)
    wish = request(tmp_path, toolchain=Toolchain(None, ()), tools=("make",))
    found = solve(lambda: engine, wish, PackageStore(tmp_path))
    assert found.compiler is None
    assert [package.name for package in found.packages] == ["make"]
    assert " gcc" not in container.scripts[0]


def test_a_kernel_tree_whose_compiler_is_not_packaged_is_refused(tmp_path: Path) -> None:
    engine = SolvingEngine(FakeContainer([(0, "", BOTH)]), FakeContainer([(0, "", BOTH)]))
    wish = request(tmp_path, toolchain=Toolchain("gcc (GCC) 9.4.0", ()))
    with pytest.raises(NotFoundError, match="of major version 9") as caught:
        solve(lambda: engine, wish, PackageStore(tmp_path))
    assert "toolchain" in str(caught.value.resolution)


def test_a_compiler_of_another_major_version_is_not_taken(tmp_path: Path) -> None:
    """The next package that may hold it is; in a container of its own."""
    toolset = BOTH.replace("package\tgcc", "package\tgcc-toolset-11-gcc")
    engine = SolvingEngine(
        FakeContainer([GOOD[0], (0, "", BOTH.replace("11.4.1", "8.5.0"))]),
        FakeContainer([(0, "", toolset)]),
    )
    found = solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert found.compiler is not None
    assert found.compiler.name == "gcc-toolset-11-gcc"


def test_no_compiler_of_that_major_version_is_said(tmp_path: Path) -> None:
    engine = SolvingEngine(
        FakeContainer([GOOD[0], (0, "", BOTH.replace("11.4.1", "8.5.0"))]),
        FakeContainer([(1, "No match for argument: gcc-toolset-11-gcc", "")]),
    )
    store = PackageStore(tmp_path)
    with pytest.raises(NotFoundError) as caught:
        solve(lambda: engine, request(tmp_path), store)
    assert "compiler of major version 11" in caught.value.message
    assert "Red Hat 11.4.1-3" in str(caught.value.details)
    assert store.closure(request(tmp_path).key) is None


def test_a_missing_tool_is_no_missing_compiler(tmp_path: Path) -> None:
    engine = SolvingEngine(FakeContainer([GOOD[0], (1, "No match for argument: make", "")]))
    with pytest.raises(NotFoundError, match="no package 'make'"):
        solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))


def test_a_configuration_that_names_no_compiler_is_said(tmp_path: Path) -> None:
    engine = SolvingEngine(FakeContainer([GOOD[0]], config=b"# empty\n"))
    with pytest.raises(ProvisionError, match="CONFIG_CC_VERSION_TEXT"):
        solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))


def test_a_file_with_other_content_than_was_listed_is_refused(tmp_path: Path) -> None:
    lying = BOTH.replace(hashlib.sha256(b"tool").hexdigest(), "d" * 64)
    engine = SolvingEngine(FakeContainer([GOOD[0], (0, "", lying)]))
    store = PackageStore(tmp_path)
    with pytest.raises(ProvisionError, match=r"make\.rpm"):
        solve(lambda: engine, request(tmp_path), store)
    assert store.closure(request(tmp_path).key) is None


def test_a_base_image_for_another_architecture_is_refused(tmp_path: Path) -> None:
    engine = SolvingEngine(architecture="arm64")
    with pytest.raises(ProvisionError) as caught:
        solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert "is for arm64" in caught.value.message
    assert "--platform linux/amd64" in str(caught.value.resolution)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_host_without_an_entitlement_learns_what_is_missing(
    tmp_path: Path, *, is_empty: bool
) -> None:
    """One that is no longer registered has the empty folder."""
    if is_empty:
        (tmp_path / "etc/pki/entitlement").mkdir(parents=True)
    engine = SolvingEngine()
    with pytest.raises(NotFoundError) as caught:
        solve(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
    assert "need a subscription" in caught.value.message
    assert "/etc/pki/entitlement" in str(caught.value.resolution)
    assert not engine.requests


def test_entitlements_are_read_only_binds_of_the_solving_container(tmp_path: Path) -> None:
    _have(tmp_path, "etc/pki/entitlement/1.pem", "etc/rhsm/rhsm.conf")
    engine = SolvingEngine(FakeContainer(list(GOOD)))
    solve(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
    assert engine.requests[0].binds == {
        "/run/secrets/etc-pki-entitlement": str(tmp_path / "etc/pki/entitlement"),
        "/run/secrets/rhsm": str(tmp_path / "etc/rhsm"),
    }


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "ssh://root@builder.example"])
def test_an_engine_elsewhere_gets_no_entitlement(tmp_path: Path, host: str) -> None:
    """It would bind what lies at those paths of its own machine."""
    _have(tmp_path, "etc/pki/entitlement/1.pem")
    engine = SolvingEngine()
    engine.host = host
    with pytest.raises(ProvisionError, match="subscription to Red Hat") as caught:
        solve(lambda: engine, request(tmp_path, "rhel:9"), PackageStore(tmp_path))
    assert host in caught.value.message
    assert "--output pin.json" in str(caught.value.resolution)
    assert not engine.requests


def test_named_repositories_need_no_entitlement(tmp_path: Path) -> None:
    engine = SolvingEngine(FakeContainer(list(GOOD)))
    own = (Repository("own", ("http://m",)),)
    wish = request(tmp_path, "rhel:9", repositories=own)
    assert solve(lambda: engine, wish, PackageStore(tmp_path)).packages
    assert not engine.requests[0].binds


def test_kernels_are_listed_without_one(tmp_path: Path) -> None:
    engine = SolvingEngine(FakeContainer([(0, "", f"kernel-devel-uname-r = {KERNEL}\n")]))
    store = PackageStore(tmp_path)
    assert list_kernels(lambda: engine, request(tmp_path, kernel=""), store) == (KERNEL,)


def test_two_that_list_kernels_do_not_remove_each_others_container(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    wish = request(tmp_path, kernel="")
    held: list[str] = []

    class Watched(SolvingEngine):
        @contextmanager
        def container(self, request: ContainerRequest) -> Iterator[Container]:
            path = tmp_path / "locks" / f"solve-{wish.key[:32]}"
            with path.open("ab") as stream, pytest.raises(BlockingIOError):
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(request.owner)
            with super().container(request) as container:
                yield container

    def answer() -> FakeContainer:
        return FakeContainer([(0, "", f"kernel-devel-uname-r = {KERNEL}\n")])

    engine = Watched(answer())
    list_kernels(lambda: engine, wish, store)
    # Another state folder has another lock.
    held.append(_owner(tmp_path / "other", wish, answer()))
    assert len(set(held)) == 2


def _owner(state: Path, wish: SolveRequest, container: FakeContainer) -> str:
    engine = SolvingEngine(container)
    list_kernels(lambda: engine, wish, PackageStore(state))
    return engine.requests[0].owner


def test_a_vault_has_the_release_of_the_base_image_in_its_address(tmp_path: Path) -> None:
    said = f"No match for argument: kernel-devel-uname-r = {KERNEL}"
    engine = SolvingEngine(FakeContainer([(1, said, "")]))
    with pytest.raises(NotFoundError) as caught:
        solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert "vault/rocky/9.6/BaseOS" in str(caught.value.resolution)


_FEDORA = "6.17.1-300.fc43.x86_64"
_GONE = f"No match for argument: kernel-devel-uname-r = {_FEDORA}"
_SIGNED = "6.17.1/300.fc43/data/signed/{}/x86_64/kernel-devel-6.17.1-300.fc43.x86_64.rpm"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Koji, where a key has signed the headers; what it is asked for."""
    addresses: list[str] = []

    def download_any(url: str, *, destination: Path, limit: int, progress: object) -> None:
        assert limit
        assert progress
        addresses.append(url)
        if "31645531" not in url:
            raise NotFoundError(f"'{url}' does not exist (404 Not Found).")
        destination.write_bytes(b"headers")

    monkeypatch.setattr(solve_request, "download_any", download_any)
    return addresses


def test_a_kernel_that_the_repositories_have_dropped_comes_from_koji(
    tmp_path: Path, asked: list[str]
) -> None:
    keys = (0, "", "105ef944\n31645531\n")
    container = FakeContainer([(1, _GONE, ""), keys, *GOOD])
    engine = SolvingEngine(container)
    found = solve(
        lambda: engine, request(tmp_path, "fedora:43", kernel=_FEDORA), PackageStore(tmp_path)
    )
    place = "https://kojipkgs.fedoraproject.org/packages/kernel"
    assert asked == [f"{place}/{_SIGNED.format(key)}" for key in ("105ef944", "31645531")]
    assert [header.name for header in found.headers] == ["kernel-devel"]
    *_, first, second = container.scripts
    path = "/provision/solve/archived/kernel-devel-6.17.1-300.fc43.x86_64.rpm"
    assert f"install --downloadonly {path} gcc make\n" in first
    assert f"{path} gcc make" in second
    assert container.files_given[path.removeprefix("/provision/solve/")] == b"headers"


def test_repositories_of_ones_own_are_asked_and_no_archive_unless_it_is_named(
    tmp_path: Path, asked: list[str]
) -> None:
    own = (Repository("own", ("http://m",)),)
    wish = request(tmp_path, "fedora:43", kernel=_FEDORA, repositories=own)
    engine = SolvingEngine(FakeContainer([(1, _GONE, "")]))
    with pytest.raises(NotFoundError, match="no headers of the kernel"):
        solve(lambda: engine, wish, PackageStore(tmp_path))
    assert asked == []
    engine = SolvingEngine(FakeContainer([(1, _GONE, ""), (0, "", "31645531\n"), *GOOD]))
    named = replace(wish, archive_mirror="http://koji.example/kernel")
    solve(lambda: engine, named, PackageStore(tmp_path))
    assert asked == [f"http://koji.example/kernel/{_SIGNED.format('31645531')}"]


def test_a_kernel_without_a_signed_copy_says_where_it_was_looked_for(
    tmp_path: Path, asked: list[str]
) -> None:
    engine = SolvingEngine(FakeContainer([(1, _GONE, ""), (0, "", "105ef944\n")]))
    with pytest.raises(NotFoundError, match="no headers of the kernel") as caught:
        solve(
            lambda: engine, request(tmp_path, "fedora:43", kernel=_FEDORA), PackageStore(tmp_path)
        )
    assert asked[0] in str(caught.value.details)
    assert "signed with a key of your own" in str(caught.value.resolution)


def test_koji_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download_any(url: str, **_more: object) -> None:
        raise UnreachableError(f"Could not download '{url}'.", details="no route")

    monkeypatch.setattr(solve_request, "download_any", download_any)
    engine = SolvingEngine(FakeContainer([(1, _GONE, ""), (0, "", "105ef944\n")]))
    with pytest.raises(UnreachableError, match=r"koji.* can't be reached") as caught:
        solve(
            lambda: engine, request(tmp_path, "fedora:43", kernel=_FEDORA), PackageStore(tmp_path)
        )
    assert "no route" in str(caught.value.details)
