"""The password of a mirror, kept out of the arguments of programs, which every user can read.

debootstrap hands its mirror's address on to wget, and writes it into the image. wget finds name and
password by itself in ``~/.netrc``: https://www.gnu.org/software/inetutils/manual/html_node/The-_002enetrc-file.html
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from provision.errors import UsageError, redact

# What a word of the file can't hold; wget knows quotes, but no way to write one within.
_NO_WORD = re.compile(r"[\s\"\\\x00-\x1f]")


@contextmanager
def logged_in(mirror: str, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Have programs that wget reads for log in to a mirror by themselves.

    Args:
        mirror: Its address; user and password in it are percent-encoded where they have to be.
        folder: Where there is room for a home of these programs, which only root can read.

    Yields:
        The address without user and password, and variables of the programs' environment.

    Raises:
        UsageError: User or password has a character that the file can't hold.
        OSError: The folder can't be written.
    """
    parts = urlsplit(mirror)
    if parts.username is None or parts.hostname is None:
        yield mirror, {}
        return
    user, password = unquote(parts.username), unquote(parts.password or "")
    if _NO_WORD.search(user) or _NO_WORD.search(password) or not user:
        raise UsageError(
            f"debootstrap can't log in to the mirror '{redact(mirror)}': a blank, a quote or a"
            " backslash can't be in its user or password.",
            resolution="Give the mirror another password, or pull a base image instead: docker"
            " pull NAME, and name it with --base.",
        )
    home = Path(tempfile.mkdtemp(dir=folder, prefix="home-"))
    try:
        handle = os.open(home / ".netrc", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(f"machine {parts.hostname} login {user} password {password}\n")
        host = parts.netloc.rpartition("@")[2]
        yield urlunsplit(parts._replace(netloc=host)), {"HOME": str(home)}
    finally:
        shutil.rmtree(home, ignore_errors=True)
