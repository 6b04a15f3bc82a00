"""Commits are fetched once, by a container of the toolchain, and compared with the Pin."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from provision.build.context_files import commits_of, ensure_commits
from provision.build.network_access import GitAccess
from provision.build.package_store import PackageStore
from provision.engine.docker_api import ContainerRequest, Ran
from provision.errors import ProvisionError, UsageError
from provision.fetch import UnreachableError
from provision.pin import GitCommit, GitSource, GitSubmodule
from unit.engine.fake_engine import FakeEngine

_URL = "https://git.example/x.git"
_WITH_LOGIN = "https://user:secret@git.example/x.git"
_SOURCE = GitSource(
    url=_URL,
    commit="1" * 40,
    sha256="2" * 64,
    submodules=(
        GitSubmodule(url="https://git.example/y.git", commit="3" * 40, sha256="4" * 64, path="y"),
    ),
)


class _Container:
    """Answers every script with one status, and has one file."""

    def __init__(self, ran: Ran) -> None:
        self.ran = ran
        self.end = bytes(1024)
        self.scripts: list[str] = []
        self.given: list[tuple[str, dict[str, bytes]]] = []

    def put(self, files: dict[str, bytes], folder: str) -> None:
        self.given.append((folder, files))

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        self.scripts.append(script)
        on_line(self.ran.said)
        return self.ran

    def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
        yield path.rpartition("/")[2], io.BytesIO(self.scripts[-1].encode() + self.end)


class _Engine(FakeEngine):
    def __init__(self, ran: Ran) -> None:
        super().__init__()
        self.inside = _Container(ran)
        self.asked: list[ContainerRequest] = []

    @contextmanager
    def container(self, request: ContainerRequest) -> Iterator[_Container]:  # type: ignore[override] # stands in
        self.asked.append(request)
        yield self.inside


def _have(tmp_path: Path, ran: Ran) -> tuple[dict[str, Path], _Engine]:
    engine = _Engine(ran)
    commits, store = commits_of([_SOURCE]), PackageStore(tmp_path)
    access = GitAccess(tmp_path / "root", tmp_path / "logins")
    return ensure_commits(engine, "sha256:x", commits, store, network="host", access=access), engine


def _names(commits: Sequence[str]) -> set[str]:
    return {f"git/{name}" for name in commits}


def test_a_commit_and_its_submodules_are_fetched_once(tmp_path: Path) -> None:
    found, engine = _have(tmp_path, Ran(0, ""))
    assert set(found) == _names([commit.file_name for commit in _SOURCE.commits])
    assert [request.network for request in engine.asked] == ["host", "host"]
    first, second = engine.inside.scripts
    assert f"{_URL} {'1' * 40}" in first
    assert '"$sum" = ' + "4" * 64 in second
    again, silent = _have(tmp_path, Ran(1, "gone"))
    assert (again, silent.asked) == (found, [])


@pytest.mark.parametrize(
    "said",
    [
        f"provision: the archive's sha256 is {'9' * 64}",
        "provision: the image has no git",
        "fatal: remote error: not our ref",
    ],
)
def test_what_fails_is_named_without_a_password_and_leaves_no_file(
    tmp_path: Path, said: str
) -> None:
    with pytest.raises(ProvisionError) as caught:
        _have(tmp_path, Ran(3, said))
    shown = f"{caught.value.message} {caught.value.resolution} {caught.value.details}"
    assert "1" * 40 in shown
    assert "secret" not in shown
    assert said.rpartition(" ")[2] in shown
    assert "git init" in shown or str(tmp_path / "packages/commits") in shown
    assert not list((tmp_path / "packages").rglob("*.tar*"))


def test_a_file_that_is_cut_off_is_not_kept(tmp_path: Path) -> None:
    class _Broken(_Container):
        def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
            raise ProvisionError(f"'{path}' of a container could not be read.")

    engine = _Engine(Ran(0, ""))
    engine.inside = _Broken(Ran(0, ""))
    wanted = commits_of([_SOURCE])
    with pytest.raises(ProvisionError):
        ensure_commits(
            engine,
            "sha256:x",
            wanted,
            PackageStore(tmp_path),
            access=GitAccess(tmp_path, tmp_path),
        )
    assert not list((tmp_path / "packages").rglob("*.tar*"))


def _once(tmp_path: Path, *, engine: _Engine | None = None) -> _Engine:
    engine = engine or _Engine(Ran(0, ""))
    (commit, _) = commits_of([_SOURCE])
    ensure_commits(
        engine,
        "sha256:x",
        (commit,),
        PackageStore(tmp_path),
        access=GitAccess(tmp_path, tmp_path),
    )
    return engine


def test_a_file_that_was_copied_or_written_in_part_is_fetched_again(tmp_path: Path) -> None:
    _once(tmp_path)
    (kept,) = (tmp_path / "packages/commits").iterdir()
    whole = kept.read_bytes()
    for cut in (b"", whole[:-1024], whole[: len(whole) // 2]):
        kept.write_bytes(cut)
        assert len(_once(tmp_path).asked) == 1
        assert kept.read_bytes() == whole
    assert _once(tmp_path).asked == []


def test_what_an_engine_sends_in_part_is_not_kept(tmp_path: Path) -> None:
    engine = _Engine(Ran(0, ""))
    engine.inside.end = b""
    with pytest.raises(ProvisionError):
        _once(tmp_path, engine=engine)
    assert not list((tmp_path / "packages/commits").iterdir())


def test_two_state_folders_at_one_engine_leave_each_others_containers_alone(
    tmp_path: Path,
) -> None:
    one, other = _once(tmp_path / "one"), _once(tmp_path / "other")
    assert one.asked[0].owner != other.asked[0].owner


def test_the_container_goes_through_this_machines_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    (asked,) = _once(tmp_path).asked
    assert asked.environment["https_proxy"] == "http://proxy.example:3128"


def test_the_container_gets_login_and_authorities_and_shows_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine git.example login builder password s3cret\n")
    (tmp_path / "site.pem").write_text("of the site\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "site.pem"))
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    engine = _Engine(Ran(0, ""))
    (commit, _) = commits_of([_SOURCE])
    access = GitAccess(tmp_path, tmp_path / "logins")
    ensure_commits(engine, "sha256:x", (commit,), PackageStore(tmp_path), access=access)
    (asked,) = engine.asked
    ((folder, files),) = engine.inside.given
    assert list(files.values()) == [b"of the site\n"]
    assert folder in engine.inside.scripts[0]
    assert asked.environment["https_proxy"] == "http://proxy.example:3128"
    assert asked.environment["HOME"] in asked.binds
    assert "s3cret" not in f"{asked} {engine.inside.scripts} {files}"
    assert not list(access.folder.iterdir())


@pytest.mark.parametrize(
    ("said", "resolution"),
    [
        ("fatal: Authentication failed for 'https://git.example/x.git/'", ".netrc"),
        ("fatal: could not read Username for 'https://git.example'", "git.example"),
        ("fatal: unable to access: The requested URL returned error: 403", ".netrc"),
        ("server certificate verification failed. CAfile: none", "update-ca-trust"),
        ("SSL certificate problem: self-signed certificate in chain", "update-ca"),
    ],
)
def test_a_server_that_refuses_says_what_it_wants(
    tmp_path: Path, said: str, resolution: str
) -> None:
    with pytest.raises(ProvisionError) as caught:
        _have(tmp_path, Ran(128, said))
    assert resolution in str(caught.value.resolution)
    assert said in str(caught.value.details)


def test_an_address_with_a_password_reaches_no_program(tmp_path: Path) -> None:
    source = _SOURCE.model_copy(update={"url": _WITH_LOGIN})
    engine = _Engine(Ran(0, ""))
    wanted = commits_of([source])
    with pytest.raises(UsageError) as caught:
        ensure_commits(
            engine,
            "sha256:x",
            wanted,
            PackageStore(tmp_path),
            access=GitAccess(tmp_path, tmp_path),
        )
    assert "secret" not in f"{caught.value.message} {caught.value.resolution}"
    assert engine.asked == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("fatal: unable to access 'https://x/': Could not resolve host: x", UnreachableError),
        ("fatal: unable to access 'https://x/': Failed to connect to x", UnreachableError),
        ("fatal: unable to access 'https://x/': returned error: 503", UnreachableError),
        ("fetch-pack: unexpected disconnect\nfatal: early EOF", UnreachableError),
        ("fatal: unable to access 'https://x/': returned error: 404", ProvisionError),
        ("fatal: remote error: upload-pack: not our ref 1111", ProvisionError),
    ],
)
def test_a_server_that_is_down_says_nothing_of_the_driver(
    tmp_path: Path, said: str, kind: type[ProvisionError]
) -> None:
    with pytest.raises(ProvisionError) as caught:
        _have(tmp_path, Ran(128, said))
    assert type(caught.value) is kind


@pytest.mark.parametrize("said", ["fatal: x", f"provision: the archive's sha256 is {'9' * 64}"])
def test_a_command_to_paste_runs_nothing_that_an_address_holds(tmp_path: Path, said: str) -> None:
    commit = GitCommit(url="https://x.example/y;reboot", commit="1" * 40, sha256="2" * 64)
    wanted = (commit,)
    with pytest.raises(ProvisionError) as caught:
        ensure_commits(
            _Engine(Ran(3, said)),
            "sha256:x",
            wanted,
            PackageStore(tmp_path),
            access=GitAccess(tmp_path, tmp_path),
        )
    assert "'https://x.example/y;reboot'" in str(caught.value.resolution)
