"""Which versions vendors offer, and what they promise of their branches: asked, read, and kept.

The last answer of each source of ``[upstream]`` is kept with its time, and counts if the source
does not answer. So a vendor's site that is down, or a host without a network, changes nothing.
Unknown members of JSON are accepted, because vendors add some; a missing one, or one of another
type, is an error that names the address and the member.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter

from provision.catalogue.fields import (
    CHANNELS,
    NEWEST_WITHOUT_KINDS,
    BranchFacts,
    GitTags,
    Maturity,
    NvidiaReleases,
    Upstream,
    UpstreamSource,
)
from provision.catalogue.recipe import Recipe
from provision.distros import compare_versions, version_key
from provision.documents import Foreign, Frozen, load_if_readable, refusing
from provision.errors import ProvisionError
from provision.fetch import get_small
from provision.files import write_atomic
from provision.pin import Commit
from provision.run import run

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


def by_version(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Return releases in Debian's order of versions, the newest first."""
    return tuple(sorted(releases, key=lambda release: version_key(release.version), reverse=True))


def _refuse_page(content: bytes, url: str) -> None:
    if content.lstrip()[:1] == b"<":
        raise unexpected(url, "it is a web page (HTML)")


def _describing(content: bytes, url: str) -> AbstractContextManager[None]:
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


log = logging.getLogger(__name__)

# Seconds for which an answer counts as current, unless the newest is requested.
MAX_AGE = 3600.0
# Bytes of an answer: NVIDIA's list of drivers has some 200 kB.
_MAX_ANSWER = 16 << 20
_GIT_S = 60.0
_AT_ONCE = 8
# git asks for nothing, runs no helper of the user's, and speaks HTTP only.
_GIT_ENV = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ALLOW_PROTOCOL": "http:https",
}


class Answer(Frozen):
    """The answer of a source."""

    schema_version: Literal[1] = 1
    url: str
    # Unix time of the answer.
    read: int
    releases: tuple[Release, ...]


class UpstreamResult(NamedTuple):
    """The present or kept answer of a source."""

    source: UpstreamSource
    answer: Answer | None
    # Why it does not answer now; None: it does, or was not asked.
    trouble: ProvisionError | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return self.source.url

    @property
    def releases(self) -> tuple[Release, ...]:
        """The versions that it names."""
        return () if self.answer is None else self.answer.releases


def ask(
    upstream: Upstream,
    *,
    machine: str,
    folder: Path,
    max_age: float = 0.0,
) -> tuple[UpstreamResult, ...]:
    """Ask a driver's sources, all at once.

    Args:
        folder: The folder of kept answers. A folder that can't be written is no error.
        max_age: Seconds for which a kept answer counts; 0: each source is asked.
    """
    known = kept(upstream, machine=machine, folder=folder)
    now = time.time()

    def read(reading: UpstreamResult) -> UpstreamResult:
        if reading.answer is not None and 0 <= now - reading.answer.read < max_age:
            return reading
        return _asked(reading, machine, folder)

    if not known:
        return ()
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return tuple(pool.map(read, known))


def kept(upstream: Upstream, *, machine: str, folder: Path) -> tuple[UpstreamResult, ...]:
    """Return the kept answers of a driver's sources, without asking them."""
    return tuple(
        UpstreamResult(source, load_if_readable(_file(source, machine, folder), Answer))
        for source in upstream.sources
    )


def _asked(reading: UpstreamResult, machine: str, folder: Path) -> UpstreamResult:
    try:
        releases = _read(reading.source, machine)
        if not releases:
            raise _nothing(reading)
    except ProvisionError as error:
        log.info("%s: %s %s", reading.url, error.message, error.details or "")
        return UpstreamResult(reading.source, reading.answer, error)
    answer = Answer(url=reading.url, read=int(time.time()), releases=releases)
    with suppress(OSError):
        write_atomic(
            _file(reading.source, machine, folder), answer.model_dump_json(exclude_none=True) + "\n"
        )
    return UpstreamResult(reading.source, answer)


