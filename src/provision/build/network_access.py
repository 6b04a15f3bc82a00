"""What containers are given of this machine's access to networks: proxies, authorities, logins.

A login is in no argument, variable or layer: wget and git's library for HTTP read ``~/.netrc`` by
themselves. A container that fetches commits gets the certificates that this machine's own downloads
trust (``REQUESTS_CA_BUNDLE``, or those of the host), and from ``NETRC`` or ``~/.netrc`` only the
entry that it needs. It sees that entry read-only, and only while it runs.

Source: https://www.gnu.org/software/inetutils/manual/html_node/The-_002enetrc-file.html;
git-config(1) ``http.sslCAInfo``; https://curl.se/libcurl/c/CURLOPT_NETRC.html, which git sets;
https://docs.docker.com/reference/dockerfile/#predefined-args for the variables of proxies.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from provision.config import NetworkConfig
from provision.errors import ProvisionError, UsageError
from provision.fetch.authorities import authorities_of

# Characters that a word of the file can't hold: wget reads quotes, but has no escape for one.
_NO_WORD = re.compile(r"[\s\"\\\x00-\x1f]")
# Folders of the container.
FOLDER = "/provision/access"
_HOME = "/provision/login"
_AUTHORITIES = "authorities.crt"
# Adds the certificates of the container's image to those of this machine.
SCRIPT = f"""\
authorities={FOLDER}/{_AUTHORITIES}
if [ -s $authorities ]; then
    for more in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt \\
            /etc/ssl/ca-bundle.pem; do
        if [ -s "$more" ]; then cat "$more" >> $authorities; fi
    done
    export GIT_SSL_CAINFO=$authorities
fi
"""
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class Granted:
    """The access of a container to one repository."""

    # Folders of the host that it sees read-only, by path in the container.
    binds: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GitAccess:
    """This machine's authorities and logins."""

    root: Path
    # Gets the login for a container; only its owner can read it there.
    folder: Path

    @contextmanager
    def granted(self, url: str, engine: str) -> Iterator[Granted]:
        """Yield the access that a container needs to a repository; no access without HTTPS."""
        parts = urlsplit(url)
        if parts.scheme != "https" or parts.hostname is None:
            yield Granted()
            return
        files = _authorities(self.root)
        login = _login(url)
        if login is None:
            yield Granted(files=files)
            return
        if not engine.startswith("unix:"):
            raise ProvisionError(
                f"This machine's login to '{parts.hostname}' can't be used by the container engine"
                f" at {engine}: it would be bound from the files of the engine's machine.",
                resolution="Build on the engine's machine, or copy the package store's folder"
                " 'commits' from a machine that has fetched the repository.",
            )
        if not can_hold(*login):
            raise UsageError(
                f"git can't log in to '{parts.hostname}': a blank, a quote or a backslash can't be"
                " in the user or password.",
                resolution="Make another password or token for the repository, and put that into"
                " ~/.netrc.",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with netrc_home(parts.hostname, login, self.folder) as home:
            yield Granted({_HOME: str(home)}, {"HOME": _HOME}, files)


def can_hold(user: str, password: str) -> bool:
    """Return whether ``netrc_home`` can write a login."""
    return bool(user) and not _NO_WORD.search(user + password)


@contextmanager
def netrc_home(host: str, login: tuple[str, str], folder: Path) -> Iterator[Path]:
    """Make a home with a ``.netrc``, which is removed afterwards."""
    home = Path(tempfile.mkdtemp(dir=folder, prefix="home-"))
    try:
        handle = os.open(home / ".netrc", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(f"machine {host} login {login[0]} password {login[1]}\n")
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _authorities(root: Path) -> dict[str, bytes]:
    named = os.environ.get("REQUESTS_CA_BUNDLE")
    path = Path(named) if named else authorities_of(root)
    if path is None:
        return {}
    if not path.is_file():
        raise UsageError(
            f"REQUESTS_CA_BUNDLE names '{path}', which is no file.",
            resolution="Name a file of certificates in PEM format, or take the variable out of the"
            " environment: then this machine's own authorities count.",
        )
    return {_AUTHORITIES: path.read_bytes().rstrip(b"\n") + b"\n"}


def _login(url: str) -> tuple[str, str] | None:
    """Return user and password that ``NETRC`` or ``~/.netrc`` has for a repository's host."""
    from requests.utils import get_netrc_auth  # noqa: PLC0415 - only a fetch of commits needs it

    found = get_netrc_auth(url)
    return (found[0], found[1]) if found else None


@contextmanager
def proxies_used(network: NetworkConfig) -> Iterator[None]:
    """Let this process, its programs and its containers use the proxy that provision.toml names.

    It replaces all proxies of the environment: a shell then does what the units do. requests, the
    Docker SDK, skopeo, dnf, zypper and wget all take the proxy from there.
    """
    variables = network.variables()
    names = (*_PROXIES, "all_proxy", "ALL_PROXY") if variables else ()
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def proxies() -> dict[str, str]:
    """Return the variables of this process's environment that name proxies."""
    return {name: os.environ[name] for name in _PROXIES if name in os.environ}
