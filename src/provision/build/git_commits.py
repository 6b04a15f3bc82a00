"""Has commits of vendors' repositories in the package store, so that builds need no network.

A container of the build's own toolchain fetches them: git is among its packages, and the machine
that builds needs none. What is kept is what git needs to check a commit out again; the build
compares the commit's archive with the checksum of the Pin once more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from provision.build.package_store import PackageStore
from provision.engine.containers import Container, ContainerRequest
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError, redact
from provision.files import lock
from provision.pin import GitCommit, GitSource, Source
from provision.progress import Note, Output, Progress, silent

# A repository with its history may have gigabytes; one commit of a kernel has 250 MB.
_LIMIT_S = 1800.0
_WORK = "/provision/git"
_MADE = "/provision/commit.tar"
_WRONG = "provision: the archive's sha256 is "
# In blocks of 512 bytes, as sh counts them: 4 GiB, above which nothing is written.
_SCRIPT = """set -eu
ulimit -f 8388608
rm -rf {work} {made}
git init --quiet --bare {work}
cd {work}
git fetch --quiet --depth=1 {url} {commit}
sum=$(git archive --format=tar {commit} | sha256sum | cut -d ' ' -f 1)
[ "$sum" = {sha256} ] || {{ echo "{wrong}$sum"; exit 3; }}
tar --create --file={made} --sort=name --owner=0 --group=0 --numeric-owner objects shallow
"""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Which commits are wanted, and how they are had.

    Attributes:
        commits: The commits.
        store: Where they are kept.
        locks: Folder of locks: of two that want a commit, one fetches it.
        network: Network of the container; None: the engine's default.
    """

    commits: tuple[GitCommit, ...]
    store: PackageStore
    locks: Path
    network: str | None = None


def commits_of(sources: Iterable[Source]) -> tuple[GitCommit, ...]:
    """Return all commits of a Pin's sources, submodules included."""
    return tuple(
        commit for source in sources if isinstance(source, GitSource) for commit in source.commits
    )


def have_commits(
    engine: Engine,
    toolchain: Callable[[], str],
    request: CommitRequest,
    *,
    progress: Progress = silent,
) -> dict[str, Path]:
    """Return the files of commits by path in the build context, fetching those that are missing.

    Args:
        engine: Runs the container.
        toolchain: Returns the id of an image that has git; called only if something is missing.
        request: The commits.
        progress: Receives what is fetched, and what git says.

    Raises:
        ProvisionError: A commit can't be fetched, or has another content than the Pin says.
    """
    found = {}
    image = cache(toolchain)
    for commit in request.commits:
        path = request.store.commits / commit.file_name
        with lock(request.locks / path.stem[:32]):
            if not path.is_file():
                _fetch(engine, image(), commit, path, request.network, progress)
        # Garbage collection goes by the time of use.
        with suppress(OSError):
            path.touch()
        found[f"git/{path.name}"] = path
    return found


def _fetch(
    engine: Engine,
    image: str,
    commit: GitCommit,
    path: Path,
    network: str | None,
    progress: Progress,
) -> None:
    script = _SCRIPT.format(
        work=_WORK,
        made=_MADE,
        wrong=_WRONG,
        url=shlex.quote(commit.url),
        commit=shlex.quote(commit.commit),
        sha256=shlex.quote(commit.sha256),
    )
    progress(Note(f"Fetching {redact(commit.url)} {commit.commit[:12]}"))
    # One that asks for a name and a password would wait for an answer.
    environment = {"GIT_TERMINAL_PROMPT": "0"}
    wanted = ContainerRequest(
        image, path.stem[:32], network=network, environment=environment, limit=_LIMIT_S
    )
    with engine.container(wanted) as container:
        ran = container.run(script, on_line=lambda line: progress(Output(redact(line))))
        if ran.status != 0:
            raise _failed(commit, ran.said)
        _keep(container, path)


def _keep(container: Container, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    try:
        for _name, content in container.files(_MADE):
            with draft.open("wb") as stream:
                while chunk := content.read(1 << 20):
                    stream.write(chunk)
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _failed(commit: GitCommit, said: str) -> ProvisionError:
    name = f"the commit {commit.commit} of '{redact(commit.url)}'"
    lines = [line for line in said.splitlines() if line.startswith(_WRONG)]
    if lines:
        return ProvisionError(
            f"The content of {name} is not what the Pin says.",
            resolution="Compare it in a clone, and correct 'sha256' in driver.toml if the clone is"
            f" right: git archive --format=tar {commit.commit} | sha256sum",
            details=f"expected {commit.sha256}\ngot      {lines[-1].removeprefix(_WRONG)}",
        )
    return ProvisionError(
        f"Fetching failed for {name}.",
        resolution="Look whether the repository has the commit and can be reached: git ls-remote"
        f" {redact(commit.url)}; containers may need --network host, or a proxy in the"
        " environment.",
        details=redact("\n".join(said.splitlines()[-20:])),
    )
