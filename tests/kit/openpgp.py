"""Keys by the real gpg: they sign indexes, packages and files that real programs check."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kit.probe import need_programs
from kit.process import run


@dataclass(frozen=True, slots=True)
class Key:
    """A key in a GnuPG folder of its own."""

    home: Path
    # The public half in OpenPGP's binary form, as apt and gpgv read it.
    keyring: Path
    armoured: Path

    @classmethod
    def make(cls, home: Path, name: str, *more: str) -> Key:
        """Make a key that no machine knows; `more` are further options of gpg."""
        made = cls(home, home / "public.gpg", home / "public.asc")
        user = f"{name} <{name.replace(' ', '-')}@example.org>"
        words = ("--passphrase", "", "--quick-gen-key", user, "ed25519", "sign", "0")
        made.gpg(*more, *words)
        made.gpg("--output", made.keyring, "--export")
        made.gpg("--armor", "--output", made.armoured, "--export")
        return made

    def gpg(self, *words: str | Path, stdin: str = "") -> str:
        return run(["gpg", "--homedir", self.home, "--batch", *words], stdin=stdin).stdout

    def sign(self, text: str, *more: str) -> str:
        """Sign a text in itself; `more` are further options of gpg."""
        return self.gpg(*more, "--armor", "--clearsign", stdin=text)

    def sign_file(self, path: Path, *, armour: bool = False) -> Path:
        """Write the signature of a file beside it, as `path.sig`, or as text in `path.asc`."""
        signature = path.with_name(f"{path.name}.{'asc' if armour else 'sig'}")
        form = ("--armor",) if armour else ()
        self.gpg("--yes", *form, "--output", signature, "--detach-sign", path)
        return signature


@contextmanager
def gnupg_home() -> Iterator[Path]:
    """An empty GnuPG folder; it is removed, and its agent has ended, when this is left."""
    home = new_home()
    try:
        yield home
    finally:
        _end(home)


def new_home() -> Path:
    """An empty GnuPG folder, which goes with this process, and its agent with it."""
    # A socket's path may have 107 bytes: not below the folder of a test.
    home = Path(tempfile.mkdtemp(prefix="provision-gpg-", dir="/tmp"))
    atexit.register(_end, home)
    return home


def _end(home: Path) -> None:
    if home.exists():
        run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
    # The agent removes its sockets at its end, which may come between a listing and a removal.
    shutil.rmtree(home, ignore_errors=True)


@cache
def key_of(name: str = "archive of a test") -> Key:
    """The key of that name, made once in a process."""
    need_programs("gpg", "gpgv", "gpgconf")
    return Key.make(new_home(), name)
