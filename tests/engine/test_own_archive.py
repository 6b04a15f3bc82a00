"""A mirror that signs with a key of its own and keeps an old state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import requests

from kit.agent_host import AgentHost
from kit.debian import mirror, security_mirror
from kit.fileserver import Answering, serving
from kit.foreign import foreign_program
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.openpgp import key_of
from kit.product import Provision
from provision.errors import WrongContentError
from provision.fetch import verify_detached

_TARGET = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
_INDEX = re.compile(r"/(?P<archive>debian|security)(?P<path>/dists/[^/]+/InRelease)")
_SIGNED = re.compile(
    r"-----BEGIN PGP SIGNED MESSAGE-----\n(?:[^\n]+\n)*\n(?P<payload>.*?\n)"
    r"-----BEGIN PGP SIGNATURE-----",
    re.DOTALL,
)
_CONFIG = """
[engine]
network = "host"

[distros.debian.archive]
mirror = "{url}/debian"
security_mirror = "{url}/security"
"""


class _Handler(Answering):
    """Signs the real archive's indexes again, out of date, and sends for all else to it."""

    archives: ClassVar[dict[str, str]]

    def do_GET(self) -> None:  # noqa: N802 - http.server
        index = _INDEX.fullmatch(self.path)
        if index is None:
            _, archive, rest = self.path.split("/", 2)
            self.answer(302, Location=f"{self.archives[archive]}/{rest}")
            return
        answer = requests.get(self.archives[index["archive"]] + index["path"], timeout=60)
        answer.raise_for_status()
        signed = _SIGNED.match(answer.text)
        assert signed
        old = re.sub(r"^Valid-Until:.*\n", "", signed["payload"], flags=re.MULTILINE)
        old = f"Valid-Until: Sat, 01 Jan 2022 00:00:00 UTC\n{old}"
        self.answer(200, key_of().sign(old).encode())


@pytest.fixture(scope="module")
def archive() -> Iterator[str]:
    """The address of the mirror."""
    _Handler.archives = {"debian": mirror(), "security": security_mirror()}
    with serving(_Handler) as url:
        yield url


@pytest.fixture
def own(tmp_path: Path, archive: str) -> AgentHost:
    """A host whose provision.toml names the mirror."""
    host = AgentHost.make(tmp_path / "host", running=OLD_KERNEL)
    host.write("etc/provision/provision.toml", _CONFIG.format(url=archive))
    (host.root / "etc/site.gpg").write_bytes(key_of().keyring.read_bytes())
    return host


def _configure(host: AgentHost, *lines: str) -> None:
    path = host.root / "etc/provision/provision.toml"
    path.write_text(path.read_text() + "\n".join([*lines, ""]))


def test_a_mirror_that_signs_for_itself_is_believed(provision: Provision, own: AgentHost) -> None:
    # By the archive's index of now, as the mirror's: not by one of an earlier run.
    small_build = provision.build(*_TARGET, "--refresh")
    _configure(own, 'keyring = "/etc/site.gpg"', "snapshot = true")
    done = provision("resolve", *_TARGET, "--root", own.root, "--json", "--refresh")
    pin = json.loads(done.stdout)
    assert "Solving" in done.stderr
    assert pin["digest"] == small_build["digest"], "the packages are the same"
    assert all(url.startswith("http://127.0.0.1") for urls in pin["urls"].values() for url in urls)
    assert not provision.build(*_TARGET, "--root", own.root)["built"]


def test_without_its_key_or_leave_to_be_old_it_is_refused(
    provision: Provision, own: AgentHost
) -> None:
    status, error = provision.failure("resolve", *_TARGET, "--root", own.root)
    assert status == 1
    assert "trusted key" in error["message"]
    _configure(own, 'keyring = "/etc/site.gpg"')
    status, error = provision.failure("resolve", *_TARGET, "--root", own.root)
    assert status == 1
    assert "expired" in error["details"]


def test_sequoia_checks_where_gnupg_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Debian 13, whose apt asks for one of the two, and installs Sequoia's."""
    key, other, text = key_of(), key_of("another"), "Suite: s\n"
    file = tmp_path / "file"
    file.write_text(text)
    signature = key.sign_file(file)
    program = foreign_program("sqv", tmp_path / "bin")
    monkeypatch.setenv("PATH", str(program.parent))
    verify_detached(file, signature, keyring=key.keyring, name="f")
    with pytest.raises(WrongContentError):
        verify_detached(file, signature, keyring=other.keyring, name="f")
    file.write_text("Suite: t\n")
    with pytest.raises(WrongContentError):
        verify_detached(file, signature, keyring=key.keyring, name="f")
