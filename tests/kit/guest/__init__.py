"""Real Debian guests in QEMU, with or without KVM. `docs/decisions/0070-guests.md` says why so."""

from kit.guest.guest import Guest
from kit.guest.recipe import DEBIAN_12, DEBIAN_13, Recipe
from kit.guest.snapshot import IMAGE, guest_of

__all__ = ["DEBIAN_12", "DEBIAN_13", "IMAGE", "Guest", "Recipe", "guest_of"]
