"""Sources: commits that git fetches, and the program that unpacks them in the build container."""

from __future__ import annotations

import io
import random
import shlex
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.fileserver import guard
from kit.git_server import Commit, commit_files, git_served
from kit.process import run
from provision.build.context_files import commit_at, ensure_commits
from provision.build.package_store import PackageStore
from provision.build.unpack_source import UnpackError, main, unpack
from provision.errors import NotFoundError, ProvisionError, UnreachableError, UsageError
from provision.pin import GitCommit
from unit.deb_file import deb


def tar(path: Path, *members: tuple[str, bytes | str], kind: str = "w:xz") -> Path:
    """Write a tar file; a text is where a symbolic link leads to."""
    with tarfile.open(path, kind) as archive:  # type: ignore[call-overload]
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.mode = 0o4755 if name.endswith(".sh") else 0o600
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a folder to unpack into."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_tarball_is_unpacked_without_its_leading_parts(tmp_path: Path, out: Path) -> None:
    archive = tar(
        tmp_path / "a", ("x-1/src/a.c", b"int a;"), ("x-1/run.sh", b"#!"), ("x-1/l", "src/a.c")
    )
    assert unpack(archive, out, 1) == 3
    assert (out / "src/a.c").read_bytes() == b"int a;"
    assert (out / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (out / "src/a.c").stat().st_mode & 0o7777 == 0o644
    assert (out / "l").read_bytes() == b"int a;"


def test_a_zip_file_too(tmp_path: Path, out: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x/a.c", "int a;")
        file.writestr("top", "left out")
    assert unpack(archive, out, 1) == 1
    assert (out / "a.c").read_text() == "int a;"


@pytest.mark.parametrize("kind", ["xz", "gz", "bz2", ""])
def test_a_package_is_unpacked_as_it_would_be_installed(
    tmp_path: Path, out: Path, kind: str
) -> None:
    source = ("./usr/src/x-1/dkms.conf", b"PACKAGE_NAME=x")
    data = tar(tmp_path / "data", source, kind=f"w:{kind}").read_bytes()
    assert unpack(deb(tmp_path, data, f"data.tar.{kind}".rstrip(".")), out, 0) == 1
    assert (out / "usr/src/x-1/dkms.conf").read_bytes() == b"PACKAGE_NAME=x"


def test_the_name_of_a_packages_member_may_end_with_a_slash(tmp_path: Path) -> None:
    data = tar(tmp_path / "data", ("a", b"1")).read_bytes()
    assert unpack(deb(tmp_path, data, "data.tar.xz/"), tmp_path, 0) == 1


@given(st.binary(max_size=400))
def test_whatever_is_in_a_package_is_a_mistake_that_is_said(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "a.deb"
        archive.write_bytes(b"!<arch>\n" + content)
        with pytest.raises(UnpackError):
            unpack(archive, Path(folder), 0)


def test_a_file_is_not_written_through_a_link_of_its_name(tmp_path: Path, out: Path) -> None:
    (tmp_path / "other").write_text("untouched")
    archive = tar(
        tmp_path / "a", ("d/l", ".."), ("d/x", "l/../other"), ("d/x", b"new"), ("d/y", b"")
    )
    unpack(archive, out, 0)
    assert (out / "d/x").read_bytes() == b"new"
    assert (tmp_path / "other").read_text() == "untouched"


def a_damaged_one(path: Path, *, is_cut: bool) -> Path:
    content = random.Random(0).randbytes(1 << 20).hex().encode()  # noqa: S311 - the same each time
    raw = bytearray(tar(path, ("f", content), ("g", b"")).read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(raw[: middle - 100] if is_cut else raw)
    return path


def a_hard_link_out(path: Path) -> Path:
    """A file above the source, by links that lead out together."""
    links = (("d/l", tarfile.SYMTYPE, ".."), ("d/m", tarfile.SYMTYPE, "l/.."))
    with tarfile.open(path, "w") as archive:
        for name, kind, target in (*links, ("d/x", tarfile.LNKTYPE, "d/m/secret")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry)
    return path


def one_entry(path: Path, **members: Any) -> Path:  # noqa: ANN401 - those of `TarInfo`
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("entry")
        for name, value in members.items():
            setattr(entry, name, value)
        archive.addfile(entry)
    return path


def package(path: Path, content: bytes) -> Path:
    path.with_suffix(".deb").write_bytes(b"!<arch>\n" + content)
    return path.with_suffix(".deb")


_DATA = b"data.tar.xz".ljust(48)
_HOLES = {"GNU.sparse.map": "x,y", "GNU.sparse.size": "7"}
REFUSED: dict[str, Callable[[Path], Path]] = {
    "leads up": lambda path: tar(path, ("../out", b"")),
    "leads to the root": lambda path: tar(path, ("/etc/passwd", b"")),
    "a link to the root": lambda path: tar(path, ("x/link", "/etc/passwd")),
    "a link up": lambda path: tar(path, ("x/link", "../../etc/passwd")),
    # Each stays in the source by its text; d/m is the folder above.
    "links that lead out together": lambda path: tar(
        path, ("d/l", ".."), ("d/m", "l/.."), ("d/m/evil", b"evil")
    ),
    "a hard link through them": a_hard_link_out,
    "damaged": lambda path: a_damaged_one(path, is_cut=False),
    "cut off": lambda path: a_damaged_one(path, is_cut=True),
    "a header without sense": lambda path: one_entry(path, pax_headers=_HOLES),
    "a device": lambda path: one_entry(path, type=tarfile.CHRTYPE),
    "a member that is cut off": lambda path: package(path, _DATA + b"9         `\nab"),
    "a member of no size": lambda path: package(path, _DATA + b"many      `\nab"),
    "a member that is no archive": lambda path: package(path, _DATA + b"2         `\nab"),
    "a member of a negative size": lambda path: package(path, b"a".ljust(48) + b"-60       `\nab"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_leads_out_or_is_damaged_is_refused(tmp_path: Path, out: Path, name: str) -> None:
    with pytest.raises(UnpackError):
        unpack(REFUSED[name](tmp_path / "a"), out, 0)
    assert not (tmp_path / "evil").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "a", "a.deb"}


def test_what_is_no_archive_or_holds_nothing_is_said(tmp_path: Path, out: Path) -> None:
    (tmp_path / "a").write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(UnpackError):
        main([str(tmp_path / "a"), "0"], None)
    with pytest.raises(UnpackError):
        unpack(tar(tmp_path / "b", ("x", b"")), out, 1)


# Runs here what git would run on the server: the program's last argument.
_SSH = '#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\nexec sh -c "$1"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user without settings."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def store(tmp_path: Path, home: Path) -> PackageStore:
    del home
    return PackageStore(tmp_path / "state")


@pytest.fixture
def folder(plain_path: Path) -> Path:
    """Repositories, whose addresses have no blanks."""
    return plain_path


@pytest.fixture
def own(folder: Path) -> Commit:
    return commit_files(folder, "hello", {"Makefile": "all:\n"})


def pinned(own: Commit, url: str) -> GitCommit:
    return GitCommit(url=url, commit=own.commit, sha256=own.sha256)


@pytest.mark.parametrize("kind", ["path", "file", "scp", "ssh", "http"])
@pytest.mark.parametrize("settings", ["", "[core]\nautocrlf = true\n[tar]\numask = 0077\n"])
def test_a_commit_comes_from_whatever_git_reaches_and_once(
    store: PackageStore,
    folder: Path,
    own: Commit,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    settings: str,
) -> None:
    """The content is the same with every user's settings."""
    (home / "ssh").write_text(_SSH)
    (home / "ssh").chmod(0o755)
    (home / ".gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_SSH_COMMAND", shlex.quote(str(home / "ssh")))
    # As a hook of git's has it.
    monkeypatch.setenv("GIT_DIR", str(home))
    with git_served(folder) as server:
        top = {
            "path": str(folder),
            "file": folder.as_uri(),
            "scp": f"git@h.example:{folder}",
            "ssh": f"ssh://git@h.example{folder}",
            "http": server,
        }[kind]
        url = f"{top}/{own.repository}"
        found = ensure_commits(store, [pinned(own, url)])
    shutil.rmtree(folder)
    assert ensure_commits(store, [pinned(own, url)]) == found
    (path,) = found.values()
    checkout = home / "checkout"
    monkeypatch.delenv("GIT_DIR")
    run(["git", "init", "--quiet", checkout])
    run(["tar", "--extract", f"--file={path}", f"--directory={checkout}/.git"])
    run(["git", "-C", checkout, "reset", "--quiet", "--hard", own.commit])
    assert (checkout / "Makefile").read_text() == "all:\n"


@pytest.mark.parametrize("way", ["netrc", "helper", "none"])
def test_a_login_is_what_git_of_the_user_knows(
    store: PackageStore,
    folder: Path,
    own: Commit,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    guarded = guard(tmp_path, "builder:s3cret")
    with git_served(folder, guarded) as server:
        commit = pinned(own, f"{server}/{own.repository}")
        with pytest.raises(ProvisionError):
            ensure_commits(store, [commit])
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(guarded.authority))
        if way == "netrc":
            (home / ".netrc").write_text("machine 127.0.0.1 login builder password s3cret\n")
        if way == "helper":
            helper = "!printf 'username=builder\\npassword=s3cret\\n'; true"
            run(["git", "config", "--global", "credential.helper", helper], env={"HOME": str(home)})
        if way == "none":
            with pytest.raises(ProvisionError) as caught:
                ensure_commits(store, [commit])
            assert "ls-remote" in str(caught.value.resolution)
            return
        (path,) = ensure_commits(store, [commit]).values()
    assert b"s3cret" not in path.read_bytes()
    assert run(["grep", "-rl", "s3cret", store.state], check=False).stdout == ""


def test_what_fails_has_a_cure_and_leaves_no_file(
    store: PackageStore, folder: Path, own: Commit
) -> None:
    url = f"{folder}/{own.repository}"
    rows = [
        (pinned(own, url).model_copy(update={"sha256": "9" * 64}), ProvisionError),
        (pinned(own, url).model_copy(update={"commit": "9" * 40}), ProvisionError),
        (pinned(own, f"{folder}/missing.git"), ProvisionError),
        # A server that is down says nothing of the driver.
        (pinned(own, "http://127.0.0.1:1/x.git"), UnreachableError),
    ]
    for commit, kind in rows:
        with pytest.raises(ProvisionError) as caught:
            ensure_commits(store, [commit])
        assert type(caught.value) is kind
        assert commit.commit in caught.value.message
        assert caught.value.resolution
    assert not list((store.folder).rglob("*.tar*"))


@pytest.mark.parametrize(
    "url", ["https://user:secret@git.example/x.git", "ssh://me:secret@git.example/x.git"]
)
def test_an_address_with_a_password_reaches_no_program(store: PackageStore, url: str) -> None:
    commit = GitCommit.model_construct(url=url, commit="1" * 40, sha256="2" * 64)
    for ask in (lambda: ensure_commits(store, [commit]), lambda: commit_at(store, url, "main")):
        with pytest.raises(UsageError) as caught:
            ask()
        assert "secret" not in f"{caught.value.message} {caught.value.resolution}"


def test_a_command_to_paste_runs_nothing_that_an_address_holds(
    store: PackageStore, own: Commit
) -> None:
    with pytest.raises(ProvisionError) as caught:
        ensure_commits(store, [pinned(own, "/missing;reboot")])
    assert "'/missing;reboot'" in str(caught.value.resolution)


def test_a_file_that_was_copied_or_written_in_part_is_fetched_again(
    store: PackageStore, folder: Path, own: Commit
) -> None:
    commit = pinned(own, f"{folder}/{own.repository}")
    (path,) = ensure_commits(store, [commit]).values()
    whole = path.read_bytes()
    for cut in (b"", whole[:600], whole[:2000]):
        path.write_bytes(cut)
        ensure_commits(store, [commit])
        assert path.stat().st_size == len(whole)


def test_a_tag_and_a_branch_are_pinned_to_the_commit_that_they_name_now(
    store: PackageStore, folder: Path, own: Commit
) -> None:
    bare = folder / own.repository
    url = str(bare)
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org"]

    def git(*words: str) -> str:
        return run(["git", "-C", bare, *who, *words]).stdout.strip()

    branch = git("branch", "--show-current")
    git("tag", "v1.0")
    git("tag", "--annotate", "--message", "m", "v1.1")
    for ref in (branch, "v1.0", "v1.1"):
        assert commit_at(store, url, ref) == (own.commit, own.sha256)
    # What was asked for is fetched: a build needs no server.
    later = git("commit-tree", f"{own.commit}^{{tree}}", "-p", own.commit, "-m", "later")
    git("update-ref", f"refs/heads/{branch}", later)
    moved, sha256 = commit_at(store, url, branch)
    assert moved == later
    assert commit_at(store, url, "v1.1")[0] == own.commit
    bare.rename(folder / "gone.git")
    ensure_commits(store, [GitCommit(url=url, commit=moved, sha256=sha256)])
    (folder / "gone.git").rename(bare)
    # A tag comes before a branch of its name.
    git("tag", branch, own.commit)
    assert commit_at(store, url, branch)[0] == own.commit
    with pytest.raises(NotFoundError):
        commit_at(store, url, "v9")


def test_while_a_server_is_down_its_last_answer_counts(
    store: PackageStore, folder: Path, own: Commit
) -> None:
    with git_served(folder) as server:
        url = f"{server}/{own.repository}"
        run(["git", "-C", folder / own.repository, "tag", "v1"])
        there = commit_at(store, url, "v1")
    assert commit_at(store, url, "v1") == there
    with pytest.raises(UnreachableError):
        commit_at(store, url, "v2")
