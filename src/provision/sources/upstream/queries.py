"""Asks the sources of ``[upstream]``, and keeps the last answer of each.

The kept answer, with its time, counts if a source does not answer. So a vendor's site that is down,
or a host without a network, changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provision.catalogue.upstream import (
    GitTags,
    HttpIndex,
    LatestText,
    NvidiaReleases,
    PackageIndex,
    Redistributables,
    Upstream,
    UpstreamSource,
)
from provision.documents import Frozen, load_json
from provision.errors import ProvisionError
from provision.fetch import get_small
from provision.files import write_atomic
from provision.run import run
from provision.sources.upstream import formats
from provision.sources.upstream.formats import Release

log = logging.getLogger(__name__)

# Seconds for which an answer counts as current, unless the newest is requested.
MAX_AGE = 3600.0
# Bytes of an answer: NVIDIA's list of drivers has some 200 kB, its largest index 3 MB when packed.
_MAX_ANSWER = 16 << 20
_MAX_INDEX = 64 << 20
_GIT_S = 60.0
_AT_ONCE = 8
_REDISTRIB = r"redistrib_([0-9][0-9A-Za-z.]*)\.json"
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


@dataclass(frozen=True, slots=True)
class UpstreamResult:
    """The present or kept answer of a source."""

    source: UpstreamSource
    url: str
    answer: Answer | None
    # Why it does not answer now; None: it does, or was not asked.
    trouble: ProvisionError | None = None

    @property
    def releases(self) -> tuple[Release, ...]:
        """The versions that it names."""
        return () if self.answer is None else self.answer.releases


def ask(
    upstream: Upstream,
    *,
    machine: str,
    distro: str | None,
    folder: Path,
    max_age: float = 0.0,
) -> tuple[UpstreamResult, ...]:
    """Ask a driver's sources, all at once.

    Args:
        folder: The folder of kept answers. A folder that can't be written is no error.
        max_age: Seconds for which a kept answer counts; 0: each source is asked.
    """
    known = kept(upstream, machine=machine, distro=distro, folder=folder)
    now = time.time()

    def read(reading: UpstreamResult) -> UpstreamResult:
        if reading.answer is not None and 0 <= now - reading.answer.read < max_age:
            return reading
        return _asked(reading, machine, folder)

    if not known:
        return ()
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return tuple(pool.map(read, known))


def kept(
    upstream: Upstream, *, machine: str, distro: str | None, folder: Path
) -> tuple[UpstreamResult, ...]:
    """Return the kept answers of a driver's sources, without asking them."""
    sources = [source for source in upstream.sources if source.serves(distro)]
    return tuple(
        UpstreamResult(source, source.address(machine), _kept(_file(source, machine, folder)))
        for source in sources
    )


def _asked(reading: UpstreamResult, machine: str, folder: Path) -> UpstreamResult:
    try:
        releases = _read(reading.source, reading.url, machine)
        if not releases:
            raise _nothing(reading)
    except ProvisionError as error:
        log.info("%s: %s %s", reading.url, error.message, error.details or "")
        return UpstreamResult(reading.source, reading.url, reading.answer, error)
    answer = Answer(url=reading.url, read=int(time.time()), releases=releases)
    with suppress(OSError):
        write_atomic(
            _file(reading.source, machine, folder), answer.model_dump_json(exclude_none=True) + "\n"
        )
    return UpstreamResult(reading.source, reading.url, answer)


def _nothing(reading: UpstreamResult) -> ProvisionError:
    """Return the error for an answer without versions, which must not replace the kept one."""
    pattern = getattr(reading.source, "pattern", None) or getattr(reading.source, "package", None)
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


def _kept(path: Path) -> Answer | None:
    try:
        return load_json(path, Answer)
    except (OSError, ProvisionError):
        return None


def _read(source: UpstreamSource, url: str, machine: str) -> tuple[Release, ...]:
    match source:
        case LatestText():
            return formats.latest_text(_page(url), url=url)
        case NvidiaReleases():
            return formats.nvidia_releases(_page(url), url=url, machine=machine)
        case Redistributables():
            return _redistributables(source, f"{url.rstrip('/')}/", machine)
        case GitTags():
            return _git_tags(source, url)
        case HttpIndex():
            return formats.http_index(_page(url), url=url, pattern=source.pattern)
        case PackageIndex():
            return _package_index(source, url)


def _redistributables(source: Redistributables, url: str, machine: str) -> tuple[Release, ...]:
    """Return all versions, with the details of the newest."""
    found = formats.newest_first(formats.http_index(_page(url), url=url, pattern=_REDISTRIB))
    if not found:
        return ()
    newest = f"{url}redistrib_{found[0].version}.json"
    release = formats.redistributables(_page(newest), url=newest, source=source, machine=machine)
    return (*([release] if release else []), *found[1:])


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
    return formats.git_tags(done.stdout, url=url, pattern=source.pattern)


def _package_index(source: PackageIndex, url: str) -> tuple[Release, ...]:
    if source.kind == "deb-index":
        content = get_small(url, limit=_MAX_INDEX, patient=False)
        return formats.deb_index(content, url=url, package=source.package)
    base = url.rstrip("/")
    description = f"{base}/repodata/repomd.xml"
    packages = f"{base}/{formats.primary_of(_page(description), url=description)}"
    content = get_small(packages, limit=_MAX_INDEX, patient=False)
    return formats.rpm_index(content, url=packages, package=source.package)


def _page(url: str) -> bytes:
    return get_small(url, limit=_MAX_ANSWER, patient=False)
