"""The collection as a whole: linted, packed, read by each ansible-core that it is for."""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

import pytest

from kit.cache import REPOSITORY, cached
from kit.process import run

_ANSIBLE = REPOSITORY / "ansible"
_PROGRAMS = Path(sys.executable).parent
# The last three that run with Python 3.11; the newest is in .venv.
_OLDER = ("2.17", "2.18")


def _environment(folder: Path) -> dict[str, str]:
    return {
        "ANSIBLE_COLLECTIONS_PATH": str(_ANSIBLE / "collections"),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "PATH": f"{_PROGRAMS}:{os.environ['PATH']}",
    }


def test_ansible_lint_has_nothing_to_say(tmp_path: Path) -> None:
    words = [str(_PROGRAMS / "ansible-lint"), "-q", "--strict"]
    done = run(words, cwd=_ANSIBLE, env=_environment(tmp_path), check=False)
    assert done.returncode == 0, done.output


def test_yamllint_has_nothing_to_say() -> None:
    done = run([_PROGRAMS / "yamllint", "--strict", "."], cwd=_ANSIBLE, check=False)
    assert done.returncode == 0, done.output


def test_every_module_is_documented(tmp_path: Path) -> None:
    names = [path.stem for path in sorted((_ANSIBLE / "plugins/modules").glob("*.py"))]
    words = [f"oci_decorator.drivers.{name}" for name in names]
    done = run([_PROGRAMS / "ansible-doc", "--json", *words], env=_environment(tmp_path))
    assert all(f'"{word}"' in done.stdout for word in words)


def test_a_packed_collection_is_found_where_it_was_installed(tmp_path: Path) -> None:
    galaxy = _PROGRAMS / "ansible-galaxy"
    environment = _environment(tmp_path)
    run([galaxy, "collection", "build", "--output-path", tmp_path, _ANSIBLE], env=environment)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as opened:
        names = opened.getnames()
    assert "roles/provision_driver/meta/argument_specs.yml" in names
    assert not [name for name in names if name.startswith(("collections", "."))]
    run([galaxy, "collection", "install", "--offline", "-p", tmp_path / "there", packed])
    playbook = tmp_path / "play.yml"
    playbook.write_text("- import_playbook: oci_decorator.drivers.site\n")
    environment["ANSIBLE_COLLECTIONS_PATH"] = str(tmp_path / "there")
    words = ["-i", "localhost,", "--syntax-check", str(playbook)]
    run([_PROGRAMS / "ansible-playbook", *words], env=environment)


@pytest.mark.parametrize("version", _OLDER)
def test_an_older_ansible_core_reads_it_and_runs_its_modules(version: str, tmp_path: Path) -> None:
    programs = cached(f"ansible-core-{version}", lambda draft: _install(version, draft)) / "bin"
    # Its scripts name the folder in which they were made.
    ansible = [str(programs / "python"), "-m", "ansible"]
    environment = _environment(tmp_path)
    for playbook in ("site.yml", "remove.yml"):
        words = ["playbook", "-i", "localhost,", "--syntax-check", str(_ANSIBLE / playbook)]
        run([*ansible, *words], env=environment)
    module = ["adhoc", "localhost", "-c", "local", "-m", "oci_decorator.drivers.facts"]
    assert '"engines"' in run([*ansible, *module], env=environment).stdout


def _install(version: str, draft: Path) -> None:
    run([sys.executable, "-m", "venv", draft])
    run([draft / "bin/pip", "install", "--quiet", f"ansible-core=={version}.*"])
