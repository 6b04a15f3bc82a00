"""Our Python in trees that have no other: with nothing beside it, an older glibc, and a newer one.

Nothing of the tree but what is said may be used, so it is entered by chroot(2).
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.bundles import download_words

from kit.bundles import overlaid
from kit.cache import REPOSITORY
from kit.host_python import host_python
from kit.probe import is_root, need, need_programs
from kit.process import run
from kit.released import bare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.process import Completed

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(1)]

_PYTHON = "/opt/provision/python/bin/python3"
# What provision, its packages and Ansible's modules use of it.
_LOADED = """
import bz2, ctypes, hashlib, json, lzma, os, pwd, sqlite3, ssl, sys, venv, zlib
import xml.parsers.expat, xmlrpc.client
hashlib.sha512(b"x"); sqlite3.connect(":memory:").execute("select 1"); ctypes.CDLL(None)
print(json.dumps({
    "executable": sys.executable,
    "prefix": sys.prefix,
    "tls": ssl.OPENSSL_VERSION,
    "glibc": os.confstr("CS_GNU_LIBC_VERSION"),
    "maps": sorted({line.split()[5] for line in open("/proc/self/maps") if "/" in line}),
}))
"""
_CHILD = "import subprocess, sys; print(subprocess.run(sys.argv[1:], check=True))"
_SUITES = {"older glibc": "bullseye", "newer glibc": "trixie"}


@pytest.fixture(scope="module")
def archive() -> Path:
    need(is_root(), "root", "run as root: trees are entered by chroot")
    need_programs("unshare", "debootstrap", "dockerd", "containerd", "docker", "runc")
    return host_python()


@pytest.fixture(scope="module")
def wheels(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the collection would put onto a host with our Python."""
    folder = tmp_path_factory.mktemp("wheels")
    python = {"version": [3, 11, 2], "machine": "x86_64", "libc": ["glibc", "2.36"]}
    words = download_words(REPOSITORY / "constraints.txt", folder, None, python)
    run([sys.executable, "-m", "pip", "--quiet", *words])
    shutil.copy(wheel, folder)
    return folder


@pytest.fixture(
    scope="module",
    params=["nothing", *(pytest.param(name, marks=pytest.mark.nightly) for name in _SUITES)],
)
def tree(
    request: pytest.FixtureRequest, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A tree of a kind, with our Python in it."""
    suite = _SUITES.get(request.param)
    if suite is None:
        folder = tmp_path_factory.mktemp("nothing")
        (folder / "proc").mkdir()
        (folder / "etc").mkdir()
        (folder / "etc/os-release").write_text("ID=nothing\n")
        run(["tar", "-C", folder, "-xzf", archive])
        yield folder
        return
    lower = bare(suite)
    with overlaid(lower, tmp_path_factory.mktemp(suite)) as folder:
        run(["tar", "-C", folder, "-xzf", archive])
        yield folder


def _in(tree: Path, *words: str) -> Completed:
    """Run a program in a tree that has nothing but /proc besides its own files."""
    script = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    outer = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
    return run([*outer, "sh", "-euc", script, tree, *words], env={"LANG": "de_DE.UTF-8"})


def test_it_runs_only_from_its_own_files(tree: Path) -> None:
    found = json.loads(_in(tree, _PYTHON, "-I", "-c", _LOADED).stdout)
    assert found["executable"] == _PYTHON
    assert found["prefix"] == "/opt/provision/python"
    assert found["tls"].startswith("OpenSSL 3")
    assert found["glibc"] == "glibc 2.36"
    foreign = [path for path in found["maps"] if not path.startswith("/opt/provision/python/")]
    # Of the tree it has data of glibc at most.
    assert all(path.startswith(("/usr/lib/locale/", "[")) or "/gconv/" in path for path in foreign)
    assert not [path for path in foreign if ".so" in path]


def test_its_children_have_the_libraries_of_the_tree(tree: Path) -> None:
    program = "/bin/ls" if (tree / "bin/ls").exists() else _PYTHON
    done = _in(tree, _PYTHON, "-I", "-c", _CHILD, program, "--version")
    assert "returncode=0" in done.stdout


def test_provision_runs_in_an_environment_of_it(tree: Path, wheels: Path) -> None:
    shutil.copytree(wheels, tree / "wheels")
    (tree / "tmp").mkdir(exist_ok=True)
    _in(tree, _PYTHON, "-m", "venv", "--without-pip", "/srv/venv")
    (pip,) = wheels.glob("pip-*.whl")
    (ours,) = wheels.glob("provision-*.whl")
    words = ["install", "--quiet", "--no-index", "--no-cache-dir", "--find-links=/wheels"]
    python = "/srv/venv/bin/python"
    _in(tree, python, f"/wheels/{pip.name}/pip", *words, f"/wheels/{ours.name}")
    assert _in(tree, python, "/srv/venv/bin/provision", "--version").stdout.startswith("provision ")
    # A library of a manylinux wheel, and the whole program.
    said = "from pydantic_core import _pydantic_core as library; print(library.__file__)"
    library = _in(tree, python, "-c", said).stdout.strip()
    assert library.startswith("/srv/venv/lib")
    assert library.endswith(".so")
    facts = json.loads(_in(tree, "/srv/venv/bin/provision", "facts", "--json").stdout)
    assert facts["arch"] == "x86_64"


def test_nothing_of_it_is_written_at_run_time(tree: Path) -> None:
    """Its own modules are compiled already, so that it may lie on something read-only."""
    listed = "find {} -newer {}/provision-python.json -type f"
    folder = tree / "opt/provision/python"
    assert run(["sh", "-c", listed.format(folder, folder)]).stdout == ""
