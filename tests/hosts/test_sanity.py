"""The collection as `ansible-test sanity` wants it, with the few exceptions that say why."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import ansible_test

from kit.cache import cached
from kit.playbooks import COLLECTION
from kit.process import run

if TYPE_CHECKING:
    from kit.process import Completed

_PROGRAMS = Path(sys.executable).parent
_CORE = version("ansible-core")
_SERIES = ".".join(_CORE.split(".")[:2])
_PYTHON = ".".join(map(str, sys.version_info[:2]))
_IGNORES = "tests/sanity"
# Each test installs what it needs into an environment of its own.
_WITHIN_S = 1500
# ansible-test fetches this script from a site of its own; pip's wheel from the package index does
# the same.
_BOOTSTRAP = """\
import os, sys
sys.path.insert(0, os.path.expanduser("~/pip/{wheel}"))
from pip._internal.cli.main import main
given = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(main(["install", "--find-links", os.path.expanduser("~/pip"), *given]))
"""


def _home(draft: Path) -> None:
    """Make a home folder in which ansible-test finds pip."""
    requirements = Path(next(iter(ansible_test.__path__))) / "_internal/python_requirements.py"
    found = re.search(r"pip='([0-9.]+)'", requirements.read_text())
    assert found is not None, "ansible-test no longer says which pip it wants"
    wanted = found.group(1)
    words = ["-m", "pip", "download", "--quiet", "--no-deps", f"pip=={wanted}"]
    run([sys.executable, *words, "--dest", draft / "pip"])
    (wheel,) = (draft / "pip").glob("pip-*.whl")
    script = draft / f".ansible/test/cache/get_pip_{wanted.replace('.', '_')}.py"
    script.parent.mkdir(parents=True)
    script.write_text(_BOOTSTRAP.format(wheel=wheel.name))


def _sanity(folder: Path, *words: str) -> Completed:
    """Run it on a copy below the folders that it wants, which is in no git repository."""
    copy = folder / "ansible_collections/oci_decorator/drivers"
    shutil.copytree(COLLECTION, copy, ignore=shutil.ignore_patterns("__pycache__", ".ansible"))
    (given,) = (copy / _IGNORES).glob("ignore-*.txt")
    if not given.name.endswith(f"-{_SERIES}.txt"):
        given.rename(given.with_name(f"ignore-{_SERIES}.txt"))
    home = cached(f"ansible-test-{_CORE}", _home)
    environment = {"HOME": str(home), "PATH": f"{_PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin"}
    argv = [str(_PROGRAMS / "ansible-test"), "sanity", "--color=no", f"--python={_PYTHON}", *words]
    return run(argv, cwd=copy, env=environment, check=False, timeout_s=_WITHIN_S)


def test_ansible_test_has_nothing_to_say(tmp_path: Path) -> None:
    done = _sanity(tmp_path)
    assert done.returncode == 0, done.output


def test_every_exception_says_why() -> None:
    (given,) = (COLLECTION / _IGNORES).glob("ignore-*.txt")
    for line in given.read_text().splitlines():
        assert re.fullmatch(r"\S+ \S+ # .{20,}", line), line
