"""The disks that guests begin with, in the cache, and snapshots of booted machines.

Going on from a snapshot takes seconds, where a boot takes minutes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kit.cache import cached
from kit.files import remove_tree
from kit.guest.disk import make_disk
from kit.guest.el import ElRecipe, make_el_tree
from kit.guest.guest import SNAPSHOT, Base, Guest
from kit.guest.qemu import machine_id
from kit.guest.recipe import Recipe
from kit.guest.tree import IMAGE_FILE, make_tree
from kit.probe import need_programs
from kit.process import run

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


def base_of(recipe: Recipe) -> Base:
    """The base of a recipe; made where the cache hasn't got it."""
    name = f"vm-{recipe.name}-{recipe.digest()}"
    return Base(cached(name, lambda draft: _make(recipe, draft)))


def _make(recipe: Recipe, draft: Path) -> None:
    draft.mkdir()
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "guest", "-f", draft / "key"])
    tree = draft / "tree"
    try:
        public_key = (draft / "key.pub").read_text()
        if isinstance(recipe, ElRecipe):
            make_el_tree(recipe, tree, public_key)
        else:
            make_tree(recipe, tree, public_key)
        make_disk(recipe, tree, draft / "disk.qcow2")
    finally:
        remove_tree(tree)


def guest_of(recipe: Recipe) -> Guest:
    """A guest of a recipe, booted, and with an image in its engines if it has any."""
    need_programs("qemu-img", "mke2fs", "ssh", "ssh-keygen", "debootstrap")
    base = base_of(recipe)
    name = f"{base.folder.name}-{SNAPSHOT}-{machine_id()}"
    warm_up = _WARM_UP if "podman" in recipe.packages else "sync"
    return Guest(base, cached(name, lambda draft: _boot(base, warm_up, draft)))


def _boot(base: Base, warm_up: str, draft: Path) -> None:
    with Guest(base) as guest:
        guest(warm_up)
        guest.machine.save(SNAPSHOT)
        guest.kill()
        shutil.move(guest.disk, draft)
