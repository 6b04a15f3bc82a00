"""What a host's settings say of a distro: its repositories, and what its solver is asked."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from pathlib import Path

from provision import distros
from provision.build.package_store import closure_key
from provision.build.solve import SolveRequest
from provision.build.workspace import Settings
from provision.distros.debian.suites import suite_addresses
from provision.distros.entitlements import entitlements_of
from provision.distros.kernel_tree import Toolchain
from provision.errors import NotFoundError, UsageError
from provision.files import in_root
from provision.pin import BasePin, DistroPin

_NO_NAME = re.compile(r"[^A-Za-z0-9+._-]")


def solve_request(
    settings: Settings,
    distro: DistroPin,
    base: BasePin,
    *,
    kernel: str = "",
    packages: Iterable[str] = (),
    repositories: tuple[distros.Repository, ...] = (),
    network: str | None = None,
    toolchain: Toolchain | None = None,
) -> SolveRequest:
    """Return the request to a distro's solver, which runs in a container of a base image.

    Args:
        packages: Further packages that a recipe needs, by Debian's names.
    """
    data, release = distros.release_of(distro)
    more = toolchain.packages if toolchain else ()
    return SolveRequest(
        distro=data,
        release=release,
        base=base,
        kernel=kernel,
        architecture=settings.architecture,
        tools=data.build_tools(release, (*packages, *more)),
        repositories=repositories,
        root=settings.root,
        network=network or settings.config.engine.network,
        toolchain=toolchain,
        archive_mirror=settings.config.distro(distro.id).archive.mirror,
    )


def suites_of(settings: Settings, distro: DistroPin) -> tuple[distros.Repository, ...]:
    """Return the suites of a distro's archive, with the components that are always read."""
    if named := settings.config.distro(distro.id).repositories:
        path = in_root(settings.root, "etc/provision/provision.toml")
        raise UsageError(
            f"{path}: distros.{distro.id}.repositories: packages of {distro.id} come from an"
            " archive with suites, and such repositories are of dnf and zypper.",
            resolution=f"Remove 'repositories' of [distros.{distro.id}], and name the archive"
            f' instead: [distros.{distro.id}.archive] mirror = "{named[0].urls[0]}",'
            ' keyring = "/path/of/its/key".',
            details="\n".join(f"repository '{one.id}'" for one in named),
        )
    suites = suite_addresses(
        distro,
        config=settings.config.distro(distro.id).archive,
        root=settings.root,
        key_folder=settings.state / "archive/keys",
    )
    return tuple(suites)


def configured_repositories(
    settings: Settings, distro: DistroPin
) -> tuple[distros.Repository, ...]:
    """Return the repositories that provision.toml names for a release, with their keys."""
    data, release = distros.release_of(distro)
    found = []
    for one in settings.config.distro(distro.id).repositories:
        # 9.4 is a release of 9, as everywhere.
        if one.version is not None and data.release(one.version) != release:
            continue
        keys: dict[str, bytes] = {}
        for name in one.keys:
            path = in_root(settings.root, name)
            if not path.is_file():
                raise NotFoundError(
                    f"There is no key '{path}', which the repository '{one.id}' names.",
                    resolution=f"Put it there, or correct [distros.{distro.id}] repositories in"
                    " /etc/provision/provision.toml.",
                )
            keys[_key_name(path, keys)] = path.read_bytes()
        signed = data.signed_index if one.signed is None else one.signed
        found.append(distros.Repository(one.id, one.urls, keys, is_signed=signed))
    return tuple(found)


def _key_name(path: Path, others: Container[str]) -> str:
    """Return a name for a key that is unique in its repository, and that the container can read.

    Its programs read lists of keys, in which a blank or comma ends a name.
    """
    name = _NO_NAME.sub("_", path.name)
    return f"{closure_key({'key': str(path)})[:12]}-{name}" if name in others else name


def is_entitled(settings: Settings, distro: DistroPin) -> bool:
    """Return whether the host may use further repositories, which only the solver reads."""
    data, _release = distros.release_of(distro)
    return bool(entitlements_of(data, settings.root))
