"""The disk that a guest begins with, in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit.cache import cached
from kit.engine import remove_tree
from kit.guest.disk import EFI, make_disk
from kit.guest.el import ElRecipe, make_el_tree
from kit.guest.tree import make_tree
from kit.process import run

if TYPE_CHECKING:
    from kit.guest.recipe import Recipe

__all__ = ["Base", "base_of"]


@dataclass(frozen=True, slots=True)
class Base:
    """What guests of one recipe share."""

    # An entry of the cache.
    folder: Path

    @property
    def disk(self) -> Path:
        """The disk, qcow2."""
        return self.folder / "disk.qcow2"

    @property
    def efi(self) -> Path | None:
        """What an arm64 machine starts from; None: the disk has a boot sector."""
        path = self.folder / EFI
        return path if path.exists() else None

    @property
    def key(self) -> Path:
        """The private key that root's shell opens to."""
        return self.folder / "key"


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
