"""Which packaged kernels of Debian 12 the tests build for: two that are pinned, or their nearest.

An archive keeps a kernel for some months. For the day on which it drops a pinned one, the nearest
that it has takes its place, and each session says so.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from functools import cache

from kit.cache import cache_dir
from kit.process import CommandFailedError
from kit.product import DISTRO, Provision

# pci_resize_resource() takes three arguments in the first, and four in the second
# (reference in driver_images/nvidia/driver.toml).
PINNED = ("6.1.0-47-amd64", "6.1.0-56-amd64")
# The archive is asked once a day.
_FRESH_S = 24 * 3600
_RELEASE = re.compile(r"([\d.]+)-(\d+)-([\w-]+)")


def choose(pinned: Sequence[str], packaged: Iterable[str]) -> list[str]:
    """Each pinned kernel, or the nearest packaged one that no other pin takes.

    The nearest has the same upstream version and flavour, and of these the nearest number of the
    ABI: Debian counts it up with each kernel.
    """
    left = set(packaged)
    taken = [release for release in pinned if release in left]
    left -= set(taken)
    chosen = []
    for release in (release for release in pinned if release not in taken):
        chosen.append(_nearest(release, left))
        left.remove(chosen[-1])
    return sorted([*taken, *chosen], key=_abi)


def _nearest(release: str, packaged: Iterable[str]) -> str:
    upstream, _, flavour = _parts(release)
    alike = [
        other
        for other in packaged
        if _RELEASE.fullmatch(other) and _parts(other)[::2] == (upstream, flavour)
    ]
    if not alike:
        raise LookupError(f"{DISTRO} packages no kernel like {release} any more")
    # Of two that are equally near, the newer: it stays longer.
    return min(alike, key=lambda other: (abs(_abi(other) - _abi(release)), -_abi(other)))


def _parts(release: str) -> tuple[str, str, str]:
    found = _RELEASE.fullmatch(release)
    if found is None:
        raise ValueError(f"{release} is no release of a Debian kernel")
    return found[1], found[2], found[3]


def _abi(release: str) -> int:
    return int(_parts(release)[1])


@cache
def kernels() -> tuple[str, str]:
    """The older and the newer kernel; the pinned ones where the archive can't be asked."""
    try:
        old, new = choose(PINNED, _packaged())
    except (OSError, CommandFailedError):
        return PINNED
    return old, new


def replaced() -> str | None:
    """What to say where the pinned kernels are not those that are used; else None."""
    if kernels() == PINNED:
        return None
    return (
        f"the archive has dropped a pinned kernel: {', '.join(kernels())} in place of"
        f" {', '.join(PINNED)} (tests/kit/kernels.py)"
    )


def _packaged() -> list[str]:
    """All kernels that DISTRO packages, by `provision drivers kernels`."""
    known = cache_dir() / "kernels.json"
    if not known.exists() or time.time() - known.stat().st_mtime > _FRESH_S:
        listed = Provision().json("drivers", "kernels", "v4l2loopback", "--distro", DISTRO)
        draft = known.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps([row["release"] for row in listed["kernels"]]))
        draft.rename(known)
    releases: list[str] = json.loads(known.read_text())
    return releases
