"""No artifact of a registry is older than one that this host has had, unless its admin says so.

The serials of signed artifacts lie beside the entries and outlive them: they show that a registry
serves an old artifact again.
"""

from __future__ import annotations

import json
import time

from provision.build.workspace import Settings
from provision.errors import ProvisionError
from provision.files import write_atomic
from provision.registry.artifact_images import VerifiedImage
from provision.registry.find import TrustOverride
from provision.registry.signatures import UntrustedError
from provision.store.layout import Layout

_LONGEST = 1 << 20


class DowngradeError(UntrustedError):
    """A signed artifact that is older than one that this host had."""


def check_age(settings: Settings, trusted: VerifiedImage, consent: TrustOverride) -> None:
    """Check that no artifact for the same request and kernel was signed later."""
    facts = trusted.facts
    if facts is None or consent.allow_downgrade:
        return
    newest = max(_serials_so_far(Layout(settings.root, facts.driver), trusted).values(), default=0)
    if facts.serial < newest:
        is_named = trusted.request.name == facts.version
        names = "" if is_named else f' name it in provision.toml (version = "{facts.version}"), or'
        raise DowngradeError(
            f"'{trusted.image.reference}' is refused: it was signed before the artifact of"
            f" {facts.driver} for {facts.kernel} that this host has had"
            f" ({_day(facts.serial)}, and {_day(newest)}).",
            resolution="If you did not go back on purpose, the registry serves old images: look"
            f" into it. To go back on purpose:{names} the same command with --allow-downgrade.",
        )


def record_serial(layout: Layout, trusted: VerifiedImage) -> None:
    """Record that a host has an artifact now; the caller holds the driver's lock."""
    if trusted.facts is None:
        return
    serial = trusted.facts.serial
    # There are newer ones only if the caller allowed it, and going back again needs no consent.
    newer = {name for name, one in _serials_so_far(layout, trusted).items() if one > serial}
    serials = known_serials(layout)
    noted = {name: one for name, one in serials.items() if name not in newer}
    noted[f"{_target(trusted)}{trusted.facts.version}"] = serial
    if noted != serials:
        write_atomic(layout.serials, f"{json.dumps(noted, indent=2, sort_keys=True)}\n")


def known_serials(layout: Layout) -> dict[str, int]:
    """Return the serials of what registries served to this host, by name."""
    try:
        with layout.serials.open("rb") as stream:
            found = json.loads(stream.read(_LONGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(serial) is int for serial in found.values()):
        raise ProvisionError(
            f"'{layout.serials}' can't be read, which says how new the artifacts were that came"
            " from a registry.",
            resolution="To forget it, and take the next signed artifact however old it is:"
            f" mv {layout.serials} {layout.serials}.unreadable",
        )
    return {str(target): int(serial) for target, serial in found.items()}


def _serials_so_far(layout: Layout, trusted: VerifiedImage) -> dict[str, int]:
    target = _target(trusted)
    return {
        name: serial
        for name, serial in known_serials(layout).items()
        if name.startswith(target) and trusted.request.accepts(name.removeprefix(target))
    }


def _target(trusted: VerifiedImage) -> str:
    """Return the name under which serials are recorded, without the version at its end."""
    pin = trusted.image.pin
    distro = f"{pin.distro.id}:{pin.distro.version}"
    return f"{distro} {pin.kernel.release} {pin.kernel.architecture} {pin.driver.flavour} "


def _day(serial: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(serial))
    except (OverflowError, ValueError, OSError):
        return str(serial)
