"""Real guests in QEMU, with or without KVM: Debian, and a stand-in of EL.

`docs/decisions/10-tests-and-releases.md` says why so.
"""

from kit.guest.base import IMAGE, guest_of
from kit.guest.el import EL_10
from kit.guest.guest import Guest
from kit.guest.recipe import DEBIAN_12, DEBIAN_13, Recipe

__all__ = [
    "DEBIAN_12",
    "DEBIAN_13",
    "EL_10",
    "IMAGE",
    "Guest",
    "Recipe",
    "guest_of",
]
