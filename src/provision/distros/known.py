"""The data files of the distros, each read once, when it is asked for."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import ValidationError

from provision.distros.distro import AptArchive, Distro, Release
from provision.documents import parse_json
from provision.errors import NotFoundError, did_you_mean
from provision.pin import DistroPin

# What a distro has for itself, although it is like another.
_OWN = frozenset(
    {"id", "name", "like", "hosts", "releases", "proven", "entitlement", "environment"}
)


def known_distros() -> list[str]:
    """Return the releases that drivers can be built for, as ``id:version``."""
    return [
        f"{distro.id}:{release.version}" for distro in all_distros() for release in distro.releases
    ]


def all_distros() -> list[Distro]:
    """Return all distros, in the order of their ids."""
    return [_distro(name) for name in sorted(_files())]


def distro_named(distro_id: str) -> Distro | None:
    """Return a distro by its ID of os-release; None: there are no data of it."""
    return _distro(distro_id) if distro_id in _files() else None


def find_distro(text: str) -> DistroPin:
    """Return the release that a text such as ``rocky:9``, ``rocky:9.4`` or ``rocky:el9`` names.

    Of distros with kernel trees, any version: ``flatcar:3227.2.4``.
    """
    name, _, version = text.partition(":")
    distro = distro_named(name)
    release = distro.release(version) if distro and version else None
    is_exact = release is not None and version in {release.version, release.codename}
    if distro is not None and distro.family == "tree" and not is_exact:
        # Each version has a kernel of its own, and there need be no data of it.
        release = None
        with suppress(ValidationError):
            return DistroPin(id=name, version=version, codename=name)
    if distro is not None and release is not None:
        return distro.pin(release)
    known = known_distros()
    # Another release of a known distro is no misspelling.
    raise NotFoundError(
        f"The distro '{text}' is not supported.",
        resolution=("" if distro else did_you_mean(text, known))
        + f"There are {', '.join(known)}. Where this host's kernel is that of another distro, name"
        ' it with --distro, or as kernel_distro = "ID:VERSION" in /etc/provision/provision.toml;'
        " for any other kernel, name its tree there ([[trees]]).",
    )


def distro_on(host: str, version: str, kernel: str) -> str | None:
    """Return the distro of a kernel on a host that says it is another (``hosts``), or None."""
    base = distro_named(host)
    own = base.release(version) if base else None
    for distro in all_distros():
        if distro.hosts == host and any(re.fullmatch(r.kernels, kernel) for r in distro.headers):
            for release in distro.releases:
                if own is not None and release.codename == own.codename:
                    return f"{distro.id}:{release.version}"
    return None


def release_of(pin: DistroPin) -> tuple[Distro, Release]:
    """Return the data of the release that a Pin names."""
    distro = distro_named(pin.id)
    release = distro.release(pin.version) if distro else None
    if distro is not None and distro.family == "tree" and release is None:
        release = distro.releases[-1].model_copy(update={"version": pin.version})
    if distro is None or release is None:
        raise NotFoundError(
            f"There are no data of the distro '{pin.name}'.",
            resolution=f"There are {', '.join(known_distros())}.",
        )
    return distro, release


def archive_of(pin: DistroPin) -> AptArchive:
    """Return the archive of a release's packages that apt reads."""
    distro, _ = release_of(pin)
    if distro.apt is None:
        raise NotFoundError(
            f"{distro.name} has no archive that apt reads.",
            resolution="Name a distro of Debian's family with --distro.",
        )
    return distro.apt


def uses_archive(pin: DistroPin) -> bool:
    """Return whether a release's packages are in an archive that apt reads."""
    return release_of(pin)[0].apt is not None


def source_names(pin: DistroPin) -> tuple[str, ...]:
    """Return what a recipe's sources may call a distro: its id, ``id:version``, and its family.

    A distro that there are no data of is one whose kernels come as trees.
    """
    distro = distro_named(pin.id)
    return pin.id, pin.name, distro.family if distro else "tree"


@cache
def _files() -> Mapping[str, Traversable]:
    """Return the data files by the ids of their distros."""
    files = resources.files(__package__).iterdir()
    return {one.name.removesuffix(".toml"): one for one in files if one.name.endswith(".toml")}


@cache
def _distro(name: str) -> Distro:
    return parse_json(json.dumps(_data(name)), Distro, name=f"{name}.toml")


def _data(name: str) -> dict[str, Any]:
    """Return a distro's data with those of the distro that it is like."""
    data = tomllib.loads(_files()[name].read_text())
    like = data.get("like")
    if like is None:
        return data
    inherited = {key: value for key, value in _data(like).items() if key not in _OWN}
    names = {**inherited.get("names", {}), **data.get("names", {})}
    return {**inherited, **data, **({"names": names} if names else {})}
