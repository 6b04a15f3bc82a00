"""The files of a build context that are not rendered: packages, sources, commits, kernel trees.

They lie in the package store. So do the parts of NVIDIA's .run, which are made only once.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import Field

from provision.build.dockerfile import RenderedContext
from provision.build.network_access import FOLDER, SCRIPT, GitAccess, proxies
from provision.build.package_store import PackageStore, closure_key
from provision.build.resolve import Resolved
from provision.build.workspace import Settings
from provision.documents import Frozen, load_json
from provision.engine.docker_api import Container, ContainerRequest, Engine
from provision.engine.scratch import container_owner
from provision.errors import ProvisionError, UsageError, redact
from provision.fetch import UnreachableError
from provision.files import lock, mark_used, write_atomic
from provision.pin import GitCommit, GitSource, RunfileSource, Sha256, Source
from provision.progress import Event, Note, Output, Tally, current_listener, heard_by, report
from provision.sources.runfile import repack

# A repository with its history may have gigabytes; one commit of a kernel has 250 MB.
_LIMIT_S = 1800.0
_WORK = "/provision/git"
_MADE = "/provision/commit.tar"
_WRONG = "provision: the archive's sha256 is "
# What a tar file ends with: https://www.gnu.org/software/tar/manual/html_node/Standard.html
_END = bytes(1024)
# Messages of git and its library for HTTP about a network or server that may work again later.
_UNREACHABLE = re.compile(
    r"Could not resolve|(?:Failed|Could not|Couldn't) (?:to )?connect|unable to connect"
    r"|Connection (?:refused|reset|timed out)|Operation timed out|Network is unreachable"
    r"|returned error: (?:5[0-9][0-9]|429)|early EOF|RPC failed|Empty reply from server",
    re.IGNORECASE,
)
# Their messages about a server that asks for a login, or that no known authority vouches for.
_ASKS_WHO = re.compile(r"Authentication failed|could not read Username|returned error: 40[13]")
_UNTRUSTED = re.compile(r"certificate", re.IGNORECASE)
_LACKING = "provision: the image has no git"
# In blocks of 512 bytes, as sh counts them: 4 GiB, above which nothing is written.
_SCRIPT = """set -eu
command -v git >/dev/null || {{ echo "{lacking}"; exit 4; }}
ulimit -f 8388608
rm -rf {work} {made}
{access}git init --quiet --bare {work}
cd {work}
git fetch --quiet --depth=1 {url} {commit}
sum=$(git archive --format=tar {commit} | sha256sum | cut -d ' ' -f 1)
[ "$sum" = {sha256} ] || {{ echo "{wrong}$sum"; exit 3; }}
tar --create --file={made} --sort=name --owner=0 --group=0 --numeric-owner objects shallow
"""


def commits_of(sources: Iterable[Source]) -> tuple[GitCommit, ...]:
    """Return all commits of a Pin's sources, submodules included."""
    return tuple(
        commit for source in sources if isinstance(source, GitSource) for commit in source.commits
    )


def ensure_commits(
    engine: Engine,
    image_id: str,
    commits: Iterable[GitCommit],
    store: PackageStore,
    *,
    network: str | None = None,
    access: GitAccess,
) -> dict[str, Path]:
    """Return the files of commits by path in the build context, fetching those that are missing.

    A container of the build's own toolchain fetches them, so the machine that builds needs no git.
    The store keeps the files from which git checks a commit out again. The build compares the
    commit's archive with the checksum of the Pin once more.

    Args:
        image_id: Of the toolchain's image, which has git.
    """
    found = {}
    for commit in commits:
        path = store.commits / commit.file_name
        waiting = f"Another process fetches {redact(commit.url)}; waiting"
        with lock(store.locks / path.stem[:32], waiting=waiting):
            if not _whole(path):
                container_request = ContainerRequest(
                    image_id,
                    container_owner(store.state, path.stem),
                    network=network,
                    # git must not wait for a name and a password.
                    environment={"GIT_TERMINAL_PROMPT": "0", **proxies()},
                    limit=_LIMIT_S,
                )
                _fetch(engine, container_request, commit, path, access)
        mark_used(path)
        found[f"git/{path.name}"] = path
    return found


