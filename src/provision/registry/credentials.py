"""Credentials for registries, from the files and helpers of Docker and podman.

Sources: https://docs.docker.com/reference/cli/docker/login/, containers-auth.json(5),
https://github.com/docker/docker-credential-helpers.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.documents import MAX_BYTES
from provision.errors import ConfigError, Mistake, NotFoundError, ProvisionError
from provision.run import Completed, run

# Docker's name for its own hub, in its own file.
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io", "docker.io")
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# A helper may ask a keyring or a cloud's service.
_HELPER_SECONDS = 30.0
_TOKEN_USER = "<token>"  # noqa: S105 - how helpers say that the secret is a token

RunHelper = Callable[[str, str], Completed]


@dataclass(frozen=True, slots=True)
class Credentials:
    """The host's credentials for a registry.

    Attributes:
        username: User name.
        password: Password, or an access token used as one.
        refresh_token: Requests access tokens in place of both.
    """

    username: str = ""
    password: str = ""
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r})"

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header (RFC 7617)."""
        text = f"{self.username}:{self.password}"
        return f"Basic {base64.b64encode(text.encode()).decode()}"


class _UnusableError(Exception):
    """A file or helper has invalid content; the text never contains a secret."""


def default_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files that may hold credentials, in order of precedence."""
    home = Path(environment.get("HOME") or "/root")
    docker = environment.get("DOCKER_CONFIG")
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    if auth_file := environment.get("REGISTRY_AUTH_FILE"):
        return (Path(auth_file),)
    folder = "" if runtime.startswith("/run/containers/") else "containers"
    return (
        Path(runtime, folder, "auth.json"),
        Path(environment.get("XDG_CONFIG_HOME") or home / ".config", "containers/auth.json"),
        Path(docker or home / ".docker", "config.json"),
    )


def find_credentials(
    registry: str,
    repository: str,
    files: Sequence[Path],
    *,
    run_helper: RunHelper | None = None,
) -> Credentials | None:
    """Return the credentials for a repository; None for anonymous access.

    Args:
        registry: ``host[:port]``.
        repository: The repository: podman's files may have credentials for a part of a registry.
        files: Files of Docker or podman; the first with credentials counts, missing ones are
            skipped.
        run_helper: Asks a credential helper, given program and registry; None: runs the program.

    Raises:
        ConfigError: A file is not one of those, or has an invalid value.
        NotFoundError: A helper that a file names is not installed.
        ProvisionError: A helper failed.
    """
    ask = run_helper or _run_helper
    for file in files:
        document = _read(file)
        if document is None:
            continue
        try:
            for key in _keys(registry, repository):
                found = _of_key(document, key, ask)
                if found is not None:
                    return found
        except _UnusableError as error:
            raise ConfigError(
                str(file),
                [Mistake("", str(error))],
                resolution=f"Log in again: docker login {registry} (or podman login).",
            ) from error
    return None


def _keys(registry: str, repository: str) -> Iterator[str]:
    """Yield the keys that may have credentials, the most specific first."""
    parts = repository.split("/")
    for count in range(len(parts), 0, -1):
        yield "/".join([registry, *parts[:count]])
    if registry == "docker.io":
        yield from _HUB_KEYS
    else:
        yield from (registry, f"https://{registry}", f"https://{registry}/", f"http://{registry}")
        yield from (f"https://{registry}/v1/", f"https://{registry}/v2/")


def _of_key(document: Mapping[str, Any], key: str, ask: RunHelper) -> Credentials | None:
    helpers = _member(document, "credHelpers")
    auths = _member(document, "auths")
    helper = helpers.get(key)
    # Docker asks its store only for registries with an empty entry, which it wrote itself.
    if helper is None and key in auths and auths[key] in ({}, None):
        helper = document.get("credsStore")
    if helper is not None:
        if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
            raise _UnusableError(f"the credential helper for '{key}' is no program's name")
        return _from_helper(helper, key, ask)
    entry = auths.get(key)
    return None if entry is None else _from_entry(key, entry)


def _member(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _UnusableError(f"'{name}' is no object")
    return value


def _from_entry(key: str, entry: object) -> Credentials | None:
    if not isinstance(entry, Mapping):
        raise _UnusableError(f"'auths' has no object for '{key}'")
    token = entry.get("identitytoken")
    auth = entry.get("auth")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode()
        except ValueError as error:
            raise _UnusableError(f"'auth' for '{key}' is not base64") from error
        username, colon, password = text.partition(":")
        if not colon:
            raise _UnusableError(f"'auth' for '{key}' has no ':' in it")
        # Docker pads it with NUL.
        password = password.rstrip("\0")
    else:
        given = entry.get("username"), entry.get("password")
        username, password = (text if isinstance(text, str) else "" for text in given)
    if isinstance(token, str) and token:
        return Credentials(username, "", token)
    return Credentials(username, password) if username or password else None


def _from_helper(helper: str, key: str, ask: RunHelper) -> Credentials | None:
    program = f"docker-credential-{helper}"
    done = ask(program, key)
    if done.returncode != 0:
        # By the protocol, this means that the helper has no credentials.
        if "credentials not found" in (done.stdout + done.stderr):
            return None
        raise ProvisionError(
            f"'{program}' failed with exit status {done.returncode} while it had to look up the"
            f" credentials for '{key}'.",
            resolution=f"Try it by hand: echo {key} | {program} get",
            details=done.stderr.strip() or None,
        )
    try:
        document = json.loads(done.stdout)
        username, secret = document["Username"], document["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _UnusableError(f"'{program}' answered no JSON with Username and Secret") from error
    if not (isinstance(username, str) and isinstance(secret, str)):
        raise _UnusableError(f"'{program}' answered no texts as Username and Secret")
    if username == _TOKEN_USER:
        return Credentials(refresh_token=secret)
    return Credentials(username, secret)


def _run_helper(program: str, key: str) -> Completed:
    try:
        return run(
            [program, "get"],
            why=f"look up the credentials for '{key}'",
            stdin=key.encode(),
            check=False,
            timeout=_HELPER_SECONDS,
        )
    except NotFoundError as error:
        raise NotFoundError(
            error.message,
            resolution=f"Install '{program}', or log in without it: remove credsStore and"
            " credHelpers from the file of credentials, and run 'docker login' again.",
        ) from error


def _read(file: Path) -> Mapping[str, Any] | None:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            # A named pipe would keep its reader waiting.
            raise ConfigError(str(file), [Mistake("", "not a regular file")])
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(
            str(file), [Mistake("", f"can't be read: {error.strerror or error}")]
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(str(file), [Mistake("", f"larger than {MAX_BYTES} bytes")])
    try:
        document = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(file), [Mistake("", "not valid JSON")]) from error
    if not isinstance(document, Mapping):
        raise ConfigError(str(file), [Mistake("", "no JSON object")])
    return document
