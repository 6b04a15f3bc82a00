"""Explains messages of dnf and zypper: the cause of a failure, and what to do.

The solver's own messages are always in the details: they name packages and mirrors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provision.distros.family import NO_CONFIG, Cause, Failure, fill
from provision.errors import NotFoundError, ProvisionError

# Exit statuses of the scripts' own.
BAD_SIGNATURE = 41
NO_KEYS = 42
# sh's exit status where there is no such program.
_NO_PROGRAM_STATUS = 127
# Not the ordinary lines about it: "Retrieving repository 'oss' metadata [done]" of zypper, "Last
# metadata expiration check: …" of dnf.
_INDEX = re.compile(r"repomd\.xml|(?:[Dd]ownload|[Dd]ownloading|Valid) metadata")
# The minor release that a kernel of the RHEL family is from: 5.14.0-427.13.1.el9_4.x86_64.
_MINOR = re.compile(r"\.el([0-9]+)_([0-9]+)\b")
_MAJOR = re.compile(r"^[0-9]+")


@dataclass(frozen=True, slots=True)
class Words:
    """What a package manager prints, as regular expressions."""

    # It has no such package; the group ``spec`` names it.
    absent: re.Pattern[str]
    conflict: re.Pattern[str]
    # A mirror lacks a file that its index names, or has another in its place.
    stale: re.Pattern[str]
    refused: re.Pattern[str]
    unreachable: re.Pattern[str]
    unsigned: re.Pattern[str]
    unsigned_index: re.Pattern[str]


_REFUSED = r"\b(?:HTTP error|Status code:?|error:?) ?40[13]\b|\b40[13] (?:Forbidden|Unauthorized)"
_UNREACHABLE = (
    r"Curl error \((?:5|6|7|28|35|52|56|60)\)|Could(?:n't| not) (?:resolve|connect)"
    r"|Failed to (?:download metadata|synchronize cache)|[Tt]imeout|Connection refused"
)
DNF = Words(
    absent=re.compile(
        r"(?:No match for argument|Unable to find a match): (?P<spec>.+)|"
        r"nothing provides requested (?P<other>.+)"
    ),
    conflict=re.compile(r"^ ?Problem(?: \d+)?: ", re.MULTILINE),
    stale=re.compile(
        r"Status code: 404 |All mirrors were (?:already )?tried|[Ii]ncorrect checksum"
        r"|[Cc]hecksum (?:error|doesn't match|mismatch)|Cannot download |Interrupted by header"
    ),
    refused=re.compile(_REFUSED),
    unreachable=re.compile(_UNREACHABLE),
    unsigned=re.compile(r"GPG check FAILED|Public key for \S+ is not installed|is not signed"),
    unsigned_index=re.compile(
        r"repomd\.xml GPG signature verification error"
        r"|GPG verification is enabled, but GPG signature"
    ),
)
ZYPPER = Words(
    absent=re.compile(
        r"No provider of '(?P<spec>[^']+)' found|'(?P<other>[^']+)' not found in package names"
    ),
    conflict=re.compile(r"^Problem(?: \d+)?: ", re.MULTILINE),
    stale=re.compile(
        r"not found on medium|Digest verification failed|Wrong digest|checksum|Failed to provide"
        r"|File '[^']+' not found"
    ),
    refused=re.compile(_REFUSED),
    unreachable=re.compile(_UNREACHABLE + "|Download \\(curl\\) error|Could not be refreshed"),
    unsigned=re.compile(r"Signature verification failed|is not signed"),
    unsigned_index=re.compile(
        r"Signature verification failed for repomd\.xml|File 'repomd\.xml' from repository .+ is"
        r" (?:unsigned|signed with an unknown key)"
    ),
)


class HeadersGoneError(NotFoundError):
    """The repositories have no headers of the kernel; an archive may have them."""


_OWN_KEY = (
    "If the repository is your own, name {key} in /etc/provision/provision.toml:"
    ' [distros.{distro}] repositories = [{ …, keys = ["/path/of/its/key"] }]'
)
_WRONG_KEY = Cause(
    "A package for {release} is not signed with a key of the distro, and not used.",
    _OWN_KEY.replace("{key}", "its key") + ". If it is the distro's, don't use this mirror.",
)
_UNSIGNED_INDEX = Cause(
    "The index of a repository of {release} is not signed with a key that counts, and not used.",
    _OWN_KEY.replace("{key}", "the key that signs its index")
    + "; where its index is not signed at all, say so there: signed = false. If it is the distro's,"
    " don't use this mirror.",
)
_NO_KEYS = Cause(
    "The base image '{image}' has no key that packages of {release} are signed with.",
    "Take the distro's own base image (--base), or name the keys in /etc/provision/provision.toml:"
    " [distros.{distro}] repositories.",
    NotFoundError,
)
_NO_CONFIG = Cause(
    "The headers of the kernel {kernel} hold no configuration ({config}), so the compiler that"
    " built it is not known.",
    "The packages may be of another kernel; see what they hold with 'rpm -qlp'.",
)
_NO_PROGRAM = Cause(
    "The base image '{image}' lacks a program of {family}: it is no image of {release}, or a"
    " reduced one.",
    "Take the distro's own, such as {published} (--base).",
)
_CONFLICT = Cause(
    "The packages for the kernel {kernel} can't be installed together on {release}; the solver says"
    " why.",
    "If its repositories are in the middle of an update, try again later. If the base image is"
    " newer than the kernel's packages, name an older one with --base.",
)
_STALE = Cause(
    "A mirror of {release} is out of step: its index names a file that it lacks, or that has other"
    " content.",
    "Try again in some minutes, or name another mirror in /etc/provision/provision.toml:"
    " [distros.{distro}] repositories.",
)
_UNREACHABLE_FROM = Cause(
    "A repository of {release} can't be reached from the solving container.",
    "Check that containers reach the network ([engine] network in /etc/provision/provision.toml;"
    " behind a proxy: [network] proxy), or name a mirror there: [distros.{distro}] repositories.",
)
_UNKNOWN = Cause(
    "The packages for the kernel {kernel} could not be solved for on {release} (exit status"
    " {status}).",
    "Run the command again with --verbose, which shows all that the package manager says.",
)
_BY_STATUS: Mapping[int, Cause] = {
    BAD_SIGNATURE: _WRONG_KEY,
    NO_KEYS: _NO_KEYS,
    NO_CONFIG: _NO_CONFIG,
    _NO_PROGRAM_STATUS: _NO_PROGRAM,
}


def explain(failure: Failure, words: Words) -> ProvisionError:
    """Return the error for a script that failed."""
    if failure.status in _BY_STATUS:
        return failure.error(*_BY_STATUS[failure.status])
    said = failure.said
    if words.unsigned_index.search(said):
        return failure.error(*_UNSIGNED_INDEX)
    if absent := words.absent.search(said):
        return _absent(failure, next(text for text in absent.groups() if text))
    if words.refused.search(said) and not words.unsigned.search(said):
        return missing_entitlement(failure)
    # An index that can't be had is no mirror out of step, although the words are the same.
    stale = words.stale if not _INDEX.search(said) else words.conflict
    for pattern, explanation in (
        (words.unsigned, _WRONG_KEY),
        (words.conflict, _CONFLICT),
        (stale, _STALE),
        (words.unreachable, _UNREACHABLE_FROM),
        (words.stale, _UNREACHABLE_FROM),
    ):
        if pattern.search(said):
            return failure.error(*explanation)
    return failure.error(*_UNKNOWN)


def missing_entitlement(failure: Failure) -> ProvisionError:
    """Return the error for repositories that require a subscription."""
    required = [one.host for one in failure.distro.entitlement if one.required]
    if not required:
        return failure.error(
            "A repository of {release} refuses to serve this machine.",
            "Name repositories that it may use in /etc/provision/provision.toml:"
            " [distros.{distro}] repositories.",
        )
    return failure.error(
        "The repositories of {release} need a subscription, and this machine's is missing or not"
        " valid.",
        f"Register this machine, so that it has {' and '.join(required)} (they are bound read-only"
        " into the container that solves, and never part of an image; in a cloud, what its"
        " repository files name is bound instead, which AWS and Google do not accept without their"
        " plugins of dnf), or name a mirror in /etc/provision/provision.toml: [distros.{distro}]"
        " repositories.",
        NotFoundError,
    )


def _absent(failure: Failure, spec: str) -> ProvisionError:
    names = {one.text for one in failure.query.specs}
    if not any(_same(spec, name) for name in names):
        return failure.error(
            f"The repositories of {{release}} have no package '{spec.strip()}', which the build"
            " needs.",
            "Check the name in driver.toml, and that the repository that holds it is enabled in the"
            " base image or named in /etc/provision/provision.toml.",
            NotFoundError,
        )
    where = ""
    if failure.query.repository is not None:
        where = f" They are in {failure.query.repository}: enable it in the base image, or name it."
    return HeadersGoneError(
        f"The repositories of {failure.distro.name} {failure.release.version} have no headers of"
        f" the kernel {failure.kernel}: it is superseded, or of another release.{where}",
        resolution=_vault(failure),
        details=f"looked for: {', '.join(sorted(names))}\n{failure.last_lines}",
    )


def _same(said: str, spec: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r"[\s'\"]+", "", text)

    return plain(spec) in plain(said) or plain(said) in plain(spec)


def _vault(failure: Failure) -> str:
    """Return how to get at packages that the repositories have dropped."""
    distro = failure.distro
    first = (
        f"Boot a kernel that is packaged ('provision drivers kernels DRIVER --distro {distro.id}:"
    )
    first += f"{failure.release.version}' lists them), or use one that is kept: "
    minor = _MINOR.search(failure.kernel)
    own = failure.full_version or failure.release.version
    full = f"{minor[1]}.{minor[2]}" if minor else own
    major = _MAJOR.match(full)
    values = {
        "version": full,
        "major": major[0] if major else full,
        "arch": failure.architecture,
    }
    parts = []
    for archive in distro.archives:
        tables = ", ".join(
            f'{{ id = "vault{number}", urls = ["{fill(url, values)}"] }}'
            for number, url in enumerate(archive.repositories, start=1)
        )
        setting = (
            f" In /etc/provision/provision.toml: [distros.{distro.id}] repositories = [{tables}]."
            if tables
            else ""
        )
        parts.append(
            f"{archive.name}, {archive.url}.{' ' + archive.hint if archive.hint else ''}{setting}"
        )
    return first + (" ".join(parts) or "name a mirror that still has it in provision.toml.")
