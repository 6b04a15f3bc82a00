"""Which versions and flavours of a driver may serve a host: by its cards, and by its kernel.

Every artifact is judged here, wherever it comes from. A card that the recipe's table does not name
is taken as newer than the table: every version may serve it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeGuard

from provision.catalogue.fields import CHANNELS, CardGeneration, version_matches
from provision.catalogue.recipe import Known, Recipe
from provision.config import Untried
from provision.errors import NotFoundError
from provision.host.facts import PciDevice
from provision.manifest import PciMatch
from provision.pin import Pin
from provision.progress import Note, report

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
# The flavour that a request without one has: the first that all cards take.
AUTO = "auto"
# Drivers that hold a device for a virtual machine, so that no other driver is meant to have it.
_GIVEN_AWAY = frozenset({"vfio-pci", "pci-stub", "xen-pciback", "pciback"})


class Card(NamedTuple):
    """A device of a host that a driver is for."""

    device: PciDevice
    # None: the recipe does not know it.
    generation: CardGeneration | None = None
    # Whose table lacks it; None: there is none, or it has it.
    unknown_to: str | None = None

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
        if self.generation is not None:
            return f"{self.name} takes {self.generation.takes}"
        if self.unknown_to is not None:
            return f"{self.name} is unknown to {self.unknown_to}, and taken as newer than that"
        return f"{self.name} takes any version, as far as is known"

    def takes(self, flavour: str | None, version: str | None) -> bool:
        """Return whether what a request names may serve it; words such as ``lts`` name nothing."""
        return self.takes_flavour(flavour) and (
            not _names_version(version)
            # Or one of the branch that is named.
            or any(self.takes_version(one) for one in (version, f"{version}.999999"))
        )

    def takes_version(self, version: str) -> bool:
        """Return whether a version of the driver serves it."""
        return self.generation is None or version_matches(version, self.generation.versions)

    def takes_flavour(self, flavour: str | None) -> bool:
        """Return whether a flavour of the driver serves it; None or ``auto``: none is named."""
        known = self.generation.flavours if self.generation else ()
        return not known or flavour in {None, AUTO, *known}


class NoCardError(NotFoundError):
    """What is named, or an artifact by its own list, drives no card of the host."""

    reason = "no-card"


def _names_version(version: str | None) -> TypeGuard[str]:
    return version is not None and version[:1].isdigit()


def cards_of(recipe: Recipe, devices: Iterable[PciDevice]) -> tuple[Card, ...]:
    """Return the devices that a driver is for, except those that virtual machines have."""
    hardware = recipe.hardware
    return tuple(
        Card(
            device,
            generation := hardware.generation(device.device),
            hardware.source if hardware.cards and generation is None else None,
        )
        for device in devices
        if device.driver not in _GIVEN_AWAY
        and hardware.matches(device.vendor, device.device, device.device_class)
    )


def deciding(cards: Sequence[Card], flavour: str | None, version: str | None) -> tuple[Card, ...]:
    """Return the cards that what is named serves, which decide about the rest; all if it is none.

    Somebody has decided about the others.
    """
    return tuple(card for card in cards if card.takes(flavour, version)) or tuple(cards)


def chosen_flavour(
    recipe: Recipe, flavour: str | None, version: str | None, cards: Sequence[Card] = ()
) -> str:
    """Return a request's flavour; without one, or for ``auto``, the one that the cards need.

    Raises:
        NotFoundError: There is no such flavour or word for a version, or none for all cards.
        NoCardError: What is named serves none of the cards.
    """
    recipe.refuse_unknown(flavour, version)
    if cards and not any(card.takes(flavour, version) for card in cards):
        names = (("version", version), ("flavour", flavour))
        named = " and ".join(f'{key} = "{value}"' for key, value in names if value is not None)
        raise NoCardError(
            f"'{recipe.name}' with {named} drives no card of this host: {_takes(recipe, cards)}.",
            resolution=advice(recipe, cards),
        )
    named_by = [c.generation.versions for c in cards if c.generation and c.generation.versions]
    # Ranges that share a version share an end of one of them, or what follows it at once.
    ends = [end for text in named_by for end in _VERSION.findall(text)]
    versions = [one for end in ends for one in (end, f"{end}.1")]
    is_shared = any(all(card.takes_version(one) for card in cards) for one in versions)
    # A version that is named is taken.
    if named_by and not is_shared and not _names_version(version):
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
    # Both lists are in the message, which every command and the status show.
    return NotFoundError(
        f"No offered version and flavour of '{recipe.name}' serves all cards of this host:"
        f" {_takes(recipe, cards)}.",
        resolution=advice(recipe, cards),
    )


def _takes(recipe: Recipe, cards: Iterable[Card]) -> str:
    return f"{'; '.join(card.wanted for card in cards)} ({recipe.hardware.source})"


def advice(recipe: Recipe, cards: Sequence[Card]) -> str:
    """Return what to write into provision.toml for cards: for all, else for each kind of them."""
    where = f"[drivers.{recipe.name}] of /etc/provision/provision.toml"
    machine = (
        "Or give the card to a virtual machine (vfio-pci): it then counts as if it were not there."
    )
    together = _settings(recipe, cards)
    if together is not None:
        return f"Write {together} into {where}. {machine}"
    kinds = {card.generation: card for card in cards}
    lines = {card: _settings(recipe, [card]) for card in kinds.values()}
    choices = "; ".join(f"{lines[card]} for {card.name}" for card in lines if lines[card])
    none = "; ".join(card.name for card in lines if lines[card] is None)
    parts = []
    if none:
        parts.append(
            f"No branch that the recipe knows drives {none}: provision drivers versions"
            f" {recipe.name}."
        )
    if choices:
        parts.append(f"Write into {where}, and the other cards then have no driver: {choices}.")
    return " ".join([*parts, machine])


def _settings(recipe: Recipe, cards: Sequence[Card]) -> str | None:
    usual = recipe.default_flavour
    flavour = next(
        (
            name
            for name in (usual, *recipe.flavours)
            if all(card.takes_flavour(name) for card in cards)
        ),
        None,
    )
    known = recipe.upstream.branches
    serving = [name for name in known if all(card.takes(None, name) for card in cards)]
    # The newest, of a kind that suits production if there is one.
    best = max(
        serving,
        key=lambda name: (
            known[name].maturity in CHANNELS["production"],
            [int(part) for part in name.split(".")],
        ),
        default=None,
    )
    if flavour is None or (known and best is None):
        return None
    # A recipe without branches says only by ranges what there is.
    ranges = {card.generation.versions for card in cards if card.generation} - {""}
    if best is None and len(ranges) > 1:
        return None
    named = [f'version = "{best}"'] if best else [f"a version {one}" for one in ranges]
    if len(recipe.flavours) > 1 or not named:
        named.append(f'flavour = "{flavour}"')
    return " and ".join(named)


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


def is_refused(known: Known, untried: Untried) -> bool:
    """Return whether a version is not used on a kernel of which this is known."""
    return known == "fails" or (known == "untried" and untried == "refuse")


def require_kernel(
    recipe: Recipe,
    version: str,
    flavour: str,
    kernel: str,
    untried: Untried,
    *,
    nearest: str | None = None,
) -> None:
    """Refuse what is known to fail, and what nobody has tried where the policy says so.

    Such a build fails after minutes, or worse: it succeeds and the module breaks the kernel.

    Args:
        nearest: The next version that works there; None: none is known.
    """
    standing = recipe.standing(version=version, flavour=flavour, kernel_release=kernel)
    if not is_refused(standing.known, untried):
        return
    if standing.row is not None:
        by = f" ({standing.row.source})" if standing.row.source else ""
        why = f"'{recipe.name}' {version} is known to fail on the kernel {kernel}: "
        why += f"{standing.row.reason}{by}"
    else:
        why = (
            f"'{recipe.name}' {version} is untried with the kernel {kernel}, and [policy] untried"
            ' = "refuse"'
        )
    advice = []
    if nearest:
        advice.append(f"Take {nearest}, which works on this kernel: --version {nearest}, or")
        advice.append(f'version = "{nearest}" in [drivers.{recipe.name}] of provision.toml.')
    else:
        advice.append(f"Kernels that it builds on: provision drivers kernels {recipe.name}.")
    advice.append(
        "Or try it all the same: provision build"
        f" {recipe.name} --kernel {kernel} --version {version} --force"
    )
    known = [
        f"{row.versions or 'any version'}: {'works' if row.works is not None else 'fails'} on"
        f" {row.kernels}"
        for row in recipe.kernels
        if version_matches(version, row.versions) and (not row.flavours or flavour in row.flavours)
    ]
    details = known or ["the recipe knows nothing about this version"]
    raise NotFoundError(f"{why}.", resolution=" ".join(advice), details="\n".join(details))


def require_suitable(
    recipe: Recipe,
    cards: Sequence[Card],
    untried: Untried,
    pin: Pin,
    listed: Sequence[PciMatch] = (),
) -> None:
    """Refuse an artifact that a host must not use, and name the cards that it does not drive.

    Args:
        cards: Those of the host that the driver is for.
        listed: What the artifact drives, by its own list; empty: that is not known.

    Raises:
        NotFoundError: It fails on its kernel, or drives none of the cards.
    """
    driver = pin.driver
    require_kernel(recipe, driver.version, driver.flavour, pin.kernel.release, untried)
    # The driver's own list knows more than the recipe.
    lacking = (
        undriven(cards, listed)
        if listed
        else tuple(
            card
            for card in cards
            if not (card.takes_version(driver.version) and card.takes_flavour(driver.flavour))
        )
    )
    by = "by its own list of cards" if listed else f"by {recipe.hardware.source}"
    if lacking and len(lacking) == len(cards):
        what = f"{driver.name} {driver.version} ({driver.flavour})"
        raise NoCardError(
            f"{what} drives no card of this host, {by}:"
            f" {'; '.join(card.wanted for card in lacking)}.",
            resolution=f"{advice(recipe, cards)} To use it all the same: provision install IMAGE"
            " --force",
        )
    for card in lacking:
        report(
            Note(
                f"{driver.name} {driver.version} ({driver.flavour}): it does not drive"
                f" {card.wanted}, {by}"
            )
        )
