"""The files of a build context that are not rendered: packages, sources, commits, kernel trees.

They lie in the package store. So do the parts of NVIDIA's .run, which are made only once, and the
objects of commits. git itself fetches these on this machine as the user who builds, with that
user's settings. So addresses, logins (``~/.netrc``, credential helpers), keys and agents of SSH,
proxies and authorities mean what they mean to ``git clone``, and nothing of them is read here.
"""

import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from pydantic import Field

from provision.build.dockerfile import RenderedContext
from provision.build.package_store import PackageStore, closure_key
from provision.documents import Frozen, load_json
from provision.errors import NotFoundError, ProvisionError, UnreachableError, UsageError, redact
from provision.explain import explain
from provision.files import lock, mark_used, scratch, sha256_file, write_atomic
from provision.pin import GitCommit, Pin, RunfileSource, Sha256
from provision.progress import Note, report
from provision.run import Completed, find_program, run
from provision.sources.runfile import repack


class _Index(Frozen):
    schema_version: int = Field(default=1, alias="schema")
    parts: dict[str, Sha256]


def context_files(store: PackageStore, pin: Pin, context: RenderedContext) -> dict[str, Path]:
    """Return the files of a context that are not rendered, fetching those that are missing."""
    fetched = _downloaded(store, pin, context.downloads)
    for source in pin.sources:
        if context.parts and isinstance(source, RunfileSource):
            parts = ensure_parts(store, source)
            fetched |= {path: parts[part] for path, part in context.parts.items()}
    return fetched | ensure_commits(store, context.commits)


def ensure_parts(store: PackageStore, source: RunfileSource) -> Mapping[str, Path]:
    """Return the parts of a .run by name, made and put into the package store if necessary."""
    key = closure_key(source.model_dump(mode="json", exclude={"url"}))
    index = store.runfiles / f"{key}.json"
    waiting = "Another process is taking the same file apart; waiting for it"
    with lock(store.locks / f"runfile-{key[:32]}", waiting=waiting):
        with suppress(ProvisionError):
            found = {part: store.whole(one) for part, one in load_json(index, _Index).parts.items()}
            whole = {part: path for part, path in found.items() if path is not None}
            if len(whole) == len(found):
                mark_used(index)
                return whole
        name = source.url.rpartition("/")[2]
        if not store.path(source.sha256).exists():
            report(Note(f"Downloading {name}"))
        run_file = store.fetch(source.sha256, (source.url,), name=name)
        report(Note(f"Taking {name} apart, without running it"))
        with scratch(store.state, f"parts-{key[:32]}") as draft:
            parts = repack(run_file, source, draft)
            kept = {name: store.take(path, sync=False) for name, path in parts.items()}
        text = _Index(parts=kept).model_dump_json(by_alias=True, indent=1)
        write_atomic(index, f"{text}\n")
        return {name: store.path(digest) for name, digest in kept.items()}


def _downloaded(store: PackageStore, pin: Pin, files: Mapping[str, str]) -> dict[str, Path]:
    """Return the files of a Pin, given the sha256 of each path; download what is missing."""
    sizes = {package.sha256: package.size for package in pin.closure}
    sources = {s.sha256: (s.address,) for s in pin.sources if s.address}
    known = {path: store.whole(sha256) for path, sha256 in files.items()}
    fetched = {path: found for path, found in known.items() if found is not None}
    missing = [path for path in files if path not in fetched]
    if not missing:
        return fetched
    sized = [sizes[files[path]] for path in missing if files[path] in sizes]
    more = " and others" if len(sized) < len(missing) else ""
    size = f" ({sum(sized) / 1_000_000:.1f} MB{more})" if sized else ""
    report(Note(f"Downloading {len(missing)} file{'s' * (len(missing) > 1)}{size}"))
    for path in missing:
        sha256 = files[path]
        places = sources.get(sha256) or pin.urls.get(sha256, ())
        # The context names some files by their checksums; an address has a name for people.
        name = unquote((places[0] if places else path).rpartition("/")[2])
        fetched[path] = store.fetch(sha256, places, name=name, size=sizes.get(sha256))
    return fetched


