"""Reads versions from the answers of vendors, in their formats. Pure.

Unknown members of JSON are accepted, because vendors add some. A missing member, or one of another
type, is an error that names the address and the member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter

from provision.catalogue.upstream import Maturity
from provision.distros.debian.relations import version_key
from provision.documents import Foreign, Frozen, refusing
from provision.errors import ProvisionError
from provision.pin import Commit

# Versions that Debian's order can compare, and that every vendor of the catalogue uses.
VERSION = re.compile(r"[0-9][0-9A-Za-z.+~]{0,63}")
_MATURITIES: Mapping[str, Maturity] = {
    "lts branch": "lts",
    "long term support branch": "lts",
    "production branch": "production",
    "new feature branch": "new-feature",
}
# Other names of architectures than those of 'uname -m'.
_ALSO: Mapping[str, frozenset[str]] = {
    "aarch64": frozenset({"arm64", "sbsa"}),
    "x86_64": frozenset({"amd64"}),
}
# Versions in one answer; NVIDIA's list of drivers has some 150.
_MOST = 20_000
_ELSE = (
    "Something else answered in its place, or its vendor has changed the format. Look at it: curl"
    " -sSL {url}"
)


class Release(Frozen):
    """A version that a vendor offers."""

    version: str
    branch: str | None = None
    maturity: Maturity | None = None
    released: str | None = None
    commit: Commit | None = None
    url: str | None = None


def _version(text: str) -> str:
    if not VERSION.fullmatch(text):
        raise ValueError("no version such as 535.261.03")
    return text


_Date = Annotated[str, StringConstraints(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")]
_ForeignVersion = Annotated[str, AfterValidator(_version)]


class _NvidiaDriver(Foreign):
    release_version: _ForeignVersion
    # Empty for some releases.
    release_date: _Date = ""
    architectures: list[str] = Field(default_factory=list)
    runfile_url: dict[str, str] = Field(default_factory=dict)


class _NvidiaBranch(Foreign):
    type: str
    driver_info: list[_NvidiaDriver]


_BranchKey = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$")]
_NVIDIA = TypeAdapter(dict[_BranchKey, _NvidiaBranch])


def nvidia_releases(content: bytes, *, url: str, machine: str) -> tuple[Release, ...]:
    """Read NVIDIA's ``releases.json``; versions for other architectures are left out."""
    with _describing(content, url):
        branches = _NVIDIA.validate_json(content)
    names = {machine, *_ALSO.get(machine, ())}
    found = [
        Release(
            version=driver.release_version,
            branch=name,
            maturity=_MATURITIES.get(branch.type.strip().lower()),
            released=driver.release_date or None,
            url=driver.runfile_url.get(machine),
        )
        for name, branch in branches.items()
        for driver in branch.driver_info
        if not driver.architectures or names & set(driver.architectures)
    ]
    return bounded(found, url)


def git_tags(text: str, *, url: str, pattern: str) -> tuple[Release, ...]:
    """Read what ``git ls-remote --tags`` prints; tags that the pattern does not match are left out.

    An annotated tag has a second line, ``NAME^{}``, with the commit that it is about.

    Source: https://git-scm.com/docs/git-ls-remote
    """
    commits: dict[str, str] = {}
    for line in text.splitlines():
        commit, _, name = line.partition("\t")
        tag = name.removeprefix("refs/tags/")
        if tag == name or not re.fullmatch(r"[0-9a-f]{40}", commit):
            continue
        is_commit = tag.endswith("^{}")
        if is_commit or tag not in commits:
            commits[tag.removesuffix("^{}")] = commit
    found = [
        Release(version=match[1], commit=commit)
        for tag, commit in commits.items()
        if (match := re.fullmatch(pattern, tag)) and VERSION.fullmatch(match[1] or "")
    ]
    return bounded(found, url)


def newest_first(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Return releases in Debian's order of versions, the newest first."""
    return tuple(sorted(releases, key=lambda release: version_key(release.version), reverse=True))


def _refuse_page(content: bytes, url: str) -> None:
    if content.lstrip()[:1] == b"<":
        raise unexpected(url, "it is a web page (HTML)")


def _describing(content: bytes, url: str) -> AbstractContextManager[None]:
    """Turn the mistakes that a model finds into an error that names the address and each member."""
    _refuse_page(content, url)
    return refusing(f"'{url}' is not as expected.", resolution=_ELSE.format(url=url))


def bounded(releases: list[Release], url: str) -> tuple[Release, ...]:
    """Return releases, unless there are too many."""
    if len(releases) > _MOST:
        raise unexpected(url, f"it has more than {_MOST} versions")
    return tuple(releases)


def unexpected(url: str, why: str) -> ProvisionError:
    """Return an error about an answer of another format."""
    return ProvisionError(
        f"'{url}' is not as expected.", resolution=_ELSE.format(url=url), details=why
    )
