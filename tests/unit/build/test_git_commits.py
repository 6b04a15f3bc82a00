"""git fetches commits, once, as the user who builds would; they are compared with the Pin."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kit.fileserver import guard
from kit.git_server import Commit, commit_files, git_served
from kit.process import run
from provision.build.context_files import commit_at, ensure_commits
from provision.build.package_store import PackageStore
from provision.errors import NotFoundError, ProvisionError, UnreachableError, UsageError
from provision.pin import GitCommit

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
def folder(tmp_path: Path) -> Path:
    (tmp_path / "repositories").mkdir()
    return tmp_path / "repositories"


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
    monkeypatch.setenv("GIT_SSH_COMMAND", str(home / "ssh"))
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