def _nothing(reading: UpstreamResult) -> ProvisionError:
    """Return the error for an answer without versions, which must not replace the kept one."""
    pattern = getattr(reading.source, "pattern", None)
    return ProvisionError(
        f"'{reading.url}' names no version.",
        resolution=f"Look at it: curl -sSL {reading.url}. If its names have changed, correct"
        " [[upstream.sources]] of the driver's driver.toml.",
        details=f"looked for: {pattern}" if pattern else None,
    )


def _file(source: UpstreamSource, machine: str, folder: Path) -> Path:
    """Return the file of a source's answer; another query has another file."""
    key = json.dumps([source.model_dump(mode="json"), machine], sort_keys=True)
    return folder / "upstream" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read(source: UpstreamSource, machine: str) -> tuple[Release, ...]:
    match source:
        case NvidiaReleases():
            page = get_small(source.url, limit=_MAX_ANSWER, patient=False)
            return nvidia_releases(page, url=source.url, machine=machine)
        case GitTags():
            return _git_tags(source, source.url)


def _git_tags(source: GitTags, url: str) -> tuple[Release, ...]:
    done = run(
        ["git", "ls-remote", "--tags", "--", url],
        why="list the versions of a driver whose source is a git repository",
        check=False,
        env=_GIT_ENV,
        timeout=_GIT_S,
    )
    if done.returncode != 0:
        raise ProvisionError(
            f"Could not list the tags of '{url}'.",
            resolution=f"See whether this machine reaches it: git ls-remote --tags {url}",
            details=done.stderr.strip(),
        )
    return git_tags(done.stdout, url=url, pattern=source.pattern)


class Branch(NamedTuple):
    """A branch."""

    name: str
    maturity: Maturity | None = None
    last_day: date | None = None
    newest: str | None = None
    released: str | None = None
    # Who says of which kind it is, and who until when it lives: a vendor's answer or the recipe,
    # with the day of that; None: nobody does.
    kind_by: str | None = None
    end_by: str | None = None

    @property
    def described(self) -> str:
        """What is known of it, by whom, and of which day."""
        kind = f"of the kind {self.maturity}" if self.maturity else "of no known kind"
        text = f"the branch {self.name} is {kind}{f' ({self.kind_by})' if self.kind_by else ''}"
        if self.last_day is None:
            return text
        return f"{text}, supported until {self.last_day} ({self.end_by})"

    def has_ended(self, today: date) -> bool:
        """Return whether its vendor no longer supports it."""
        return self.last_day is not None and self.last_day < today


class Branches(NamedTuple):
    """The branches of a driver, the newest first."""

    upstream: Upstream
    all: tuple[Branch, ...]

    def of(self, version: str) -> Branch:
        """Return the branch of a version, even if only its name is known."""
        parts = version.split(".")
        named = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        known = [branch for branch in self.all if branch.name in named]
        longest = max(known, key=lambda branch: len(branch.name), default=None)
        return longest or Branch(self.upstream.branch_of(version))

    def followed(self, channel: str, today: date) -> tuple[str, ...] | None:
        """Return the branches that a version such as ``lts`` accepts, in the order of preference.

        Supported branches come first; an ended one is better than none.
        """
        if channel not in CHANNELS or (
            channel in NEWEST_WITHOUT_KINDS and not self.upstream.has_kinds
        ):
            return None
        fitting = [branch for branch in self.all if branch.maturity in CHANNELS[channel]]
        # The sort is stable: within both groups the order stays.
        return tuple(b.name for b in sorted(fitting, key=lambda branch: branch.has_ended(today)))

    def successor(self, branch: Branch, today: date) -> Branch | None:
        """Return the branch to switch to from an ended one: supported, newer, and of the same kind.

        If no such branch exists, one for production counts.
        """
        newer = [
            other
            for other in self.all
            if not other.has_ended(today)
            and other.maturity is not None
            and compare_versions(other.name, branch.name) > 0
        ]
        suited = (branch.maturity,), CHANNELS["production"]
        found = (other for kinds in suited for other in newer if other.maturity in kinds)
        return next(found, None)


