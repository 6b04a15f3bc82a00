"""Whether an artifact may serve a host: what its recipe knows of the kernel, and the host's cards.

Every artifact is judged here, wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.catalogue.cards import Card, NoCardError, advice, undriven
from provision.catalogue.fields import version_matches
from provision.catalogue.recipe import Known, Recipe
from provision.config import Untried
from provision.errors import NotFoundError
from provision.manifest import PciMatch
from provision.pin import Pin
from provision.progress import Note, report


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
