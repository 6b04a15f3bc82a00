"""Explains messages of dnf and zypper: the cause of a failure, and what to do.

The solver's own messages are always in the details: they name packages and mirrors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.distros.family import Failure, fill
from provision.distros.rpm_based.rpm import NO_CONFIG
from provision.distros.rpm_based.rpm_keys import BAD_SIGNATURE, NO_KEYS
from provision.errors import NotFoundError, ProvisionError

_LINES = 25
# sh's exit status where there is no such program.
_NO_PROGRAM = 127
# Not the ordinary lines about it: "Retrieving repository 'oss' metadata [done]" of zypper, "Last
# metadata expiration check: …" of dnf.
_INDEX = re.compile(r"repomd\.xml|(?:[Dd]ownload|[Dd]ownloading|Valid) metadata")
# The minor release that a kernel of the RHEL family is from: 5.14.0-427.13.1.el9_4.x86_64.
_MINOR = re.compile(r"\.el([0-9]+)_([0-9]+)\b")
_MAJOR = re.compile(r"^[0-9]+")


@dataclass(frozen=True, slots=True)
class Words:
    """What a package manager prints, as regular expressions.

    Attributes:
        absent: It has no such package; the group ``spec`` names it.
        stale: A mirror lacks a file that its index names, or has another in its place.
    """

    absent: re.Pattern[str]
    conflict: re.Pattern[str]
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


def explain(failure: Failure, words: Words) -> ProvisionError:
    """Return the error for a script that failed."""
    by_status = {BAD_SIGNATURE: _wrong_key, NO_KEYS: _no_keys, NO_CONFIG: _no_config}
    if failure.status in by_status:
        return by_status[failure.status](failure)
    said = failure.said
    if failure.status == _NO_PROGRAM:
        return _no_program(failure)
    if words.unsigned_index.search(said):
        return _unsigned_index(failure)
    absent = words.absent.search(said)
    if absent:
        return _absent(failure, next(text for text in absent.groups() if text))
    # An index that can't be had is no mirror out of step, although the words are the same.
    stale = words.stale if not _INDEX.search(said) else words.conflict
    for pattern, explained in (
        (words.unsigned, _wrong_key),
        (words.refused, missing_entitlement),
        (words.conflict, _conflict),
        (stale, _stale),
        (words.unreachable, _unreachable),
        (words.stale, _unreachable),
    ):
        if pattern.search(said):
            return explained(failure)
    return ProvisionError(
        f"The packages for the kernel {failure.kernel} could not be solved for on"
        f" {_release(failure)} (exit status {failure.status}).",
        resolution="Run the command again with --verbose, which shows all that the package manager"
        " says.",
        details=_last(said),
    )


def missing_entitlement(failure: Failure) -> ProvisionError:
    """Return the error for repositories that require a subscription."""
    required = [one.host for one in failure.distro.entitlement if one.required]
    if not required:
        return ProvisionError(
            f"A repository of {_release(failure)} refuses to serve this machine.",
            resolution="Name repositories that it may use in /etc/provision/provision.toml:"
            f" [distros.{failure.distro.id}] repositories.",
            details=_last(failure.said),
        )
    return NotFoundError(
        f"The repositories of {_release(failure)} need a subscription, and this machine's is"
        " missing or not valid.",
        resolution=f"Register this machine, so that it has {' and '.join(required)} (they are"
        " bound read-only into the container that solves, and never part of an image; in a cloud,"
        " what its repository files name is bound instead, which AWS and Google do not accept"
        " without their plugins of dnf), or name a"
        f" mirror in /etc/provision/provision.toml: [distros.{failure.distro.id}] repositories.",
        details=_last(failure.said) or None,
    )


def _release(failure: Failure) -> str:
    return f"{failure.distro.name} {failure.release.version}"


def _absent(failure: Failure, spec: str) -> ProvisionError:
    names = {one.text for one in failure.query.specs}
    if not any(_same(spec, name) for name in names):
        return NotFoundError(
            f"The repositories of {_release(failure)} have no package '{spec.strip()}', which the"
            " build needs.",
            resolution="Check the name in driver.toml, and that the repository that holds it is"
            " enabled in the base image or named in /etc/provision/provision.toml.",
            details=_last(failure.said),
        )
    if failure.query.repository is not None:
        where = f" They are in {failure.query.repository}: enable it in the base image, or name it."
    else:
        where = ""
    return HeadersGoneError(
        f"The repositories of {_release(failure)} have no headers of the kernel {failure.kernel}:"
        f" it is superseded, or of another release.{where}",
        resolution=_vault(failure),
        details=f"looked for: {', '.join(sorted(names))}\n{_last(failure.said)}",
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


def _conflict(failure: Failure) -> ProvisionError:
    return ProvisionError(
        f"The packages for the kernel {failure.kernel} can't be installed together on"
        f" {_release(failure)}; the solver says why.",
        resolution="If its repositories are in the middle of an update, try again later. If the"
        " base image is newer than the kernel's packages, name an older one with --base.",
        details=_last(failure.said),
    )


def _stale(failure: Failure) -> ProvisionError:
    return ProvisionError(
        f"A mirror of {_release(failure)} is out of step: its index names a file that it lacks, or"
        " that has other content.",
        resolution="Try again in some minutes, or name another mirror in"
        f" /etc/provision/provision.toml: [distros.{failure.distro.id}] repositories.",
        details=_last(failure.said),
    )


def _unreachable(failure: Failure) -> ProvisionError:
    return ProvisionError(
        f"A repository of {_release(failure)} can't be reached from the solving container.",
        resolution="Check that containers reach the network ([engine] network in"
        " /etc/provision/provision.toml; behind a proxy: [network] proxy), or name a"
        f" mirror there: [distros.{failure.distro.id}] repositories.",
        details=_last(failure.said),
    )


def _wrong_key(failure: Failure) -> ProvisionError:
    return ProvisionError(
        f"A package for {_release(failure)} is not signed with a key of the distro, and not used.",
        resolution="If the repository is your own, name its key in /etc/provision/provision.toml:"
        f' [distros.{failure.distro.id}] repositories = [{{ …, keys = ["/path/of/its/key"] }}].'
        " If it is the distro's, don't use this mirror.",
        details=_last(failure.said),
    )


def _unsigned_index(failure: Failure) -> ProvisionError:
    return ProvisionError(
        f"The index of a repository of {_release(failure)} is not signed with a key that counts,"
        " and not used.",
        resolution="If the repository is your own, name the key that signs its index in"
        f" /etc/provision/provision.toml: [distros.{failure.distro.id}] repositories ="
        ' [{ …, keys = ["/path/of/its/key"] }]; where its index is not signed at all, say so there:'
        " signed = false. If it is the distro's, don't use this mirror.",
        details=_last(failure.said),
    )


def _no_keys(failure: Failure) -> ProvisionError:
    return NotFoundError(
        f"The base image '{failure.image}' has no key that packages of {_release(failure)}"
        " are signed with.",
        resolution="Take the distro's own base image (--base), or name the keys in"
        f" /etc/provision/provision.toml: [distros.{failure.distro.id}] repositories.",
        details=_last(failure.said),
    )


def _no_program(failure: Failure) -> ProvisionError:
    return ProvisionError(
        f"The base image '{failure.image}' lacks a program of {failure.distro.family}: it is no"
        f" image of {_release(failure)}, or a reduced one.",
        resolution=f"Take the distro's own, such as {failure.release.image} (--base).",
        details=_last(failure.said),
    )


def _no_config(failure: Failure) -> ProvisionError:
    return ProvisionError(
        f"The headers of the kernel {failure.kernel} hold no configuration"
        f" ({failure.query.config}), so the compiler that built it is not known.",
        resolution="The packages may be of another kernel; see what they hold with 'rpm -qlp'.",
        details=_last(failure.said),
    )


def _last(said: str) -> str:
    return "\n".join(said.strip().splitlines()[-_LINES:])
