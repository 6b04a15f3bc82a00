"""The suites and addresses of a distro's archive, and its layout."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provision.config import PATH as CONFIG_PATH
from provision.config import ArchiveConfig
from provision.distros.debian.apt_sources import AptSource, binary_keyring, read_sources, store_key
from provision.errors import NotFoundError
from provision.files import in_root
from provision.pin import DistroPin

log = logging.getLogger(__name__)
# Names of suites that point at another release as time goes by.
_MOVING = ("oldoldstable", "oldstable", "stable", "testing")


@dataclass(frozen=True, slots=True)
class ArchiveLayout:
    """What the archives of a distro's releases have in common.

    Attributes:
        enabled: Those with kernels, compilers and tools, which are always read.
        security_in_archive: Whether a complete mirror has the security suite too. Debian's
            security updates are an archive of their own.
    """

    origin: str
    keyrings: tuple[str, ...]
    keyring_package: str
    components: tuple[str, ...]
    enabled: tuple[str, ...]
    codenames: tuple[str, ...]
    security_in_archive: bool = False

    def suites(self, codename: str) -> tuple[str, str, str]:
        """Return a release's suites: itself, its updates, its security updates."""
        return codename, f"{codename}-updates", f"{codename}-security"

    def backports(self, codename: str) -> str:
        """Return the suite of a release that holds newer kernels for those who ask for them."""
        return f"{codename}-backports"


@dataclass(frozen=True, slots=True)
class SuiteAddress:
    """One suite of an archive.

    Attributes:
        origin: The origin that its index has to state, as it may be another's archive, which is
            then left out; None: it is signed with the distro's own or a configured key.
        snapshot: Whether it keeps an old state on purpose, which is out of date.
        has_own_keys: Whether its keyring is not the distro's own.
    """

    uri: str
    suite: str
    keyrings: tuple[Path, ...]
    origin: str | None = None
    snapshot: bool = False
    has_own_keys: bool = False

    def __str__(self) -> str:
        return f"{self.uri} {self.suite}"


def suite_addresses(
    distro: DistroPin,
    layout: ArchiveLayout,
    *,
    config: ArchiveConfig,
    root: Path,
    key_folder: Path,
) -> list[SuiteAddress]:
    """Return the addresses of a distro's archive.

    A mirror in ``provision.toml`` takes precedence. Otherwise, the machine's own apt configuration
    names the addresses. If it is for another release of the same distro, the suites of this release
    are read at the same addresses.

    Args:
        key_folder: Folder for binary copies of keys that apt has as text.
    """
    if config.mirror:
        return _noted(_configured(distro, layout, config, root, key_folder), layout, root)
    sources = [s for s in read_sources(root) if _may_be_of(s, layout)]
    suites = {*layout.suites(distro.codename), layout.backports(distro.codename)}
    own = [source for source in sources if source.suite in suites]
    if not any(source.suite == distro.codename for source in own):
        own = _derive(sources, layout, distro)
    if not any(source.suite == distro.codename for source in own):
        raise _no_mirror(distro, root)
    if config.backports:
        own = _with_backports(own, layout, distro)
    default = _keyrings(distro, layout, config, root, key_folder)
    found = [_address(source, layout, default, root, key_folder) for source in own]
    if config.snapshot:
        found = [replace(address, snapshot=True) for address in found]
    return _noted(found, layout, root)


def _configured(
    distro: DistroPin, layout: ArchiveLayout, config: ArchiveConfig, root: Path, key_folder: Path
) -> Iterator[SuiteAddress]:
    """Yield the addresses at the mirrors that provision.toml names."""
    mirror = config.mirror or ""
    security = config.security_mirror or (mirror if layout.security_in_archive else None)
    if security is None:
        log.warning(
            "%s names a mirror but no security_mirror for %s: going without security updates",
            root / CONFIG_PATH,
            distro.id,
        )
    release, updates, security_suite = layout.suites(distro.codename)
    suites = [(mirror, release), (mirror, updates), (security, security_suite)]
    if config.backports:
        suites.append((mirror, layout.backports(distro.codename)))
    keys = _keyrings(distro, layout, config, root, key_folder)
    for uri, suite in suites:
        if uri:
            yield SuiteAddress(uri.rstrip("/"), suite, keys, snapshot=config.snapshot)


