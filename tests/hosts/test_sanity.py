"""The collection as `ansible-test sanity` wants it, with the few exceptions that say why."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from kit.cache import cached
from kit.files import write
from kit.playbooks import COLLECTION, OLDER_CORES, older_core
from kit.process import Completed, run

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(2)]

_PYTHON = ".".join(map(str, sys.version_info[:2]))
_IGNORES = COLLECTION / "tests/sanity"
# Each test installs what it needs into an environment of its own.
_WITHIN_S = 1500
# Which ansible-core it is, and which pip its ansible-test wants.
_FACTS = """\
import ansible, ansible_test, pathlib, re
file = pathlib.Path(next(iter(ansible_test.__path__))) / "_internal/python_requirements.py"
print(ansible.__version__, re.search(r"pip='([0-9.]+)'", file.read_text()).group(1))
"""
_ANSIBLE_TEST = (
    "from ansible_test._util.target.cli.ansible_test_cli_stub import main; raise SystemExit(main())"
)
# ansible-test fetches this script from a site of its own; pip's wheel from the package index does
# the same.
_BOOTSTRAP = """\
import os, sys
sys.path.insert(0, os.path.expanduser("~/pip/{wheel}"))
from pip._internal.cli.main import main
given = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(main(["install", "--find-links", os.path.expanduser("~/pip"), *given]))
"""


def _sanity(python: Path, folder: Path) -> Completed:
    """Run it on a copy below the folders that it wants, which is in no git repository."""
    core, pip = run([python, "-c", _FACTS]).stdout.split()

    def home(draft: Path) -> None:
        """Make a home folder in which ansible-test finds pip."""
        words = ["-m", "pip", "download", "--quiet", "--no-deps", f"pip=={pip}"]
        run([sys.executable, *words, "--dest", draft / "pip"])
        (wheel,) = (draft / "pip").glob("pip-*.whl")
        script = f".ansible/test/cache/get_pip_{pip.replace('.', '_')}.py"
        write(draft / script, _BOOTSTRAP.format(wheel=wheel.name))

    copy = folder / "ansible_collections/oci_decorator/drivers"
    shutil.copytree(COLLECTION, copy, ignore=shutil.ignore_patterns("__pycache__", ".ansible"))
    series = ".".join(core.split(".")[:2])
    if not (copy / f"tests/sanity/ignore-{series}.txt").exists():
        # A newer one than the collection names, of a newer Python.
        shutil.copy(_IGNORES / "ignore-2.19.txt", copy / f"tests/sanity/ignore-{series}.txt")
    environment = {
        "HOME": str(cached(f"ansible-test-{core}", home)),
        "PATH": f"{python.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    words = ["sanity", "--color=no", f"--python={_PYTHON}"]
    argv = [str(python), "-c", _ANSIBLE_TEST, *words]
    return run(argv, cwd=copy, env=environment, check=False, timeout_s=_WITHIN_S)


def test_ansible_test_has_nothing_to_say(tmp_path: Path) -> None:
    done = _sanity(Path(sys.executable), tmp_path)
    assert done.returncode == 0, done.output


@pytest.mark.parametrize("version", OLDER_CORES)
def test_neither_has_that_of_an_older_ansible_core(version: str, tmp_path: Path) -> None:
    done = _sanity(older_core(version) / "bin/python", tmp_path)
    assert done.returncode == 0, done.output


def test_every_exception_says_why() -> None:
    for file in _IGNORES.glob("ignore-*.txt"):
        for line in file.read_text().splitlines():
            assert re.fullmatch(r"\S+ \S+ # .{20,}", line), line
