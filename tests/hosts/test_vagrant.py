"""The Vagrantfile is one that Vagrant takes, with each of its variables; nothing is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from kit.cache import REPOSITORY
from kit.playbooks import COLLECTION
from kit.probe import need_vagrant
from kit.process import Completed, run

# Each with the variables of the distro that the role would take.
_HOSTS = {"debian12": "Debian", "debian13": "Debian", "ubuntu2404": "Debian", "alma9": "RedHat"}
# What the Vagrantfile has Ansible do for each host, without Vagrant.
_ASK = """
class Any
  def initialize(name = nil) = @name = name
  def define(name, **_) = yield(Any.new(name))
  def provider(*) = nil
  def provision(*) = yield(PLAYS[@name] = Struct.new(:extra_vars, :raw_arguments, :other).new)
  def method_missing(*) = self
end
PLAYS = {}
class Struct
  def method_missing(*) = nil
end
module Vagrant
  def self.configure(_) = yield(Any.new)
end
load ARGV[0]
require "json"
puts JSON.generate(PLAYS.transform_values { |play| [play.extra_vars, play.raw_arguments || []] })
"""


def _plays(**environment: str) -> dict[str, tuple[dict[str, object], list[str]]]:
    words: list[str | Path] = ["ruby", "-e", _ASK, REPOSITORY / "Vagrantfile"]
    found: dict[str, tuple[dict[str, object], list[str]]] = json.loads(
        run(words, env=environment).stdout
    )
    return found


@pytest.fixture(autouse=True)
def _able() -> None:
    need_vagrant("ruby")


def _vagrant(folder: Path, *words: str, **environment: str) -> Completed:
    ours = {
        "VAGRANT_CWD": str(REPOSITORY),
        "VAGRANT_HOME": str(folder / "home"),
        "VAGRANT_DOTFILE_PATH": str(folder / "dot"),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
        # The checks are the same for each; libvirt's plugin is Debian's.
        "VAGRANT_DEFAULT_PROVIDER": "libvirt",
    }
    return run(["vagrant", *words], env={**ours, **environment}, check=False)


def _hosts(status: Completed) -> set[str]:
    """The hosts that a status lists, by `--machine-readable`'s columns: time, host, type, data."""
    rows = [line.split(",") for line in status.stdout.splitlines()]
    return {row[1] for row in rows if row[2] == "state"}


def test_ruby_has_nothing_to_say() -> None:
    done = run(["ruby", "-wc", REPOSITORY / "Vagrantfile"])
    assert done.output == "Syntax OK\n"


def test_vagrant_takes_it(tmp_path: Path) -> None:
    done = _vagrant(tmp_path, "validate")
    assert done.returncode == 0, done.output
    assert "validated successfully" in done.stdout
    assert done.stderr == ""


def test_there_is_a_host_of_each_distro(tmp_path: Path) -> None:
    assert _hosts(_vagrant(tmp_path, "status", "--machine-readable")) == set(_HOSTS)


@pytest.mark.parametrize("host", _HOSTS)
def test_the_distro_of_each_host_has_the_engine_that_it_asks_for(host: str) -> None:
    variables, _words = _plays()[host]
    distro = COLLECTION / f"roles/provision_host/vars/{_HOSTS[host]}.yml"
    packages = yaml.safe_load(distro.read_text())["__provision_host_engine_packages"]
    assert packages[str(variables["provision_host_engine"])]


# What Ansible's own reader takes, and others do not.
_VARIABLES = """\
base: &base {version: "1.2"}
provision_driver_config: {drivers: {hello: *base}}
since: 2026-11-28
provision_host_engine: podman
"""


def test_a_file_of_variables_is_read_by_ansible_and_goes_first(tmp_path: Path) -> None:
    file = tmp_path / "variables.yml"
    file.write_text(_VARIABLES)
    defaults, words = _plays(PROVISION_VAGRANT_VARIABLES=str(file))["debian12"]
    asked = "msg={{ provision_driver_config.drivers.hello.version }}-{{ provision_host_engine }}"
    ansible = Path(sys.executable).with_name("ansible")
    shown = ["localhost", "-m", "ansible.builtin.debug", "-a", asked]
    done = run([ansible, *shown, "-e", json.dumps(defaults), *words])
    assert '"1.2-podman"' in done.stdout


def test_with_a_box_of_ones_own_there_is_only_that_host(tmp_path: Path) -> None:
    box = tmp_path / "mine.box"
    box.touch()
    variables = tmp_path / "variables.yml"
    variables.write_text("provision_host_engine: podman\n")
    own = {
        "PROVISION_VAGRANT_BOX": str(box),
        "PROVISION_VAGRANT_DRIVER": "qemu",
        "PROVISION_VAGRANT_VARIABLES": str(variables),
    }
    done = _vagrant(tmp_path, "validate", **own)
    assert done.returncode == 0, done.output
    assert _hosts(_vagrant(tmp_path, "status", "--machine-readable", **own)) == {"own"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PROVISION_VAGRANT_BOX", "/nowhere/mine.box"),
        ("PROVISION_VAGRANT_CPUS", "two"),
        ("PROVISION_VAGRANT_MEMORY", "2G"),
        ("PROVISION_VAGRANT_VARIABLES", "/nowhere/variables.yml"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, variable: str, value: str) -> None:
    done = _vagrant(tmp_path, "validate", **{variable: value})
    assert done.returncode != 0
    assert variable in done.stderr
    # A message, and not where in Ruby it came from.
    assert len(done.stderr.splitlines()) == 1, done.stderr
