"""NVIDIA's driver kept by the agent where its source doesn't know the next kernel.

Without our patch 535.261.03 doesn't compile for it. The tests are steps of one scenario, in their
order. test_new_driver.py and tests/vm/test_kernel_upgrade.py show the same with a driver that takes
seconds.
"""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from kit.agent_host import AgentHost
from kit.cache import REPOSITORY
from kit.hosts import NEW_KERNEL, OLD_KERNEL
from kit.product import Provision, driver_modules

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_DRIVER = "nvidia"
_MODULES = 5
_FAILED = 1


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> AgentHost:
    """A host that runs a kernel which the driver knows, and boots one next that it doesn't."""
    root = tmp_path_factory.mktemp("kept") / "host"
    return AgentHost.make(root, running=OLD_KERNEL, others=[NEW_KERNEL])


def _take_patches_away(host: AgentHost) -> None:
    """Give the host a catalogue of its own, whose nvidia folder has no patches."""
    folder = host.root / "srv/drivers" / _DRIVER
    shutil.copytree(REPOSITORY / "driver_images" / _DRIVER, folder)
    shutil.rmtree(folder / "patches")
    recipe = folder / "driver.toml"
    tables = re.split(r"(?m)^(?=\[)", recipe.read_text())
    recipe.write_text("".join(table for table in tables if not table.startswith("[[patches]]")))
    config = host.root / "etc/provision/provision.toml"
    config.write_text(f'catalogue = ["/srv/drivers"]\n{config.read_text()}')


def _apply(provision: Provision, host: AgentHost, *, code: int) -> dict[str, Any]:
    return provision.json("apply", "--root", host.root, status=code)


def _modules(host: AgentHost, release: str) -> int:
    entry = host.store(_DRIVER) / host.link(_DRIVER, release)
    return len(driver_modules(entry / "lib/modules" / release))


def test_a_next_kernel_that_it_does_not_build_for_is_said_with_the_compilers_words(
    provision: Provision, kept: AgentHost
) -> None:
    kept.configure(f'[drivers.{_DRIVER}]\nversion = "latest"\n')
    _take_patches_away(kept)
    status = _apply(provision, kept, code=_FAILED)["status"]
    assert (status["state"], status["is_ready"]) == ("next-kernel-not-ready", True)
    failure = AgentHost.slot(status, _DRIVER, NEW_KERNEL)["failure"]
    report = f"{failure['message']}\n{failure['details']}"
    assert re.search(r"nvidia/nv-pci\.c:223\b.*pci_resize_resource", report, re.DOTALL)
    assert NEW_KERNEL in report
    assert "patch" in failure["resolution"]


def test_what_runs_is_as_it_was(provision: Provision, kept: AgentHost) -> None:
    assert kept.current(_DRIVER) == kept.link(_DRIVER, OLD_KERNEL)
    assert _modules(kept, OLD_KERNEL) == _MODULES
    provision("verify", kept.store(_DRIVER) / "current")
    assert kept.leftovers() == []
    checked = provision("status", "--root", kept.root, "--check", check=False)
    assert checked.returncode == _FAILED


def test_it_is_not_compiled_again_for_nothing(provision: Provision, kept: AgentHost) -> None:
    """Each run says so, none spends minutes on what failed a moment ago."""
    assert _apply(provision, kept, code=_FAILED)["actions"] == []


def test_with_the_patch_it_heals(provision: Provision, kept: AgentHost) -> None:
    kept.configure(f'[drivers.{_DRIVER}]\nversion = "latest"\n')
    assert _apply(provision, kept, code=0)["status"]["state"] == "ready"
    assert _modules(kept, NEW_KERNEL) == _MODULES
