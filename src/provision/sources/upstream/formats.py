"""Reads versions from the answers of vendors, in their formats. Pure.

Unknown members of JSON are accepted, because vendors add some. A missing member, or one of another
type, is an error that names the address and the member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, TypeAdapter

from provision.catalogue.upstream import Maturity, Redistributables
from provision.distros.debian import version_key
from provision.documents import Frozen, refusing
from provision.errors import ProvisionError
from provision.pin import Commit, Sha256

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
    sha256: Sha256 | None = None


def _version(text: str) -> str:
    if not VERSION.fullmatch(text):
        raise ValueError("no version such as 535.261.03")
    return text


class _Foreign(BaseModel):
    """Base of the models of foreign documents: strict types, further members accepted."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)


_Date = Annotated[str, StringConstraints(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")]
_ForeignVersion = Annotated[str, AfterValidator(_version)]


class _NvidiaDriver(_Foreign):
    release_version: _ForeignVersion
    # Empty for some releases.
    release_date: _Date = ""
    architectures: list[str] = []
    runfile_url: dict[str, str] = {}


class _NvidiaBranch(_Foreign):
    type: str
    driver_info: list[_NvidiaDriver]


_BranchKey = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$")]
_NVIDIA = TypeAdapter(dict[_BranchKey, _NvidiaBranch])


class _Redistrib(_Foreign):
    """A release; its components are members beside those of the release itself."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", hide_input_in_errors=True)

    release_date: _Date = ""

    def component(self, name: str) -> object:
        """Return a member; None, which is no component, if it is missing."""
        return (self.model_extra or {}).get(name)


class _File(_Foreign):
    relative_path: str
    sha256: Sha256


class _Component(_Foreign):
    version: _ForeignVersion


# By component; and by component and platform.
_COMPONENTS = TypeAdapter(dict[str, _Component])
_FILES = TypeAdapter(dict[str, dict[str, _File]])


def latest_text(content: bytes, *, url: str) -> tuple[Release, ...]:
    """Read a ``latest.txt``: ``595.84 595.84/NVIDIA-Linux-x86_64-595.84.run``."""
    version, _, path = _text(content, url).strip().partition(" ")
    if not VERSION.fullmatch(version) or len(path.split()) > 1:
        raise unexpected(url, "expected 'VERSION PATH' and nothing else")
    if path and version not in path:
        raise unexpected(url, f"its path '{path[:100]}' is not that of the version {version}")
    file = f"{url.rpartition('/')[0]}/{path}" if path else None
    return (Release(version=version, url=file),)


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


def redistributables(
    content: bytes, *, url: str, source: Redistributables, machine: str
) -> Release | None:
    """Read a ``redistribVERSION.json``; None: it has no file for the architecture."""
    name, platform = source.component, source.platform.replace("{arch}", source.named(machine))
    with _describing(content, url):
        document = _Redistrib.model_validate_json(content)
        raw = document.component(name)
        component = _COMPONENTS.validate_python({name: raw})[name]
        if not isinstance(raw, dict) or platform not in raw:
            return None
        file = _FILES.validate_python({name: {platform: raw[platform]}})[name][platform]
    return Release(
        version=component.version,
        released=document.release_date or None,
        url=f"{url.rpartition('/')[0]}/{file.relative_path}",
        sha256=file.sha256,
    )


def redistributed_sums(content: bytes, *, url: str) -> Mapping[str, str]:
    """Return the sha256 of every file that a ``redistribVERSION.json`` names, by its address."""
    with _describing(content, url):
        document = _Redistrib.model_validate_json(content)
        components = _FILES.validate_python(
            {
                name: {key: file for key, file in component.items() if _is_file(file)}
                for name, component in (document.model_extra or {}).items()
                if isinstance(component, dict)
            }
        )
    base = url.rpartition("/")[0]
    files = (file for platforms in components.values() for file in platforms.values())
    return {f"{base}/{file.relative_path}": file.sha256 for file in files}


def _is_file(value: object) -> bool:
    return isinstance(value, dict) and "sha256" in value


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


def _text(content: bytes, url: str) -> str:
    _refuse_page(content, url)
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise unexpected(url, f"not ASCII text (byte {error.start})") from error


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
