"""The row about Ansible: site.yml with nothing to do, against the least that a run does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.rows import Group, Row
from bench.timing import Timed, base_environment
from hosts.ssh_hosts import DEBIAN_12, SshHost
from kit.playbooks import SITE, Ansible
from kit.product import make_wheel

if TYPE_CHECKING:
    from bench.scene import Scene

__all__ = ["GROUPS"]

_ROUNDS = 5


def _site(scene: Scene) -> list[Row]:
    """The second run against `ansible -m ping` of the same host.

    The host has no driver: the module of one could not be loaded in a container, and every run
    would try. A host whose drivers work is asked the same, by the same tasks.
    """
    folder = scene.folder / "ansible"
    folder.mkdir()
    with SshHost(DEBIAN_12) as machine:
        variables = {
            "provision_driver_source": str(make_wheel(folder)),
            "provision_driver_cache": str(folder / "bundles"),
        }
        ansible = Ansible(folder, [machine], variables)
        ansible.play(SITE)
        counts = ansible.play(SITE).recap[machine.name]
        env = {**base_environment(), **ansible.environment()}
        programs = [
            Timed("site", ansible.words(SITE), env=env),
            Timed("ping", ansible.ping_words(), env=env),
        ]
        ms = scene.timer.medians_ms(programs, _ROUNDS)
    return [
        Row(
            "site",
            "site.yml, second run / ansible -m ping",
            ms["site"] / ms["ping"],
            None,
            "x",
            f"{ms['site'] / 1e3:.1f} s: {counts['ok']} tasks, {counts['skipped']} skipped,"
            f" {counts['changed']} changed; ping {ms['ping'] / 1e3:.1f} s;"
            f" one host by ssh; median of {_ROUNDS} each, in turns",
        )
    ]


GROUPS = (Group(("site",), _site),)