def known_branches(upstream: Upstream, readings: Iterable[UpstreamResult]) -> Branches:
    """Return the branches that a recipe or a source names.

    For the maturity of a branch, a source counts more than the recipe. Only the recipe has the end
    of its life. Source: https://docs.nvidia.com/datacenter/tesla/drivers/releases.json has
    none.
    """
    releases: dict[str, list[Release]] = {name: [] for name in upstream.branches}
    said_by: dict[str, str] = {}
    for reading in readings:
        for release in reading.releases:
            name = release.branch or upstream.branch_of(release.version)
            releases.setdefault(name, []).append(release)
            if release.maturity is not None and reading.answer is not None:
                day = datetime.fromtimestamp(reading.answer.read, tz=UTC)
                host = urlsplit(reading.url).hostname
                said_by.setdefault(name, f"{host}, asked on {day:%Y-%m-%d}")
    names = sorted(releases, key=version_key, reverse=True)
    return Branches(
        upstream,
        tuple(_branch(upstream, name, releases[name], said_by.get(name)) for name in names),
    )


def today() -> date:
    """Return the day that decides which branches have ended: in UTC, so the same everywhere."""
    return datetime.now(tz=UTC).date()


class Notice(NamedTuple):
    """Something that people should know of a version or a recipe, and what to do."""

    message: str
    resolution: str


def ended_branch(driver: str, version: str, branches: Branches, day: date) -> Notice | None:
    """Return that the branch of a version, or a branch itself, has ended; None if it has not."""
    found = branches.of(version)
    if not found.has_ended(day):
        return None
    what = "" if version == found.name else f"{version} is of the branch {found.name}: "
    message = f"{what}its vendor supported {found.name} until {found.last_day}, and no longer"
    successor = branches.successor(found, day)
    name = "another branch" if successor is None else f"the branch {successor.name}"
    value = "BRANCH" if successor is None else successor.name
    return Notice(
        message,
        f'For {name}, write version = "{value}" into [drivers.{driver}] of'
        " /etc/provision/provision.toml, then: provision apply. Whether it is offered for this"
        f" distro: provision drivers versions {driver}",
    )


def _branch(upstream: Upstream, name: str, releases: list[Release], said_by: str | None) -> Branch:
    facts = upstream.branches.get(name, BranchFacts())
    said = next((r.maturity for r in releases if r.maturity is not None), None)
    newest = max(releases, key=lambda release: version_key(release.version), default=None)
    same = [r for r in releases if newest is not None and r.version == newest.version]
    return Branch(
        name=name,
        maturity=said or facts.maturity,
        last_day=facts.last_day,
        newest=newest.version if newest else None,
        released=next((r.released for r in same if r.released), None),
        kind_by=said_by or (upstream.source if facts.maturity else None),
        end_by=upstream.source if facts.end_of_life else None,
    )


# Months after which a recipe's table is called old: NVIDIA begins a branch every four to six.
_OLD = 12


def outdated_tables(recipe: Recipe, day: date) -> tuple[Notice, ...]:
    """Return which tables of a recipe are old; not those without a date."""
    reviewed = {
        "branches": recipe.upstream.reviewed_day,
        "cards": recipe.hardware.reviewed_day,
    }
    return tuple(
        Notice(
            f"the recipe's table of {table} is {months} months old ({of:%Y-%m})",
            "Upgrade provision, which brings newer recipes; or correct the table in a copy of the"
            f" recipe's folder '{recipe.name}', in a folder that 'catalogue' of"
            " /etc/provision/provision.toml names.",
        )
        for table, of in reviewed.items()
        if of is not None and (months := (day.year - of.year) * 12 + day.month - of.month) > _OLD
    )