# A repository with its history may have gigabytes; one commit of a kernel has 250 MB.
_LIMIT_S = 1800.0
_ASK_S = 120.0
_LARGEST = 4 << 30
_WHY = "get the source of a driver from its repository"
# What a tar file ends with: https://www.gnu.org/software/tar/manual/html_node/Standard.html
_END = bytes(1024)
# Variables of the user's that tell git and ssh how to reach a server; not those that name another
# repository, which a hook of git's has set.
_USERS = ("GIT_ASKPASS", "GIT_CONFIG", "GIT_SSH", "GIT_SSL", "SSH_", "XDG_CONFIG_HOME")
# What is made of a commit is the same with every user's settings.
_NO_SETTINGS = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def ensure_commits(store: PackageStore, commits: Iterable[GitCommit]) -> dict[str, Path]:
    """Return the files of commits by path in the build context, fetching those that are missing.

    The store keeps the files from which git checks a commit out again. The build compares the
    commit's archive with the checksum of the Pin once more.
    """
    found = {}
    for commit in commits:
        path = store.commits / commit.file_name
        waiting = f"Another process fetches {redact(commit.url)}; waiting"
        with lock(store.locks / path.stem[:32], waiting=waiting):
            if not _whole(path):
                _fetch(store, commit.url, commit.commit, commit)
        mark_used(path)
        found[f"git/{path.name}"] = path
    return found


def commit_at(store: PackageStore, url: str, ref: str) -> tuple[str, str]:
    """Return the commit that a tag or branch names now, and the checksum of its archive.

    A tag comes before a branch. If the server can't be reached, its last answer counts.
    """
    _refuse_secrets(url)
    key = closure_key({"repository": url, "ref": ref})
    try:
        commit = _ask(url, ref)
    except UnreachableError as error:
        last = GitCommit.model_validate_json(store.last_answer(key, error))
        return last.commit, last.sha256
    kept = store.answer(key, max_age=float("inf"))
    known = GitCommit.model_validate_json(kept) if kept else None
    if known is None or known.commit != commit:
        waiting = f"Another process fetches {redact(url)}; waiting"
        with lock(store.locks / key[:32], waiting=waiting):
            known = _fetch(store, url, commit)
        report(Note(f"'{ref}' of {redact(url)} is the commit {commit}"))
    store.keep_answer(key, known.model_dump_json().encode())
    return known.commit, known.sha256


def _ask(url: str, ref: str) -> str:
    names = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}")
    done = _git(["ls-remote", "--", _address(url), *names], env=_users(), timeout=_ASK_S)
    if done.returncode != 0:
        raise _failed(f"'{ref}' of '{redact(url)}'", url, done.stderr)
    lines = (line.split("\t", 1) for line in done.stdout.splitlines())
    found = {line[1]: line[0] for line in lines if len(line) > 1}
    commit = next((found[name] for name in names if name in found), None)
    if commit is None:
        raise NotFoundError(
            f"'{redact(url)}' has no tag or branch '{ref}'.",
            resolution=f"See what it has, and correct 'ref' in driver.toml: git ls-remote"
            f" {_pasted(url)}",
        )
    return commit