def _fetch(
    engine: Engine, request: ContainerRequest, commit: GitCommit, path: Path, access: GitAccess
) -> None:
    if redact(commit.url) != commit.url:
        raise UsageError(
            f"'{redact(commit.url)}' holds a password or token, which arguments of programs and"
            " labels of images would show to every user.",
            resolution="Leave it out of driver.toml, name a server that asks for none, and resolve"
            " again.",
        )
    report(Note(f"Fetching {redact(commit.url)} {commit.commit[:12]}"))
    script = _SCRIPT.format(
        work=_WORK,
        made=_MADE,
        wrong=_WRONG,
        lacking=_LACKING,
        access=SCRIPT,
        url=shlex.quote(commit.url),
        commit=shlex.quote(commit.commit),
        sha256=shlex.quote(commit.sha256),
    )
    with ExitStack() as stack:
        given = stack.enter_context(access.granted(commit.url, engine.host))
        more = {**request.environment, **given.environment}
        container = stack.enter_context(
            engine.container(replace(request, binds=given.binds, environment=more))
        )
        if given.files:
            container.put(given.files, FOLDER)
        ran = container.run(script, on_line=lambda line: report(Output(redact(line))))
        if ran.status != 0:
            raise _failed(commit, path, ran.said)
        _keep(container, path)


