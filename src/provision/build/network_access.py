"""What containers are given of this machine's access to networks: proxies, authorities, logins.

A login is in no argument, variable or layer: wget reads ``~/.netrc`` by
itself. A container gets only the entry that it needs. It sees that entry read-only, and only while
it runs.

Source: https://www.gnu.org/software/inetutils/manual/html_node/The-_002enetrc-file.html;
https://docs.docker.com/reference/dockerfile/#predefined-args for the variables of proxies.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.config import NetworkConfig
from provision.errors import UsageError

# Characters that a word of the file can't hold: wget reads quotes, but has no escape for one.
_NO_WORD = re.compile(r"[\s\"\\\x00-\x1f]")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@contextmanager
def netrc_home(host: str, login: tuple[str, str], folder: Path) -> Iterator[Path]:
    """Make a home with a ``.netrc``, which is removed afterwards."""
    user, password = login
    if not user or _NO_WORD.search(user + password):
        raise UsageError(
            f"No program can log in to '{host}' as is asked: the user is empty, or a blank, a quote"
            " or a backslash is in the user or password.",
            resolution="Have another password or token made for it, and give that in its place.",
        )
    home = Path(tempfile.mkdtemp(dir=folder, prefix="home-"))
    try:
        handle = os.open(home / ".netrc", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(f"machine {host} login {user} password {password}\n")
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


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
