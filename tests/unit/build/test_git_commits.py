"""Commits are fetched once, by a container of the toolchain, and compared with the Pin."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

import pytest

from provision.build.context_files import commit_files
from provision.build.resolve import Resolved
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config
from provision.engine.docker_api import ContainerRequest, Ran
from provision.errors import ProvisionError, UsageError
from provision.fetch import UnreachableError
from provision.pin import GitSource, GitSubmodule
from unit.engine.fake_engine import FakeEngine, using

_URL = "https://git.example/x.git"
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
        self.end, self.breaks = bytes(1024), False
        self.scripts: list[str] = []
        self.given: list[tuple[str, dict[str, bytes]]] = []

    def put(self, files: dict[str, bytes], folder: str) -> None:
        self.given.append((folder, files))

    def run(self, script: str, *, on_line: Callable[[str], None]) -> Ran:
        self.scripts.append(script)
        on_line(self.ran.said)
        return self.ran

    def files(self, path: str) -> Iterator[tuple[str, IO[bytes]]]:
        if self.breaks:
            raise ProvisionError(f"'{path}' of a container could not be read.")
        yield path.rpartition("/")[2], io.BytesIO(self.scripts[-1].encode() * 9 + self.end)


class _Engine(FakeEngine):
    def __init__(self, ran: Ran) -> None:
        super().__init__()
        self.inside = _Container(ran)
        self.asked: list[ContainerRequest] = []

    @contextmanager
    def container(self, request: ContainerRequest) -> Iterator[_Container]:  # type: ignore[override] # stands in
        self.asked.append(request)
        yield self.inside


def _fetch(
    folder: Path, engine: _Engine | None = None, source: GitSource = _SOURCE
) -> tuple[_Engine, dict[str, Path]]:
    """Have the files of a source, by an engine of the caller or one that does what it should."""
    engine = engine or _Engine(Ran(0, ""))
    settings = using(Settings(folder / "root", Config(), Catalogue([]), folder), engine)
    resolved = cast("Resolved", SimpleNamespace(pin=SimpleNamespace(sources=(source,))))
    return engine, dict(commit_files(settings.with_network("host"), resolved, "sha256:x"))


def test_a_commit_and_its_submodules_are_fetched_once(tmp_path: Path) -> None:
    engine, found = _fetch(tmp_path)
    assert set(found) == {f"git/{commit.file_name}" for commit in _SOURCE.commits}
    assert [request.network for request in engine.asked] == ["host", "host"]
    first, second = engine.inside.scripts
    assert f"{_URL} {'1' * 40}" in first
    assert '"$sum" = ' + "4" * 64 in second
    again, files = _fetch(tmp_path, _Engine(Ran(1, "gone")))
    assert (files, again.asked) == (found, [])
    # Of another state folder at the same engine, containers are left alone.
    other, _ = _fetch(tmp_path / "other")
    assert other.asked[0].owner != engine.asked[0].owner


_UNABLE = "fatal: unable to access 'https://x/': "


@pytest.mark.parametrize(
    ("said", "kind", "cure"),
    [
        (f"provision: the archive's sha256 is {'9' * 64}", ProvisionError, "git init"),
        ("provision: the image has no git", ProvisionError, "packages/commits"),
        ("fatal: remote error: upload-pack: not our ref 1111", ProvisionError, "git ls-remote"),
        (f"{_UNABLE}returned error: 404", ProvisionError, "packages/commits"),
        # What a server wants.
        ("fatal: Authentication failed for 'https://git.example/x.git/'", ProvisionError, ".netrc"),
        ("fatal: could not read Username for 'https://git.example'", ProvisionError, "git.example"),
        (f"{_UNABLE}The requested URL returned error: 403", ProvisionError, ".netrc"),
        ("server certificate verification failed. CAfile: none", ProvisionError, "update-ca-trust"),
        ("SSL certificate problem: self-signed certificate", ProvisionError, "update-ca"),
        # A server that is down says nothing of the driver.
        (f"{_UNABLE}Could not resolve host: x", UnreachableError, "--network"),
        (f"{_UNABLE}Failed to connect to x", UnreachableError, "--network"),
        (f"{_UNABLE}returned error: 503", UnreachableError, "--network"),
        ("fetch-pack: unexpected disconnect\nfatal: early EOF", UnreachableError, "--network"),
    ],
)
def test_what_fails_has_a_cure_and_leaves_no_file(
    tmp_path: Path, said: str, kind: type[ProvisionError], cure: str
) -> None:
    with pytest.raises(ProvisionError) as caught:
        _fetch(tmp_path, _Engine(Ran(128, said)))
    assert type(caught.value) is kind
    assert "1" * 40 in caught.value.message
    assert cure in str(caught.value.resolution)
    assert not list((tmp_path / "packages").rglob("*.tar*"))


@pytest.mark.parametrize("said", ["fatal: x", f"provision: the archive's sha256 is {'9' * 64}"])
def test_a_command_to_paste_runs_nothing_that_an_address_holds(tmp_path: Path, said: str) -> None:
    source = _SOURCE.model_copy(update={"url": "https://x.example/y;reboot"})
    with pytest.raises(ProvisionError) as caught:
        _fetch(tmp_path, _Engine(Ran(3, said)), source)
    assert "'https://x.example/y;reboot'" in str(caught.value.resolution)


def test_a_file_that_was_copied_or_written_in_part_is_fetched_again(tmp_path: Path) -> None:
    _, found = _fetch(tmp_path)
    kept = found[f"git/{_SOURCE.commits[0].file_name}"]
    whole = kept.read_bytes()
    for cut in (b"", whole[:-1024], whole[: len(whole) // 2]):
        kept.write_bytes(cut)
        assert len(_fetch(tmp_path)[0].asked) == 1
        assert kept.read_bytes() == whole
    assert _fetch(tmp_path)[0].asked == []


@pytest.mark.parametrize("breaks", [False, True])
def test_what_an_engine_sends_in_part_is_not_kept(tmp_path: Path, *, breaks: bool) -> None:
    engine = _Engine(Ran(0, ""))
    engine.inside.end, engine.inside.breaks = b"", breaks
    with pytest.raises(ProvisionError):
        _fetch(tmp_path, engine)
    assert not list((tmp_path / "packages/commits").iterdir())


def test_the_container_gets_proxies_login_and_authorities_and_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine git.example login builder password s3cret\n")
    (tmp_path / "site.pem").write_text("of the site\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "site.pem"))
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    engine, _ = _fetch(tmp_path)
    asked, (folder, files) = engine.asked[0], engine.inside.given[0]
    assert list(files.values()) == [b"of the site\n"]
    assert folder in engine.inside.scripts[0]
    assert asked.environment["https_proxy"] == "http://proxy.example:3128"
    assert asked.environment["HOME"] in asked.binds
    assert "s3cret" not in f"{engine.asked} {engine.inside.scripts} {files}"
    assert not list((tmp_path / "git-login").iterdir())


def test_an_address_with_a_password_reaches_no_program(tmp_path: Path) -> None:
    source = _SOURCE.model_copy(update={"url": "https://user:secret@git.example/x.git"})
    engine = _Engine(Ran(0, ""))
    with pytest.raises(UsageError) as caught:
        _fetch(tmp_path, engine, source)
    assert "secret" not in f"{caught.value.message} {caught.value.resolution}"
    assert engine.asked == []
