"""A small fleet moves to new kernels, from a real registry that is restarted in between."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kit.registry import RegistryServer
from kit.rollout import KERNELS, Rollout

_HOSTS = 40


@pytest.mark.nightly
def test_five_kernels_cost_five_builds_and_no_host_compiles(tmp_path: Path) -> None:
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
