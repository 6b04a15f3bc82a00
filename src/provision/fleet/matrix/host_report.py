"""Failures in a compatibility matrix that concern the drivers and kernels of one host."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from provision.build.request import is_of
from provision.build.workspace import default_cache
from provision.catalogue import Catalogue
from provision.catalogue.cards import AUTO, cards_here, flavour_for
from provision.catalogue.upstream import CHANNELS
from provision.config import Config, catalogue_folders
from provision.distros import find_distro
from provision.errors import ProvisionError
from provision.fleet.matrix.results import Result, Results, matrix_folder
from provision.host.facts import read_facts
from provision.host.kernels import Kernels, kernel_order, kernel_series
from provision.sources.candidates import newest_first
from provision.sources.upstream.queries import kept, known_branches, today

# amd64 of 6.1.0-47-amd64, cloud-amd64 of 6.1.0-47-cloud-amd64, nothing of 5.14.0-503.el9.x86_64.
_FLAVOUR = re.compile(r"(?:-(?P<flavour>[a-z][a-z0-9_-]*))?$")

# Distros whose releases stay with a series of kernels; only backports have newer ones.
_STAYING = frozenset({"debian"})


def failures_for(kernels: Collection[str], results: Iterable[Result]) -> list[Result]:
    """Return the failures for kernels of a host: for each, the newest version if that failed."""
    by_kernel: dict[str, dict[str, Result]] = {}
    for result in results:
        # The host would not get a version that does not support the kernel.
        if result.kernel in kernels and result.state != "not-supported":
            by_kernel.setdefault(result.kernel, {})[result.version] = result
    newest = [
        by_kernel[release][newest_first(by_kernel[release])[0]]
        for release in sorted(by_kernel, key=kernel_order)
    ]
    return [result for result in newest if result.state == "failed"]


def later_kernels(installed: Collection[str], results: Iterable[Result]) -> set[str]:
    """Return the kernels with results that are newer than all kernels of their kind on a host."""
    newest: dict[str, str] = {}
    for release in sorted(installed, key=kernel_order):
        newest[_flavour(release)] = release
    return {
        result.kernel
        for result in results
        if (known := newest.get(_flavour(result.kernel)))
        and kernel_order(result.kernel) > kernel_order(known)
        and (
            result.distro.partition(":")[0] not in _STAYING
            or kernel_series(result.kernel) == kernel_series(known)
        )
    }


def _flavour(release: str) -> str:
    found = _FLAVOUR.search(release)
    return (found and found["flavour"]) or ""


def failures_ahead(
    root: Path, config: Config, kernels: Kernels, driver: str, *, ready: Collection[str] = ()
) -> list[Result]:
    """Return the failures for kernels that a host may run next, from its own matrix.

    These are the kernels that may boot next, and newer kernels that an upgrade may install.

    Args:
        ready: Kernels that have their artifact.
    """
    known, _problems = Results(matrix_folder(root)).load(driver)
    mine = _of_host(known, root, config, driver) if known else []
    ahead = {*kernels.relevant, *later_kernels(kernels.bootable, mine)} - {*ready}
    return failures_for(ahead, mine)


def _of_host(results: Iterable[Result], root: Path, config: Config, driver: str) -> list[Result]:
    """Return the results for the distro, flavour and versions that a host uses of a driver."""
    facts = read_facts(root)
    named = config.kernel_distro or f"{facts.distro.id}:{facts.distro.version}"
    asked = config.drivers.get(driver)
    version = asked.version if asked else None
    try:
        pin = find_distro(named)
        folders = catalogue_folders(config.catalogue, root=root)
        recipe = Catalogue(folders).entry(driver).recipe
    except ProvisionError:
        return []
    flavour = asked.flavour if asked else AUTO
    if flavour == AUTO:
        try:
            flavour = flavour_for(recipe, cards_here(recipe, root))
        except ProvisionError:
            return []
    # Branches or versions; None: any.
    branches: Collection[str] | None = None
    if version is not None and version in CHANNELS:
        # The vendor's last answer: no network is used here.
        said = kept(recipe.upstream, machine=facts.arch, distro=None, folder=default_cache())
        branches = known_branches(recipe.upstream, said).followed(version, today())
    elif version is not None and version != "latest":
        branches = (version,)
    return [
        result
        for result in results
        if (result.distro, result.flavour) == (pin.name, flavour)
        and (branches is None or any(is_of(result.version, branch) for branch in branches))
    ]
