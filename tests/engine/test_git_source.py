"""Drivers from git repositories: a commit and its submodules are fetched once, and pinned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from kit.engine import Engine
from kit.fileserver import guard
from kit.git_server import Commit, commit_files, git_served
from kit.hosts import DISTRO, OLD_KERNEL
from kit.made_up import MADE_UP, made_up_files, write_made_up_in_git
from kit.probe import need_programs
from kit.process import run
from kit.product import BUILD_NETWORK, Provision

_VERSION = "1.2"
# The module needs a header of the submodule, and the tool the branch that the build checked out.
_EXTRA = """\
#include "common/limits.h"
static int hello_limit = HELLO_LIMIT;
module_param(hello_limit, int, 0);
"""


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Commit, Commit]:
    """The served folder, the driver's commit, and that of its submodule."""
    need_programs("git")
    folder = tmp_path_factory.mktemp("repositories")
    common = commit_files(folder, "common", {"limits.h": "#define HELLO_LIMIT 7\n"})
    files = made_up_files(_VERSION, extra=_EXTRA)
    files["Makefile"] += (
        '\tprintf "#!/bin/sh\\necho on %s\\n" "$$(git branch --show-current)" > hello-tool\n'
    )
    return folder, commit_files(folder, "hello", files, common), common


@pytest.fixture
def url(commits: tuple[Path, Commit, Commit]) -> Iterator[str]:
    with git_served(commits[0]) as address:
        yield address


def _target(catalogue: Path) -> tuple[str | Path, ...]:
    return (MADE_UP, "--kernel", OLD_KERNEL, "--distro", DISTRO, "--catalogue", catalogue)


@pytest.mark.nightly
def test_a_commit_with_a_submodule_is_built_and_fetched_once(
    provision: Provision, commits: tuple[Path, Commit, Commit], url: str, tmp_path: Path
) -> None:
    folder, own, common = commits
    drivers = tmp_path / "drivers"
    write_made_up_in_git(drivers, _VERSION, url, own, common)
    root = tmp_path / "root"
    built = provision.build(*_target(drivers))
    assert built["built"]
    provision("verify", built["image"])
    provision("install", built["image"], "--root", root)
    (tool,) = (one for one in root.rglob("hello-tool") if not one.is_symlink())
    # A build finds a checkout, on a branch called after the version.
    assert tool.read_text() == f"#!/bin/sh\necho on {_VERSION}\n"
    again = provision.json("build", *_target(drivers), "--rebuild", *BUILD_NETWORK)
    assert again["digest"] == built["digest"]
    # The server is of no use any more: everything is in the package store.
    for repository in folder.iterdir():
        repository.rename(repository.with_suffix(".gone"))
    try:
        provision.json("build", *_target(drivers), "--rebuild", *BUILD_NETWORK)
    finally:
        for repository in folder.iterdir():
            repository.rename(repository.with_suffix(".git"))


@pytest.mark.nightly
def test_a_private_authority_and_a_login_reach_git_and_nothing_else(
    engine: Engine, commits: tuple[Path, Commit, Commit], tmp_path: Path
) -> None:
    folder, own, common = commits
    secret = token_hex(12)
    guarded = guard(tmp_path, f"builder:{secret}")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text(f"machine 127.0.0.1 login builder password {secret}\n")
    cache = tmp_path / "cache"
    # Nothing of another test: the commits have to be fetched.
    trusting = {"GIT_SSL_CAINFO": str(guarded.authority)}
    knowing = {"HOME": str(home)}
    nothing = {"HOME": str(tmp_path / "none"), "XDG_CACHE_HOME": str(cache)}
    with git_served(folder, guarded) as url:
        write_made_up_in_git(tmp_path / "drivers", _VERSION, url, own, common)
        words = ("build", *_target(tmp_path / "drivers"), *BUILD_NETWORK)
        for environment, message in ((knowing, "vouches"), (trusting, "asks for a login")):
            provision = Provision(engine.host, {**nothing, **environment})
            status, error = provision.failure(*words)
            assert (status, secret in str(error)) == (1, False)
            assert message in error["message"]
        provision = Provision(engine.host, {**nothing, **trusting, **knowing})
        done = provision(*words, "--json")
    built = json.loads(done.stdout)
    assert built["built"]
    assert secret not in done.output
    # Neither in images nor in what a build leaves on this machine.
    shown = [engine.docker("image", "inspect", image).stdout for image in engine.layers()]
    shown += [engine.docker("history", "--no-trunc", image).stdout for image in engine.layers()]
    assert secret not in "".join(shown)
    assert run(["grep", "-rl", secret, cache], check=False).stdout == ""
