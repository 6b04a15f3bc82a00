"""What apt's messages mean, and what to do about them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.distros.distro import Distro
from provision.distros.family import Failure, fill
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError

# Exit status of a script that found no configuration in the headers.
NO_CONFIG = 43
_LINES = 25


def _said(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


_ABSENT = _said(
    r"^E: Unable to locate package (?P<name>\S+)"
    r"|Package '?(?P<other>\S+?)'? has no installation candidate"
)


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What apt says, what it means, and what to do; with the placeholders of ``explain``."""

    pattern: re.Pattern[str]
    what: str
    resolution: str
    error: type[ProvisionError] = ProvisionError


# The first one counts: "Failed to fetch" follows most of the others.
_TROUBLES = (
    _Trouble(
        _said(r"^E: The archive serves the signed index of another suite"),
        "The archive of {release} serves the signed index of another suite, and is not used.",
        "Its signature is good, so it was put in another's place. Name another mirror: {setting}"
        ' mirror = "https://…" in /etc/provision/provision.toml.',
    ),
    _Trouble(
        _said(r"\b40[13] +(?:Unauthorized|Forbidden)"),
        "A repository of {release} wants to know who asks, and refuses this machine.",
        "For Ubuntu's Expanded Security Maintenance: run 'pro attach' on this machine. Its token is"
        " bound read-only into the container that solves, and never part of an image.",
    ),
    _Trouble(
        _said(r"[Cc]ertificate verification failed|No system certificates available"),
        "The certificate of an https mirror of {release} is not of an authority that counts.",
        "Add the authority to this machine's own (update-ca-certificates), which the solving"
        " container is given where the base image has none; or name a mirror that begins with"
        ' http:// (its index is signed all the same): {setting} mirror = "http://…" in'
        " /etc/provision/provision.toml.",
    ),
    _Trouble(
        _said(
            r"NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|is not signed|couldn't be verified"
            r"|signature.*invalid|returned an error code \(1\)|can't be done securely"
        ),
        "The archive of {release} is not signed with a key that counts, and not used.",
        "If it is your own, name its key in /etc/provision/provision.toml: {setting}"
        ' keyring = "/path/of/its/key". If it is the distro\'s, do not use this mirror.',
    ),
    _Trouble(
        _said(r"Release file for \S+ is (?:expired|not valid yet)"),
        "The index of the archive of {release} is out of date.",
        "Check this machine's clock (date), or use another mirror. For one that keeps an old state"
        " on purpose: {setting} snapshot = true in /etc/provision/provision.toml.",
    ),
    _Trouble(
        _said(
            r"Hash Sum mismatch|File has unexpected size|Mirror sync in progress"
            r"|^E: Failed to fetch .* 404"
        ),
        "A mirror of {release} is out of step: its index names a file that it lacks, or that has"
        " other content.",
        "Try again in some minutes, or name another mirror in /etc/provision/provision.toml:"
        ' {setting} mirror = "https://…".',
    ),
    _Trouble(
        _said(r"unmet dependencies|held broken packages|Depends: .* but "),
        "The packages for the kernel {kernel} can't be installed together on {release}; apt says"
        " why.",
        "If the archive is in the middle of an update, try again later. If the base image is newer"
        " than the kernel's packages, name an older one with --base.",
    ),
    _Trouble(
        _said(
            r"Could not (?:resolve|connect)|Temporary failure resolving"
            r"|Connection (?:refused|timed out)|Failed to fetch|Unable to connect"
            r"|does not have a Release file"
        ),
        "The archive of {release} can't be reached from the solving container.",
        "Check that containers reach the network ([engine] network in"
        " /etc/provision/provision.toml; behind a proxy: [network] proxy), or name a"
        ' mirror there: {setting} mirror = "https://…".',
        UnreachableError,
    ),
)


def explain(failure: Failure) -> ProvisionError:
    """Return what to say about a script that failed; apt's own words are in the details."""
    release = f"{failure.distro.name} {failure.release.version}"
    said = "\n".join(failure.said.strip().splitlines()[-_LINES:])
    if failure.status == NO_CONFIG:
        return ProvisionError(
            f"The headers of the kernel {failure.kernel} hold no configuration"
            f" ({failure.query.config}), so the compiler that built it is not known.",
            resolution="The packages may be of another kernel: 'dpkg-deb --contents' lists what"
            " they hold.",
            details=said,
        )
    absent = _ABSENT.search(failure.said)
    if absent:
        return _absent(failure, absent["name"] or absent["other"], said)
    for trouble in _TROUBLES:
        if trouble.pattern.search(failure.said):
            values = {
                "release": release,
                "kernel": failure.kernel,
                "setting": f"[distros.{failure.distro.id}.archive]",
            }
            return trouble.error(
                fill(trouble.what, values),
                resolution=fill(trouble.resolution, values),
                details=said,
            )
    return ProvisionError(
        f"The packages for the kernel {failure.kernel} could not be solved for on {release} (exit"
        f" status {failure.status}).",
        resolution="Run the command again with --verbose, which shows all that apt says.",
        details=said,
    )


def _absent(failure: Failure, name: str, said: str) -> ProvisionError:
    release = f"{failure.distro.name} {failure.release.version}"
    if name not in {spec.text.partition("=")[0] for spec in failure.query.specs}:
        return NotFoundError(
            f"The archive of {release} has no package '{name}', which the build needs.",
            resolution="Check the name in driver.toml; if it is in another component, add that to"
            " the recipe's 'components'.",
            details=said,
        )
    return NotFoundError(
        f"No headers are packaged for the kernel {failure.kernel} on {release}: it is superseded,"
        " or of another release.",
        resolution=superseded(failure.distro),
        details=said,
    )


def superseded(distro: Distro) -> str:
    """Return how to get at packages that an archive has dropped."""
    where = " ".join(
        f"That is {archive.name} ({archive.url}): {archive.hint}" for archive in distro.archives
    )
    return (
        "Headers may come later than their kernel: try again then ('provision apply' and its timer"
        " do). If the distro has dropped them, boot a kernel that is packaged (--kernel builds for"
        f" it), or take them from where superseded packages stay. {where}"
    ).rstrip()