def _whole(path: Path) -> bool:
    """Return whether a file is there and not cut off; the build compares its content.

    Admins copy files here, and the power may fail.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(-len(_END), os.SEEK_END)
            return stream.tell() > 0 and stream.read() == _END
    except OSError:
        return False


def _keep(container: Container, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    try:
        for _name, content in container.files(_MADE):
            with draft.open("wb") as stream:
                while chunk := content.read(1 << 20):
                    stream.write(chunk)
                stream.flush()
                os.fsync(stream.fileno())
            if not _whole(draft):
                raise ProvisionError(
                    f"What the engine sent of '{_MADE}' is cut off.",
                    resolution="Run the command again.",
                )
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _failed(commit: GitCommit, path: Path, said: str) -> ProvisionError:
    lines = [line for line in said.splitlines() if line.startswith(_WRONG)]
    if lines:
        return _wrong_content(commit, lines[-1].removeprefix(_WRONG))
    kind: type[ProvisionError] = ProvisionError
    details: str | None = redact("\n".join(said.splitlines()[-20:]))
    copy = f"'{path}' from a machine whose package store has it (the same path there)."
    if _LACKING in said:
        reason, details = ": the base image has no git", None
        resolution = f"Name a base image that has git (--base), or copy {copy}"
    elif _ASKS_WHO.search(said):
        reason = ": the server asks for a login, or refuses the one it got"
        resolution = (
            "Put a login into ~/.netrc of the user who builds (chmod 600 ~/.netrc):"
            f" machine {urlsplit(commit.url).hostname} login NAME password WORD. It is used over"
            f" https:// only. Or copy {copy}"
        )
    elif _UNTRUSTED.search(said):
        reason = ": no authority that this machine knows vouches for the server"
        resolution = (
            "Add its authority to this machine's own (update-ca-certificates on Debian,"
            " update-ca-trust on RHEL)."
        )
    else:
        # An unreachable server says nothing about the driver: a matrix ends, and records nothing.
        kind = UnreachableError if _UNREACHABLE.search(said) else ProvisionError
        reason = ""
        resolution = (
            "Check whether the repository has the commit and can be reached: git ls-remote"
            f" {_pasted(commit)}; containers may need --network host, or [network] proxy"
            f" in /etc/provision/provision.toml. Or copy {copy}"
        )
    return kind(
        f"Fetching failed for {_named(commit)}{reason}.", resolution=resolution, details=details
    )


def _wrong_content(commit: GitCommit, sha256: str) -> ProvisionError:
    return ProvisionError(
        f"The content of {_named(commit)} is not what the Pin says.",
        resolution="Compare it with what git makes of the commit without tags and branches,"
        " whose names git puts into some files, and correct 'sha256' in driver.toml if that is"
        f" right: git init -q x && cd x && git fetch -q --depth=1 {_pasted(commit)}"
        f" {commit.commit} && git archive --format=tar {commit.commit} | sha256sum",
        details=f"expected {commit.sha256}\ngot      {sha256}",
    )


def _named(commit: GitCommit) -> str:
    return f"the commit {commit.commit} of '{redact(commit.url)}'"


def _pasted(commit: GitCommit) -> str:
    """Return the address of a repository for commands that people paste: it may have a ';'."""
    return shlex.quote(redact(commit.url))


class _Index(Frozen):
    """The record of the parts of a .run in the store: sha256 by part."""

    schema_version: int = Field(default=1, alias="schema")
    parts: dict[str, Sha256]


def ensure_parts(
    settings: Settings, source: RunfileSource, fetch: Callable[[], Path]
) -> Mapping[str, Path]:
    """Return the parts of a .run by name, made and put into the package store if necessary.

    Args:
        fetch: Returns the verified file; called only if its parts are missing.
    """
    key = closure_key(source.model_dump(mode="json", exclude={"url"}))
    store = PackageStore(settings.state)
    folder = store.runfiles
    index = folder / f"{key}.json"
    waiting = "Another process is taking the same file apart; waiting for it"
    with lock(settings.state / "locks" / f"runfile-{key[:32]}", waiting=waiting):
        with suppress(ProvisionError):
            found = {part: store.whole(one) for part, one in load_json(index, _Index).parts.items()}
            whole = {part: path for part, path in found.items() if path is not None}
            if len(whole) == len(found):
                mark_used(index)
                return whole
        run = fetch()
        report(Note(f"Taking {source.url.rpartition('/')[2]} apart, without running it"))
        draft = folder / f".{key}"
        # The leftovers of a killed run.
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            parts = repack(run, source, draft)
            kept = {name: store.take(path, sync=False) for name, path in parts.items()}
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        text = _Index(parts=kept).model_dump_json(by_alias=True, indent=1)
        write_atomic(index, f"{text}\n")
        return {name: store.path(digest) for name, digest in kept.items()}


def downloaded_files(
    settings: Settings, resolved: Resolved, context: RenderedContext
) -> dict[str, Path]:
    """Return the files of a build context that are not rendered, in the package store."""
    store = PackageStore(settings.state)
    fetched = _fetched(store, resolved, context.downloads)
    for source in resolved.pin.sources:
        if context.parts and isinstance(source, RunfileSource):
            name = source.url.rpartition("/")[2]
            fetch = partial(store.fetch, source.sha256, (source.url,), name=name)
            parts = ensure_parts(settings, source, fetch)
            fetched |= {path: parts[part] for path, part in context.parts.items()}
    return fetched


def _fetched(store: PackageStore, resolved: Resolved, files: Mapping[str, str]) -> dict[str, Path]:
    """Return the files of a Pin, given the sha256 of each path; download what is missing."""
    sizes = {package.sha256: package.size for package in resolved.pin.closure}
    sources = {s.sha256: s.address for s in resolved.pin.sources if s.address}
    there = {path: store.whole(sha256) for path, sha256 in files.items()}
    missing = [path for path, found in there.items() if found is None]
    fetched = {path: found for path, found in there.items() if found is not None}
    if missing:
        sized = [sizes[files[path]] for path in missing if files[path] in sizes]
        more = " and others" if len(sized) < len(missing) else ""
        size = f" ({sum(sized) / 1_000_000:.1f} MB{more})" if sized else ""
        report(Note(f"Downloading {len(missing)} file{'s' * (len(missing) > 1)}{size}"))

    listener = current_listener()

    def without_notes(event: Event) -> None:
        # No line for each of many files.
        if not isinstance(event, Note):
            listener(event)

    for number, path in enumerate(missing):
        sha256 = files[path]
        urls = (sources[sha256],) if sha256 in sources else tuple(resolved.urls.get(sha256, ()))
        # The context names some files by their checksums; an address has a name for people.
        name = unquote((urls[0] if urls else path).rpartition("/")[2])
        size = f" ({sizes[sha256] / 1_000_000:.1f} MB)" if sha256 in sizes else ""
        report(Tally(len(missing), {"downloaded": number}, (f"{name}{size}",)))
        with heard_by(without_notes):
            fetched[path] = store.fetch(sha256, urls, name=name, size=sizes.get(sha256))
    if missing:
        report(Tally(0))
    return fetched


def commit_files(settings: Settings, resolved: Resolved, image_id: str) -> Mapping[str, Path]:
    """Return the files of a build context that hold commits of repositories; fetch missing ones."""
    return ensure_commits(
        settings.engine(),
        image_id,
        commits_of(resolved.pin.sources),
        PackageStore(settings.state),
        network=settings.config.engine.network,
        access=GitAccess(settings.root, settings.state / "git-login"),
    )
