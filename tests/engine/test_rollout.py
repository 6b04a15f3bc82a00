"""A small fleet moves to new kernels, from a real registry that is restarted in between."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from kit.probe import need_programs
from kit.registry import RegistryServer
from kit.rollout import KERNELS, Rollout
from provision.fleet.gather import hosts_of_folder
from provision.fleet.report import make_report

if TYPE_CHECKING:
    from pathlib import Path

_HOSTS = 40


def test_five_kernels_cost_five_builds_and_no_host_compiles(tmp_path: Path) -> None:
    need_programs("docker-registry")
    (tmp_path / "registry").mkdir()
    with closing(RegistryServer(tmp_path / "registry")) as registry:
        figures = Rollout(tmp_path, registry, hosts=_HOSTS).run()
    assert figures.failed == []
    assert (figures.builds, figures.compiled, figures.restarts) == (len(KERNELS), 0, 2)
    assert figures.pulled == _HOSTS
    # Hosts found no registry, waited, and asked again.
    assert figures.each[-1] > 0.5
    # The first host of each kernel comes before the build.
    assert figures.waited >= len(KERNELS)
    # A transfer that a restart cuts off is not in the registry's log, or twice: two at a time.
    assert 0.9 <= figures.ratio <= 1.1, figures.table()
    assert figures.idle is not None
    assert figures.idle.requests == 0
    # And the fleet is seen as it is: what hosts wrote lies below each one's root.
    report = make_report(hosts_of_folder(tmp_path), time=int(time.time()), oldest=3600)
    assert report.counts == {"ready": _HOSTS}
    assert {group.kernel: sum(group.counts.values()) for group in report.groups()} == {
        kernel: _HOSTS // len(KERNELS) for kernel in KERNELS
    }
    assert report.exit_code == 0
