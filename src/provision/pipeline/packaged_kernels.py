"""Which kernels a distro packages headers of, and which of them a driver builds on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from provision import distros
from provision.build.base_image import find_base, named_base
from provision.build.offer_choice import chosen_flavour
from provision.build.package_store import PackageStore
from provision.build.solve import list_kernels as solver_kernels
from provision.catalogue import Recipe
from provision.distros.debian.distro_archive import packaged_kernels, uses_archive
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError
from provision.pin import DistroPin
from provision.pipeline.driver_request import DriverRequest, choose_distro
from provision.pipeline.solving import (
    PackageNeeds,
    base_request,
    configured_repositories,
    open_driver_index,
    open_market,
    solve_request,
)
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent
from provision.sources import Market, offers


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A packaged kernel: its release, and the newest driver version known to build on it."""

    release: str
    version: str | None

    @property
    def builds(self) -> bool:
        """Whether the driver is known to build on it."""
        return self.version is not None


def list_kernels(
    settings: Settings,
    engine: Callable[[], Engine],
    wanted: DriverRequest,
    *,
    progress: Progress = silent,
) -> tuple[DistroPin, list[KernelRow]]:
    """Return the kernels that a distro packages headers of, the newest first.

    Of what is wanted, the driver, its flavour and the distro count.

    Raises:
        NotFoundError: The driver, flavour or distro is unknown.
        ProvisionError: The archive failed.
    """
    recipe = settings.catalogue.entry(wanted.driver).recipe
    distro = choose_distro(settings, wanted.distro)
    flavour = chosen_flavour(recipe, wanted.flavour)
    market = Market(f"{distro.id} {distro.version}", distros.source_names(distro))
    with open_market(settings, wanted.driver, distro, market, progress=progress) as opened:
        versions = [offer.version for offer in offers(recipe, flavour, opened)]
        if opened.index is None:
            kernels = _listed_kernels(settings, engine, distro, progress)
        else:
            kernels = tuple(packaged_kernels(opened.index))
    return distro, [_row(recipe, kernel, versions) for kernel in kernels]


def distro_kernels(
    settings: Settings,
    engine: Callable[[], Engine],
    distro: DistroPin,
    *,
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Return the kernels that a distro packages headers of, the newest first, for any driver.

    Raises:
        NotFoundError: They can't be listed.
        ProvisionError: The archive or the engine failed.
    """
    if not uses_archive(distro):
        return _listed_kernels(settings, engine, distro, progress)
    index = open_driver_index(settings, None, distro, progress=progress)
    try:
        return tuple(packaged_kernels(index))
    finally:
        index.close()


def _row(recipe: Recipe, kernel: str, versions: Iterable[str]) -> KernelRow:
    fitting = (v for v in versions if recipe.builds_on(version=v, kernel_release=kernel))
    return KernelRow(kernel, next(fitting, None))


def _listed_kernels(
    settings: Settings, engine: Callable[[], Engine], distro: DistroPin, progress: Progress
) -> tuple[str, ...]:
    """Ask the distro's own package manager for the kernels that it has headers of.

    Raises:
        NotFoundError: The distro has none.
    """
    data = distros.distro_named(distro.id)
    if data is not None and data.family == "tree":
        raise NotFoundError(
            f"{data.name} has no packages of kernels that could be listed.",
            resolution="Any kernel whose tree is there can be built for: --kernel names it"
            " (docs/how-to/kernel-trees.md).",
        )
    asked = base_request(settings, distro)
    base = named_base(asked) or find_base(engine(), asked, progress=progress)
    needs = PackageNeeds(repositories=configured_repositories(settings, distro))
    asked_for = solve_request(settings, distro, base, needs)
    return solver_kernels(engine, asked_for, PackageStore(settings.state), progress=progress)
