"""Debian trees by debootstrap, from the mirror that this machine's own apt is set up with."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kit.process import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["apt_sources", "debootstrap", "mirror", "security_mirror"]

# One line an index; Label is empty until apt has been updated once.
_FIELDS = "$(LABEL)|$(RELEASE)|$(REPO_URI)"


def mirror() -> str:
    """The URL of the machine's Debian archive.

    Raises:
        RuntimeError: apt knows no Debian archive.
    """
    for label, release, uri in _indexes():
        if label == "Debian" or (not label and "-" not in release):
            return uri.rstrip("/")
    raise RuntimeError("apt has no source of the Debian archive; see `apt-get indextargets`")


def security_mirror() -> str:
    """The URL of the machine's archive of security updates; beside the other where apt has none."""
    for label, release, uri in _indexes():
        if label == "Debian-Security" or (not label and release.endswith("-security")):
            return uri.rstrip("/")
    return f"{mirror()}-security"


def apt_sources(suite: str, components: str = "main") -> str:
    """The sources.list of a suite with its updates: a base image names only the release."""
    places = [(mirror(), suite), (mirror(), f"{suite}-updates")]
    places.append((security_mirror(), f"{suite}-security"))
    return "".join(f"deb {uri} {name} {components}\n" for uri, name in places)


def _indexes() -> list[tuple[str, str, str]]:
    listed = run(["apt-get", "indextargets", "--format", _FIELDS, "Created-By: Packages"]).stdout
    rows = [line.split("|") for line in listed.splitlines()]
    return [(label, release, uri) for label, release, uri in rows]


def debootstrap(suite: str, folder: Path, *, include: Sequence[str] = ()) -> None:
    """Fill `folder` with a minimal Debian `suite` and the packages `include`. Needs root."""
    with_packages = [f"--include={','.join(include)}"] if include else []
    try:
        run(["debootstrap", "--variant=minbase", *with_packages, suite, folder, mirror()])
    except AssertionError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder / "var/cache/apt", ignore_errors=True)
