"""The collection as a whole: linted, found, read by each ansible-core that it is for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from kit.playbooks import COLLECTION, OLDER_CORES, older_core
from kit.process import Completed, run
from kit.product import Provision

_ANSIBLE = COLLECTION
_PROGRAMS = Path(sys.executable).parent


def _plain(folder: Path) -> dict[str, str]:
    """What a user has who only went into the checkout: its ansible.cfg says where things are."""
    return {
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "PATH": f"{_PROGRAMS}:{os.environ['PATH']}",
    }


def _environment(folder: Path) -> dict[str, str]:
    return _plain(folder) | {"ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "ansible")}


def test_ansible_lint_has_nothing_to_say(tmp_path: Path) -> None:
    words = [str(_PROGRAMS / "ansible-lint"), "-q", "--strict"]
    done = run(words, cwd=_ANSIBLE, env=_environment(tmp_path), check=False)
    assert done.returncode == 0, done.output


def test_yamllint_has_nothing_to_say() -> None:
    done = run([_PROGRAMS / "yamllint", "--strict", "."], cwd=_ANSIBLE, check=False)
    assert done.returncode == 0, done.output


def test_ansible_doc_finds_every_module_from_the_repositorys_root(tmp_path: Path) -> None:
    names = [path.stem for path in sorted((_ANSIBLE / "plugins/modules").glob("*.py"))]
    # What they are about shows in a playbook that names no collection. A leading underscore says
    # that a module is for the roles only, and may change.
    public = {name for name in names if not name.startswith("_provision_")}
    assert public == {
        f"provision_{name}" for name in ("apply", "config", "facts", "runtime", "status")
    }
    words = [f"oci_decorator.drivers.{name}" for name in names]
    done = run([_PROGRAMS / "ansible-doc", "--json", *words], cwd=REPOSITORY, env=_plain(tmp_path))
    assert all(f'"{word}"' in done.stdout for word in words)


def _site(folder: Path, *words: str) -> Completed:
    argv = [str(_PROGRAMS / "ansible-playbook"), *words]
    return run(argv, cwd=REPOSITORY, env=_plain(folder), check=False)


@pytest.mark.parametrize("playbook", ["site.yml", "oci_decorator.drivers.remove"])
def test_playbooks_are_found_from_the_repositorys_root(tmp_path: Path, playbook: str) -> None:
    inventory = REPOSITORY / "ansible/inventory/hosts.yml"
    done = _site(tmp_path, "-i", str(inventory), playbook, "--list-hosts")
    assert done.returncode == 0, done.output
    assert "gpu1.example" in done.stdout


@pytest.mark.parametrize("playbook", ["site.yml", "oci_decorator.drivers.remove"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "No host of the inventory matches 'all'"),
        (("-i", "/nowhere/inventory"), "No host of the inventory matches 'all'"),
        (("-i", "a,", "-e", "provision_hosts=gpu"), "No host of the inventory matches 'gpu'"),
        (("-i", "a,b,", "-l", "a", "-e", "provision_hosts=b"), "'--limit a' leaves no host of 'b'"),
        (("-i", "a,", "-l", "b"), "no hosts to target"),
    ],
)
def test_no_host_at_all_is_a_failure(
    tmp_path: Path, playbook: str, words: tuple[str, ...], said: str
) -> None:
    done = _site(tmp_path, playbook, *words)
    assert done.returncode != 0
    assert said in done.output


_IMPORTED = """\
- import_playbook: oci_decorator.drivers.site
  tags: [drivers]
"""


def test_tags_that_no_task_has_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(_IMPORTED)
    words = ("-i", "a,", "-c", "local", "-e", "provision_driver_state=maybe")
    for playbook in ("site.yml", "oci_decorator.drivers.remove"):
        done = _site(tmp_path, *words, playbook, "--tags", "drivers")
        assert done.returncode != 0
        assert "No task has the tags 'drivers'" in done.output
    # Imported with tags, its tasks have them: one of them says what is wrong.
    done = _site(tmp_path, *words, str(tmp_path / "mine.yml"), "--tags", "drivers")
    assert "No task has the tags" not in done.output
    assert "provision_driver_state" in done.output


def test_facts_have_the_pci_devices_that_the_command_has(tmp_path: Path) -> None:
    words = ["localhost", "-c", "local", "-m", "oci_decorator.drivers.provision_facts"]
    said = run([_PROGRAMS / "ansible", *words], env=_environment(tmp_path)).stdout
    found = json.loads(said.partition("=>")[2])["ansible_facts"]["provision"]["pci"]
    known = Provision().json("facts")["pci"]
    assert found
    assert found == [{key: one[key] for key in found[0]} for one in known]


@pytest.mark.nightly
@pytest.mark.parametrize("version", OLDER_CORES)
def test_an_older_ansible_core_reads_it_and_runs_its_modules(version: str, tmp_path: Path) -> None:
    ansible = [str(older_core(version) / "bin/python"), "-m", "ansible"]
    environment = _environment(tmp_path)
    for playbook in ("site.yml", "remove.yml"):
        path = str(_ANSIBLE / "playbooks" / playbook)
        run([*ansible, "playbook", "-i", "localhost,", "--syntax-check", path], env=environment)
        # The same error, from another version's template engine.
        done = run([*ansible, "playbook", "-i", "/nowhere", path], env=environment, check=False)
        assert done.returncode != 0
        assert "No host of the inventory matches 'all'" in done.output
    module = ["adhoc", "localhost", "-c", "local", "-m", "oci_decorator.drivers.provision_facts"]
    assert '"engines"' in run([*ansible, *module], env=environment).stdout
