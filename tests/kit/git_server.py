"""Git repositories over HTTP or HTTPS on the loopback interface, served by `git http-backend`.

The protocol: https://git-scm.com/docs/git-http-backend; a plain file server can't be asked for
a commit by its name.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kit.files import sha256, write_all
from kit.fileserver import Answering, Guarded, serving
from kit.process import run, run_bytes

_WHO = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a served repository, as a recipe names it."""

    # The repository's name below the server's address.
    repository: str
    commit: str
    # Of `git archive --format=tar COMMIT`.
    sha256: str

    @property
    def folder(self) -> str:
        """Where it lies in a repository that has it as a submodule."""
        return self.repository.removesuffix(".git")


def commit_files(folder: Path, name: str, files: Mapping[str, str], *more: Commit) -> Commit:
    """Make the bare repository `folder/name.git` with one commit of some texts, all executable.

    `more` are commits of other repositories, which become submodules at `NAME` for `NAME.git`.
    """
    tree, bare = folder / f".{name}", folder / f"{name}.git"
    write_all(tree, files, 0o755)
    git = ["git", "-C", str(tree)]
    run(["git", "init", "--quiet", tree], env=_WHO)
    run([*git, "add", "."], env=_WHO)
    for other in more:
        link = f"160000,{other.commit},{other.folder}"
        run([*git, "update-index", "--add", "--cacheinfo", link], env=_WHO)
    run([*git, "commit", "--quiet", "-m", name], env=_WHO)
    run(["git", "clone", "--quiet", "--bare", tree, bare], env=_WHO)
    shutil.rmtree(tree)
    found = run(["git", "-C", bare, "rev-parse", "HEAD"], env=_WHO).stdout.strip()
    tar = run_bytes(["git", "-C", bare, "archive", "--format=tar", found], stdin=b"")
    return Commit(bare.name, found, sha256(tar))


@contextmanager
def git_served(folder: Path, guarded: Guarded | None = None) -> Iterator[str]:
    """Serve the bare repositories of `folder`; yields its URL, without a slash at the end."""
    handler = type("_Of", (_Handler,), {"folder": folder, "guarded": guarded})
    with serving(handler, guarded.tls() if guarded else None) as url:
        yield url


class _Handler(Answering):
    folder: ClassVar[Path]
    guarded: ClassVar[Guarded | None]

    def do_GET(self) -> None:  # noqa: N802 - http.server
        self._answer()

    def do_POST(self) -> None:  # noqa: N802 - http.server
        self._answer()

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.guarded is not None and self.headers.get("Authorization") != _basic(self.guarded):
            self.answer(401, WWW_Authenticate='Basic realm="site"')
            return
        answer = run_bytes(
            ["git", "-c", "uploadpack.allowAnySHA1InWant=true", "http-backend"],
            stdin=sent,
            env={
                "GIT_PROJECT_ROOT": str(self.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            },
        )
        head, _, body = answer.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = fields.pop("Status", "200 OK")
        self.answer(int(status.split()[0]), body, **fields)


def _basic(guarded: Guarded) -> str:
    return f"Basic {base64.b64encode(guarded.login.encode()).decode()}"