def _fetch(
    store: PackageStore, url: str, commit: str, expected: GitCommit | None = None
) -> GitCommit:
    _refuse_secrets(url)
    named = f"the commit {commit} of '{redact(url)}'"
    report(Note(f"Fetching {redact(url)} {commit[:12]}"))
    with scratch(store.state, f"commit-{commit}") as folder:
        repository, archive = folder / "git", folder / "archive.tar"
        inside = ["-C", str(repository)]
        plain = ["init", "--quiet", "--bare", "--template=", "--", str(repository)]
        _git(plain, env=_NO_SETTINGS, check=True)
        # Nothing is left running in the background.
        calm = ["-c", "gc.auto=0", "-c", "maintenance.auto=false"]
        fetch = [*inside, *calm, "fetch", "--quiet", "--no-tags", "--depth=1", "--"]
        done = _git([*fetch, _address(url), commit], env=_users(), timeout=_LIMIT_S)
        if done.returncode != 0:
            raise _failed(named, url, done.stderr, expected, store)
        pack = ["archive", "--format=tar", f"--output={archive}", commit]
        _git([*inside, *pack], env=_NO_SETTINGS, check=True)
        got = GitCommit(url=url, commit=commit, sha256=sha256_file(archive))
        if expected is not None and got.sha256 != expected.sha256:
            raise _wrong_content(expected, got.sha256)
        draft = folder / "commit.tar"
        kept = [name for name in ("objects", "shallow") if (repository / name).exists()]
        tar = ["tar", "--create", f"--file={draft}", f"--directory={repository}", "--sort=name"]
        run([*tar, "--owner=0", "--group=0", "--numeric-owner", *kept], why=_WHY)
        path = store.commits / got.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        draft.replace(path)
    return got


def _git(
    words: list[str],
    *,
    env: Mapping[str, str],
    timeout: float = _LIMIT_S,
    check: bool = False,
) -> Completed:
    if find_program("git") is None:
        raise ProvisionError(
            "This machine has no git, which fetches the driver's source.",
            resolution="Install it (apt-get install git, dnf install git), or copy the folder"
            " 'packages/commits' of the state folder from a machine that has fetched it.",
        )
    return run(
        ["git", *words], why=_WHY, check=check, env=env, timeout=timeout, largest_file=_LARGEST
    )


def _users() -> dict[str, str]:
    """Return the user's variables for git; it must not wait for a name and a password."""
    own = {name: text for name, text in os.environ.items() if name.startswith(_USERS)}
    if "REQUESTS_CA_BUNDLE" in os.environ:
        # The one that this program's own downloads trust.
        own.setdefault("GIT_SSL_CAINFO", os.environ["REQUESTS_CA_BUNDLE"])
    # A unit of systemd has no HOME.
    return {
        **own,
        "HOME": str(Path.home()),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "file:http:https:ssh",
    }


def _address(url: str) -> str:
    # git ignores a depth for a plain path.
    return Path(url).as_uri() if url.startswith("/") else url


def _refuse_secrets(url: str) -> None:
    if redact(url) != url:
        raise UsageError(
            f"'{redact(url)}' holds a password or token, which arguments of programs and"
            " labels of images would show to every user.",
            resolution="Leave it out of driver.toml, let git's credential helper or ~/.netrc have"
            " it, and resolve again.",
        )


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


def _failed(
    named: str,
    url: str,
    said: str,
    expected: GitCommit | None = None,
    store: PackageStore | None = None,
) -> ProvisionError:
    try_it = f"git ls-remote {_pasted(url)}"
    copy = ""
    if expected is not None and store is not None:
        path = store.commits / expected.file_name
        copy = f" Or copy '{path}' from a machine whose package store has it (the same path there)."
    found = explain("git", said, {"command": try_it})
    reason = f": {found.cause}" if found and found.cause else ""
    resolution = found.what_to_do if found else f"Check whether the repository has it: {try_it}."
    details = redact("\n".join(said.splitlines()[-20:])) or None
    kind = found.kind.error if found else ProvisionError
    return kind(
        f"Fetching failed for {named}{reason}.", resolution=f"{resolution}{copy}", details=details
    )


def _wrong_content(commit: GitCommit, sha256: str) -> ProvisionError:
    return ProvisionError(
        f"The content of the commit {commit.commit} of '{redact(commit.url)}' is not what the Pin"
        " says.",
        resolution="Compare it with what git makes of the commit without tags and branches,"
        " whose names git puts into some files, and correct 'sha256' in driver.toml if that is"
        f" right: git init -q x && cd x && git fetch -q --depth=1 {_pasted(commit.url)}"
        f" {commit.commit} && git archive --format=tar {commit.commit} | sha256sum",
        details=f"expected {commit.sha256}\ngot      {sha256}",
    )


def _pasted(url: str) -> str:
    """Return the address of a repository for commands that people paste: it may have a ';'."""
    return shlex.quote(redact(url))
