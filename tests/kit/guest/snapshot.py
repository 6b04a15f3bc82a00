"""Snapshots of booted machines: going on from one takes seconds, where a boot takes minutes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kit.cache import cached
from kit.guest.base import base_of
from kit.guest.guest import SNAPSHOT, Guest
from kit.guest.qemu import machine_id
from kit.guest.tree import IMAGE_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from kit.guest.base import Base
    from kit.guest.recipe import Recipe

__all__ = ["IMAGE", "guest_of"]

# The name of the container image in the guest's engines.
IMAGE = "localhost/small:1"

# docker and podman have the image, and dockerd is up, when a guest goes on from the snapshot.
_WARM_UP = f"""
docker import {IMAGE_FILE} {IMAGE}
podman import -q {IMAGE_FILE} {IMAGE}
docker run --rm {IMAGE} true
podman run --rm --network none {IMAGE} true
sync
"""


def guest_of(recipe: Recipe) -> Guest:
    """A guest of a recipe, booted, and with an image in its engines if it has any."""
    base = base_of(recipe)
    name = f"{base.folder.name}-{SNAPSHOT}-{machine_id(base.efi)}"
    warm_up = _WARM_UP if "podman" in recipe.packages else "sync"
    return Guest(base, cached(name, lambda draft: _boot(base, warm_up, draft)))


def _boot(base: Base, warm_up: str, draft: Path) -> None:
    with Guest(base) as guest:
        guest(warm_up)
        guest.machine.save(SNAPSHOT)
        guest.kill()
        shutil.move(guest.disk, draft)