def _with_backports(
    sources: Sequence[AptSource], layout: ArchiveLayout, distro: DistroPin
) -> list[AptSource]:
    """Return sources with the release's backports, at the address of the release."""
    suite = layout.backports(distro.codename)
    if any(source.suite == suite for source in sources):
        return list(sources)
    release = next((s for s in sources if s.suite == distro.codename), None)
    return [*sources, *([replace(release, suite=suite)] if release else [])]


def _noted(
    addresses: Iterable[SuiteAddress], layout: ArchiveLayout, root: Path
) -> list[SuiteAddress]:
    """Return addresses, each once, with a note of whether their keys are the distro's own."""
    # One keyring may have two names (Debian 13: .gpg is a link to .pgp).
    known = {in_root(root, name).resolve() for name in layout.keyrings}
    return [
        replace(address, has_own_keys=not {key.resolve() for key in address.keyrings} <= known)
        for address in dict.fromkeys(addresses)
    ]


def _may_be_of(source: AptSource, layout: ArchiveLayout) -> bool:
    """Return whether a source may be the distro's archive, by what can be seen without asking."""
    return source.uri.startswith(("http://", "https://")) and set(source.components) <= set(
        layout.components
    )


def _derive(
    sources: Iterable[AptSource], layout: ArchiveLayout, distro: DistroPin
) -> list[AptSource]:
    """Return sources for a release, at the addresses of another release of the same distro."""
    release, updates, security = layout.suites(distro.codename)
    others = [layout.suites(name) for name in (*layout.codenames, *_MOVING)]
    derived = []
    for source in sources:
        for other, _, other_security in others:
            own = {other: (release, updates), other_security: (security,)}
            derived += [replace(source, suite=suite) for suite in own.get(source.suite, ())]
    return derived


def _address(
    source: AptSource,
    layout: ArchiveLayout,
    default: Sequence[Path],
    root: Path,
    key_folder: Path,
) -> SuiteAddress:
    if source.key:
        keys: tuple[Path, ...] = (store_key(source.key, key_folder, name=source.origin),)
    elif source.signed_by:
        files = [in_root(root, name) for name in source.signed_by]
        keys = tuple(binary_keyring(file, key_folder) for file in files if file.is_file())
    else:
        keys = tuple(default)
    # One keyring may have two names (Debian 13: .gpg is a link to .pgp).
    foreign = {key.resolve() for key in keys} != {key.resolve() for key in default}
    return SuiteAddress(
        source.uri,
        source.suite,
        keys or tuple(default),
        layout.origin if foreign else None,
        snapshot=source.snapshot,
    )


def _keyrings(
    distro: DistroPin, layout: ArchiveLayout, config: ArchiveConfig, root: Path, key_folder: Path
) -> tuple[Path, ...]:
    names = (config.keyring,) if config.keyring else layout.keyrings
    for name in names:
        path = in_root(root, name)
        if path.is_file():
            return (binary_keyring(path, key_folder),)
    raise NotFoundError(
        f"The keys that sign the archive of {distro.id} were not found.",
        resolution=f"Install the package '{layout.keyring_package}', or name a keyring file in"
        f' /{CONFIG_PATH}: [distros.{distro.id}.archive] keyring = "…".',
        details="\n".join(f"looked for {root / name.lstrip('/')}" for name in names),
    )


def _no_mirror(distro: DistroPin, root: Path) -> NotFoundError:
    return NotFoundError(
        f"No mirror of {distro.id} {distro.version} ({distro.codename}) is known.",
        resolution=f"Name one in /{CONFIG_PATH}: [distros.{distro.id}.archive]"
        ' mirror = "https://…", security_mirror = "https://…".',
        details=f"looked in {root / CONFIG_PATH}, {root / 'etc/apt/sources.list'} and"
        f" {root / 'etc/apt/sources.list.d'}",
    )
