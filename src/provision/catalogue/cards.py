"""Which versions and flavours of a driver serve the cards of a host, by its recipe's table.

A card that the table does not name is served by every version, as far as anybody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.catalogue.fields import CardGeneration, version_matches
from provision.catalogue.recipe import Recipe
from provision.errors import NotFoundError
from provision.host.facts import PciDevice
from provision.manifest import PciMatch

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
# The flavour that a request without one has: the first that all cards take.
AUTO = "auto"
# Drivers that hold a device for a virtual machine, so that no other driver is meant to have it.
_GIVEN_AWAY = frozenset({"vfio-pci", "pci-stub", "xen-pciback", "pciback"})


@dataclass(frozen=True, slots=True)
class Card:
    """A device of a host that a driver is for."""

    device: PciDevice
    # None: the recipe does not know it.
    generation: CardGeneration | None = None

    @property
    def name(self) -> str:
        """What it is sold as, of which generation it is, its address and ids."""
        kind = self.generation.name if self.generation else None
        sold = self.device.name
        label = f"{sold} ({kind})" if sold and kind else sold or kind
        ids = f"{self.device.address} [{self.device.vendor}:{self.device.device}]"
        return f"{label} {ids}" if label else ids

    @property
    def wanted(self) -> str:
        """Its name, and the versions and flavours that serve it."""
        takes = self.generation.takes if self.generation else "any version, as far as is known"
        return f"{self.name} takes {takes}"

    def takes_version(self, version: str) -> bool:
        """Return whether a version of the driver serves it."""
        return self.generation is None or version_matches(version, self.generation.versions)

    def takes_flavour(self, flavour: str) -> bool:
        """Return whether a flavour of the driver serves it."""
        known = self.generation.flavours if self.generation else ()
        return not known or flavour in known


def cards_of(recipe: Recipe, devices: Iterable[PciDevice]) -> tuple[Card, ...]:
    """Return the devices that a driver is for, except those that virtual machines have."""
    return tuple(
        Card(device, recipe.hardware.generation(device.device))
        for device in devices
        if device.driver not in _GIVEN_AWAY
        and recipe.hardware.matches(device.vendor, device.device, device.device_class)
    )


def deciding(cards: Sequence[Card], flavour: str | None) -> tuple[Card, ...]:
    """Return the cards that decide where a flavour is named: those that it serves; None: all.

    Somebody has decided about the others.
    """
    if flavour is None or flavour == AUTO:
        return tuple(cards)
    return tuple(card for card in cards if card.takes_flavour(flavour))


def chosen_flavour(
    recipe: Recipe, flavour: str | None, version: str | None, cards: Sequence[Card] = ()
) -> str:
    """Return a request's flavour; without one, or for ``auto``, the one that the cards need.

    Raises:
        NotFoundError: There is no such flavour or word for a version, or none for all cards.
    """
    recipe.refuse_unknown(flavour, version)
    named = [c.generation.versions for c in cards if c.generation and c.generation.versions]
    # Ranges that share a version share an end of one of them, or what follows it at once.
    ends = [end for text in named for end in _VERSION.findall(text)]
    versions = [one for end in ends for one in (end, f"{end}.1")]
    is_shared = any(all(card.takes_version(one) for card in cards) for one in versions)
    # A whole version that is named is taken.
    if named and not is_shared and "." not in (version or ""):
        raise no_common_driver(recipe, cards)
    return flavour_for(recipe, cards) if flavour is None or flavour == AUTO else flavour


def flavour_for(recipe: Recipe, cards: Sequence[Card]) -> str:
    """Return the flavour that serves all cards: the default one, else the first that does.

    Raises:
        NotFoundError: No flavour does.
    """
    usual = recipe.default_flavour
    for flavour in (usual, *(name for name in recipe.flavours if name != usual)):
        if all(card.takes_flavour(flavour) for card in cards):
            return flavour
    raise no_common_driver(recipe, cards)


def no_common_driver(recipe: Recipe, cards: Sequence[Card]) -> NotFoundError:
    """Return the error for cards that no one driver serves."""
    some = next(
        flavour for card in cards for flavour in recipe.flavours if card.takes_flavour(flavour)
    )
    # Both lists are in the message, which every command and the status show.
    takes = "; ".join(card.wanted for card in cards)
    return NotFoundError(
        f"No offered version and flavour of '{recipe.name}' serves all cards of this host:"
        f" {takes} ({recipe.hardware.source}).",
        resolution="Choose those that shall work, by version and flavour, in [drivers."
        f'{recipe.name}] of /etc/provision/provision.toml (flavour = "{some}"); the other cards'
        " then have no driver. Or give them to virtual machines (vfio-pci), which counts as if they"
        " were not there.",
    )


def unserved(cards: Sequence[Card], modules: Iterable[str]) -> tuple[Card, ...]:
    """Return the cards to which none of a driver's modules is bound."""
    names = {name.replace("-", "_") for name in modules}
    return tuple(card for card in cards if card.device.module not in names)


def undriven(cards: Sequence[Card], listed: Sequence[PciMatch]) -> tuple[Card, ...]:
    """Return the cards that what was built does not drive, by its own list; empty: it has none."""
    return tuple(
        card
        for card in cards
        if listed
        and not any(
            one.matches(
                vendor=card.device.vendor,
                device=card.device.device,
                device_class=card.device.device_class,
            )
            for one in listed
        )
    )
