"""Failures in a compatibility matrix that concern the drivers and kernels of one host."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from provision.build.workspace import default_cache
from provision.catalogue import Catalogue, catalogue_folders
from provision.catalogue.upstream import CHANNELS
from provision.config import Config
from provision.distros import find_distro
from provision.errors import ProvisionError
from provision.fleet.matrix.results import Result, Results, matrix_folder
from provision.host.facts import read_facts
from provision.host.kernels import Kernels, kernel_order, kernel_series
from provision.sources.candidates import newest_first
from provision.sources.upstream import kept, known_branches, today

# amd64 of 6.1.0-47-amd64, cloud-amd64 of 6.1.0-47-cloud-amd64, nothing of 5.14.0-503.el9.x86_64.
_FLAVOUR = re.compile(r"(?:-(?P<flavour>[a-z][a-z0-9_-]*))?$")

# Distros whose releases stay with a series of kernels; only backports have newer ones.
_STAYING = frozenset({"debian"})


@dataclass(frozen=True, slots=True)
class Subject:
    """A driver on a host, described as results of a matrix are."""

    driver: str
    # The distro that the host's kernels come from, such as ``debian:12``.
    distro: str
    # The flavour that the host uses; None: any.
    flavour: str | None = None
    # The configured version or branch; None, ``latest`` or a kind: any.
    version: str | None = None
    # The branches of ``version``, if it is a kind of branch (``lts``).
    branches: tuple[str, ...] | None = None

    def is_about(self, result: Result) -> bool:
        """Return whether a result concerns this driver."""
        branches = self.branches
        if branches is None and self.version not in {None, "latest", *CHANNELS}:
            branches = (str(self.version),)
        of_version = branches is None or any(
            f"{result.version}.".startswith(f"{branch}.") for branch in branches
        )
        return (
            (result.driver, result.distro) == (self.driver, self.distro)
            and self.flavour in {None, result.flavour}
            and of_version
        )


def failures_for(
    subject: Subject, kernels: Collection[str], results: Iterable[Result]
) -> list[Result]:
    """Return the failures for kernels of a host: for each, the newest version if that failed."""
    by_kernel: dict[str, dict[str, Result]] = {}
    for result in results:
        if result.kernel in kernels and subject.is_about(result):
            by_kernel.setdefault(result.kernel, {})[result.version] = result
    found = []
    for release in sorted(by_kernel, key=kernel_order):
        of_kernel = by_kernel[release]
        # The host would not get a version that does not support the kernel.
        tried = [v for v in newest_first(of_kernel) if of_kernel[v].state != "not-supported"]
        if tried and of_kernel[tried[0]].state == "failed":
            found.append(of_kernel[tried[0]])
    return found


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
    subject = _subject(root, config, driver) if known else None
    if subject is None:
        return []
    mine = [result for result in known if subject.is_about(result)]
    ahead = {*kernels.relevant, *later_kernels(kernels.bootable, mine)} - {*ready}
    return failures_for(subject, ahead, mine)


def _subject(root: Path, config: Config, driver: str) -> Subject | None:
    """Return a driver as the host's settings choose it; None if the distro is unknown."""
    facts = read_facts(root)
    named = config.kernel_distro or f"{facts.distro.id}:{facts.distro.version}"
    asked = config.drivers.get(driver)
    version = asked.version if asked else None
    try:
        distro = find_distro(named)
        folders = catalogue_folders(config.catalogue, root=root)
        recipe = Catalogue(folders).entry(driver).recipe
    except ProvisionError:
        return None
    flavour = (asked.flavour if asked else None) or recipe.default_flavour
    branches = None
    if version is not None and version in CHANNELS:
        # The vendor's last answer: no network is used here.
        said = kept(recipe.upstream, machine=facts.arch, distro=None, folder=default_cache())
        branches = known_branches(recipe.upstream, said).followed(version, today())
    return Subject(driver, f"{distro.id}:{distro.version}", flavour, version, branches)
