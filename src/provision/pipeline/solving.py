"""What a host's settings say about how its distro's packages are solved for."""

from __future__ import annotations

from collections.abc import Iterable

from provision import distros
from provision.archive import Suite
from provision.distros.tree import Toolchain
from provision.errors import NotFoundError
from provision.host import read_facts
from provision.image.solve import SolveRequest
from provision.pin import BasePin, DistroPin
from provision.pipeline.settings import Settings
from provision.rootfs import in_root


def solve_request(
    settings: Settings,
    distro: DistroPin,
    base: BasePin,
    *,
    kernel: str,
    packages: Iterable[str] = (),
    repositories: tuple[distros.Repository, ...] = (),
    network: str | None = None,
    toolchain: Toolchain | None = None,
) -> SolveRequest:
    """Return what to ask a distro's solver.

    Args:
        settings: The host.
        distro: The distro.
        base: The base image.
        kernel: The kernel's release; empty: kernels are only listed.
        packages: What a recipe needs besides compiler and headers, by Debian's names.
        repositories: Used instead of the base image's own.
        network: Network of the container; None: what provision.toml says.
        toolchain: What compiles in a kernel tree; None: the headers are packages.
    """
    data, release = distros.release_of(distro)
    more = toolchain.packages if toolchain else ()
    return SolveRequest(
        distro=data,
        release=release,
        base=base,
        kernel=kernel,
        architecture=read_facts(settings.root).arch,
        tools=data.build_tools(release, (*packages, *more)),
        repositories=repositories,
        root=settings.root,
        network=network or settings.config.engine.network,
        toolchain=toolchain,
    )


def archive_repositories(suites: Iterable[Suite]) -> tuple[distros.Repository, ...]:
    """Return the suites of an archive as what a distro's solver takes."""
    return tuple(
        distros.Repository(
            suite.place.suite,
            (suite.place.uri,),
            keys={file.name: file.read_bytes() for file in suite.place.keyrings}
            if suite.place.has_own_keys
            else {},
            components=suite.enabled,
            is_snapshot=suite.place.snapshot,
        )
        for suite in suites
    )


def configured_repositories(
    settings: Settings, distro: DistroPin
) -> tuple[distros.Repository, ...]:
    """Return the repositories that provision.toml names for a release, with their keys.

    Raises:
        NotFoundError: A key that provision.toml names is missing.
    """
    found = []
    for one in settings.config.distro(distro.id).repositories:
        if one.version not in {None, distro.version}:
            continue
        keys = {}
        for name in one.keys:
            path = in_root(settings.root, name)
            if not path.is_file():
                raise NotFoundError(
                    f"There is no key '{path}', which the repository '{one.id}' names.",
                    resolution=f"Put it there, or correct [distros.{distro.id}] repositories in"
                    " /etc/provision/provision.toml.",
                )
            keys[path.name] = path.read_bytes()
        found.append(distros.Repository(one.id, one.urls, keys))
    return tuple(found)


def is_entitled(settings: Settings, distro: DistroPin) -> bool:
    """Return whether the host may use further repositories, which only the solver reads."""
    data, _release = distros.release_of(distro)
    return any(in_root(settings.root, one.host).exists() for one in data.entitlement)
