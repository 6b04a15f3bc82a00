"""A host behind a proxy, with a server that only an authority of the system's store vouches for.

The proxy is tinyproxy. What runs has the environment of a unit, nothing of a shell's, and a store
of its own in a mount namespace.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cache import cache_dir
from kit.debian import mirror
from kit.engine import Engine
from kit.fileserver import Guarded, guard, served
from kit.git_server import commit_files, git_served
from kit.hosts import DISTRO, OLD_KERNEL
from kit.made_up import MADE_UP, made_up_files, write_made_up_in_git
from kit.probe import can_mount, need, need_programs
from kit.process import Completed, Daemon, run
from kit.product import BUILD_NETWORK, Provision
from kit.registry import free_port

_STORE = "/etc/ssl/certs/ca-certificates.crt"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Downloads as every command does once it has read the settings of the host below ROOT.
_DOWNLOAD = """\
import sys
from pathlib import Path
from provision.fetch import get_small
from provision.build.workspace import load_settings
with load_settings(Path(sys.argv[1])).connected():
    print(get_small(sys.argv[2], limit=1000, patient=False).decode())
"""


class _Proxy:
    """A proxy, and the servers that it was asked to connect to."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.log = folder / "tinyproxy.log"
        settings = f'Port {self.port}\nListen 127.0.0.1\nLogFile "{self.log}"\nLogLevel Info\n'
        (folder / "tinyproxy.conf").write_text(f"{settings}Timeout 60\nMaxClients 20\n")
        self.argv: list[str | Path] = ["tinyproxy", "-d", "-c", folder / "tinyproxy.conf"]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self) -> set[str]:
        return set(re.findall(r"CONNECT (\S+) HTTP", self.log.read_text()))

    def is_ready(self) -> bool:
        return self.log.exists() and "Accepting connections" in self.log.read_text()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[_Proxy]:
    need_programs("tinyproxy")
    proxy = _Proxy(tmp_path)
    with Daemon(proxy.argv, log=tmp_path / "tinyproxy.out", ready=proxy.is_ready):
        yield proxy


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    return guard(tmp_path, "builder:unused")


def _as_unit(store: Path | None, *argv: str | Path) -> Completed:
    """Run a program with a unit's environment; its system trusts what is in `store`."""
    mount = f'mount --bind "$0" {_STORE}; ' if store else ""
    words = ["unshare", "--mount", "sh", "-euc", f'{mount}exec "$@"', store or "-"]
    variables = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"XDG_CACHE_HOME={cache_dir()}"]
    return run([*words, "env", "-i", *variables, *argv], check=False)


def _host(folder: Path, settings: str) -> Path:
    (folder / "etc/provision").mkdir(parents=True)
    (folder / "etc/provision/provision.toml").write_text(settings)
    return folder


@pytest.mark.parametrize("behind", [False, True], ids=["directly", "through the proxy"])
def test_a_download_trusts_the_systems_authorities_and_no_packages_list(
    tmp_path: Path, guarded: Guarded, proxy: _Proxy, *, behind: bool
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/file").write_text("content")
    root = _host(tmp_path / "root", f'[network]\nproxy = "{proxy.address}"\n' if behind else "")
    with served(tmp_path / "files", guarded.tls()) as url:
        words = (sys.executable, "-c", _DOWNLOAD, root, f"{url}/file")
        known = _as_unit(guarded.authority, *words)
        unknown = _as_unit(None, *words)
    assert known.stdout == "content\n", known.stderr
    assert "certificate verify failed" in unknown.stderr
    assert proxy.asked() == ({url.removeprefix("https://")} if behind else set())


@pytest.mark.nightly
def test_a_build_of_a_unit_fetches_through_the_proxy_of_provision_toml(
    engine: Engine, provision: Provision, tmp_path: Path, guarded: Guarded, proxy: _Proxy
) -> None:
    """The container that fetches has the proxy and the system's authorities, like the unit."""
    need_programs("git")
    repositories = tmp_path / "repositories"
    repositories.mkdir()
    common = commit_files(repositories, "common", {"limits.h": "#define HELLO_LIMIT 9\n"})
    own = commit_files(repositories, "hello", made_up_files("1.3"), common)
    cache = tmp_path / "cache"
    with git_served(repositories, guarded) as url:
        write_made_up_in_git(tmp_path / "drivers", "1.3", url, own, common)
        archive = f'[distros.debian.archive]\nmirror = "{mirror()}"\nkeyring = "/keyring.gpg"\n'
        root = _host(tmp_path / "root", f'{archive}[network]\nproxy = "{proxy.address}"\n')
        shutil.copy(_KEYRING, root / "keyring.gpg")
        (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
        (root / _STORE.lstrip("/")).parent.mkdir(parents=True)
        shutil.copy(guarded.authority, root / _STORE.lstrip("/"))
        done = _as_unit(
            guarded.authority,
            *("env", f"DOCKER_HOST={engine.host}", f"XDG_CACHE_HOME={cache}"),
            *(provision.program, "build", MADE_UP, "--kernel", OLD_KERNEL, "--distro", DISTRO),
            *("--catalogue", tmp_path / "drivers", "--root", root, *BUILD_NETWORK, "--json"),
        )
    # The server asks for a login, which this host has not: it was reached, and it was trusted.
    assert proxy.asked() >= {url.removeprefix("https://")}, done.output
    assert "asks for a login" in json.loads(done.stdout)["error"]["message"]
