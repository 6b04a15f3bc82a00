"""Commits are fetched once, by a container of the toolchain, and compared with the Pin."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from provision.build.git_commits import CommitRequest, commits_of, have_commits
from provision.build.package_store import PackageStore
from provision.engine.containers import ContainerRequest, Ran
from provision.errors import ProvisionError
from provision.pin import GitSource, GitSubmodule
from unit.engine.fake_engine import FakeEngine

_URL = "https://user:secret@git.example/x.git"
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
        self.scripts: list[str] = []

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        self.scripts.append(script)
        on_line(self.ran.said)
        return self.ran

    def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
        yield path.rpartition("/")[2], io.BytesIO(self.scripts[-1].encode())


class _Engine(FakeEngine):
    def __init__(self, ran: Ran) -> None:
        super().__init__()
        self.inside = _Container(ran)
        self.asked: list[ContainerRequest] = []

    @contextmanager
    def container(self, request: ContainerRequest) -> Iterator[_Container]:  # type: ignore[override] # stands in
        self.asked.append(request)
        yield self.inside


def _have(tmp_path: Path, ran: Ran, stages: list[str]) -> tuple[dict[str, Path], _Engine]:
    engine = _Engine(ran)

    def toolchain() -> str:
        stages.append("built")
        return "sha256:toolchain"

    request = CommitRequest(
        commits_of([_SOURCE]), PackageStore(tmp_path), tmp_path / "locks", network="host"
    )
    return have_commits(engine, toolchain, request), engine


def _names(commits: Sequence[str]) -> set[str]:
    return {f"git/{name}" for name in commits}


def test_a_commit_and_its_submodules_are_fetched_once(tmp_path: Path) -> None:
    stages: list[str] = []
    found, engine = _have(tmp_path, Ran(0, ""), stages)
    assert set(found) == _names([commit.file_name for commit in _SOURCE.commits])
    assert stages == ["built"]
    assert [request.network for request in engine.asked] == ["host", "host"]
    first, second = engine.inside.scripts
    assert f"{_URL} {'1' * 40}" in first
    assert '"$sum" = ' + "4" * 64 in second
    again, silent = _have(tmp_path, Ran(1, "gone"), stages)
    assert (again, silent.asked, stages) == (found, [], ["built"])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"provision: the archive's sha256 is {'9' * 64}", "not what the Pin says"),
        ("fatal: remote error: not our ref", "Fetching failed"),
    ],
)
def test_what_fails_is_named_without_a_password_and_leaves_no_file(
    tmp_path: Path, said: str, expected: str
) -> None:
    with pytest.raises(ProvisionError, match=expected) as caught:
        _have(tmp_path, Ran(3, said), [])
    shown = f"{caught.value.message} {caught.value.resolution} {caught.value.details}"
    assert "1" * 40 in shown
    assert "secret" not in shown
    assert said.rpartition(" ")[2] in shown
    assert not list((tmp_path / "packages").rglob("*.tar*"))


def test_a_file_that_is_cut_off_is_not_kept(tmp_path: Path) -> None:
    class _Broken(_Container):
        def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
            raise ProvisionError(f"'{path}' of a container could not be read.")

    engine = _Engine(Ran(0, ""))
    engine.inside = _Broken(Ran(0, ""))
    request = CommitRequest(commits_of([_SOURCE]), PackageStore(tmp_path), tmp_path / "locks")
    with pytest.raises(ProvisionError, match="could not be read"):
        have_commits(engine, lambda: "sha256:x", request)
    assert not list((tmp_path / "packages").rglob("*.tar*"))
