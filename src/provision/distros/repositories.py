"""Where packages come from on a host: provision.toml's repositories, or those of the host itself.

apt's own sources: sources.list(5) of apt 2.6 and 3.0. apt reads them in
the solving container, and is the judge of what they hold.

Subscriptions: a subscription's files lie at known paths, which the distro's data name. Clouds sell
RHEL without one: the repository files of their update infrastructure (RHUI) name certificates of
their own. Those that ask for an instance's identity too, by a plugin of dnf (AWS, Google), refuse
the container. Source: dnf.conf(5), ``sslclientcert`` and its like.
"""

from __future__ import annotations

import base64
import configparser
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provision.config import PATH as CONFIG_PATH
from provision.config import ArchiveConfig, DistroConfig
from provision.distros.distro import AptArchive, Distro, Entitlement, release_of
from provision.distros.family import Repository
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import glob_in_root, holds_something, in_root, settled_path
from provision.pin import DistroPin

log = logging.getLogger(__name__)

_ONE_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uris>\S+)\s+(?P<suites>\S+)\s*(?P<components>.*)"
)
# In the order in which apt reads them.
_FILES = ("sources.list", "sources.list.d/*.list", "sources.list.d/*.sources")
# apt.conf(5): what apt reads as false.
_FALSE = frozenset({"no", "false", "without", "off", "disable", "0"})
_ARMOR = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
# Names of suites that point at another release as time goes by.
_MOVING = ("oldoldstable", "oldstable", "stable", "testing")


class AptSource(NamedTuple):
    """A suite that apt takes packages from."""

    uri: str
    suite: str
    components: tuple[str, ...] = ()
    # ``Signed-By``: paths, fingerprints, or a key itself; empty: apt's general keys.
    signed_by: str = ""
    # Whether its index counts although it is out of date (``Check-Valid-Until: no``).
    is_snapshot: bool = False


def read_sources(root: Path) -> Iterator[AptSource]:
    """Yield the enabled binary sources of the apt configuration under ``root``.

    What makes no sense is left out, as a broken file of someone else's must not stop a build.
    """
    for pattern in _FILES:
        for name in glob_in_root(root, f"etc/apt/{pattern}"):
            path = in_root(root, name)
            if path.is_file():
                text = _text(path)
                entries = parse_paragraphs(text) if path.suffix == ".sources" else parse_lines(text)
                for fields in entries:
                    yield from _sources(fields, root)


def parse_lines(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the entries of the one-line format, as fields of the other."""
    for line in text.splitlines():
        if match := _ONE_LINE.fullmatch(line.partition("#")[0].strip()):
            words = (match["options"] or "").split()
            options = dict(word.split("=", 1) for word in words if "=" in word)
            yield {**options, "types": "deb", **match.groupdict("")}


def parse_paragraphs(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the paragraphs of the deb822 format."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n[ \t]*\n", plain):
        fields = re.split(r"\n(?![ \t])", paragraph.strip())
        yield {
            name.strip().lower(): value.strip()
            for name, colon, value in (field.partition(":") for field in fields)
            if colon
        }


def _sources(fields: Mapping[str, str], root: Path) -> Iterator[AptSource]:
    if "deb" not in fields.get("types", "").split() or _is_off(fields, "enabled"):
        return
    for uri in fields.get("uris", "").split():
        for suite in fields.get("suites", "").split():
            yield AptSource(
                _mirror(uri, root).rstrip("/"),
                suite,
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", ""),
                _is_off(fields, "check-valid-until"),
            )


def _is_off(fields: Mapping[str, str], name: str) -> bool:
    return fields.get(name, "yes").lower() in _FALSE


def _mirror(uri: str, root: Path) -> str:
    """Return an address, or the first of the list of mirrors that it stands for (cloud images).

    Source: apt-transport-mirror(1).
    """
    scheme, _, path = uri.partition(":")
    mirrors = in_root(root, path)
    if scheme != "mirror+file" or not mirrors.is_file():
        return uri
    places = (line.partition("#")[0].split("\t")[0].strip() for line in _text(mirrors).splitlines())
    return next((place for place in places if _is_remote(place)), uri)


def _is_remote(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


# https://www.rfc-editor.org/rfc/rfc9580#name-forming-ascii-armor
_BLOCK = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?P<body>.*?)-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)


def binary_key(content: bytes, *, name: str) -> bytes:
    """Return a keyring in binary form, for programs that read no armor: debootstrap, gpgv."""
    if not content.lstrip().startswith(_ARMOR):
        return content
    keys = b""
    for block in _BLOCK.finditer(content.decode(errors="replace")):
        lines = [line.strip() for line in block["body"].splitlines()]
        # Headers such as "Version: …" have a colon, the checksum starts with '='.
        data = [line for line in lines if line and ":" not in line]
        try:
            keys += base64.b64decode("".join(d for d in data if d[0] != "="), validate=True)
        except ValueError as error:
            raise ProvisionError(
                f"The key in '{name}' is damaged: {error}.",
                resolution=f"Export it again: gpg --armor --export KEY > {name}",
            ) from error
    if not keys:
        raise ProvisionError(
            f"There is no OpenPGP key in '{name}'.",
            resolution=f"Export one: gpg --armor --export KEY > {name}",
        )
    return keys


def repositories_of(pin: DistroPin, config: DistroConfig, root: Path) -> tuple[Repository, ...]:
    """Return the repositories that are read; none: those that the base image names.

    For the family of apt, each is a suite: at the mirror of provision.toml, else where the
    machine's own apt configuration says. If that is for another release of the same distro, the
    suites of this release are read at the same addresses.
    """
    distro, _ = release_of(pin)
    if distro.apt is None:
        return _of_provision_toml(pin, config, root)
    if config.repositories:
        raise UsageError(
            f"{in_root(root, CONFIG_PATH)}: distros.{pin.id}.repositories: packages of {pin.id}"
            " come from an archive with suites, and such repositories are of dnf and zypper.",
            resolution=f"Remove 'repositories' of [distros.{pin.id}], and name the archive"
            f' instead: [distros.{pin.id}.archive] mirror = "{config.repositories[0].urls[0]}",'
            ' keyring = "/path/of/its/key".',
            details="\n".join(f"repository '{one.id}'" for one in config.repositories),
        )
    return tuple(_suites(pin, distro.apt, config.archive, root))


def _of_provision_toml(pin: DistroPin, config: DistroConfig, root: Path) -> tuple[Repository, ...]:
    data, release = release_of(pin)
    found = []
    for one in config.repositories:
        # 9.4 is a release of 9, as everywhere.
        if one.version is not None and data.release(one.version) != release:
            continue
        keys: dict[str, bytes] = {}
        for name in one.keys:
            path = settled_path(root, name)
            if not path.is_file():
                raise NotFoundError(
                    f"There is no key '{path}', which the repository '{one.id}' names.",
                    resolution=f"Put it there, or correct [distros.{pin.id}] repositories in"
                    f" /{CONFIG_PATH}.",
                )
            # The container's programs read lists of keys, in which a blank or comma ends a name.
            plain = re.sub(r"[^A-Za-z0-9+._-]", "_", path.name)
            keys[f"{len(keys)}-{plain}" if plain in keys else plain] = path.read_bytes()
        signed = data.signed_index if one.signed is None else one.signed
        found.append(Repository(one.id, one.urls, keys, is_signed=signed))
    return tuple(found)


def _suites(
    pin: DistroPin, archive: AptArchive, config: ArchiveConfig, root: Path
) -> list[Repository]:
    sources = _configured(pin, archive, config, root) or _of_apt(pin, archive, config, root)
    found: list[Repository] = []
    for source in sources:
        keys, is_foreign = _keys(source, archive, config, root)
        suite = Repository(
            source.suite,
            (source.uri,),
            keys=keys,
            components=tuple(name for name in source.components if name in archive.own_components),
            is_snapshot=source.is_snapshot or config.snapshot,
            # It may be another's archive, whose index then says so.
            origin=archive.origin if is_foreign else None,
        )
        if suite not in found:
            found.append(suite)
    return found


def _keys(
    source: AptSource, archive: AptArchive, config: ArchiveConfig, root: Path
) -> tuple[dict[str, bytes], bool]:
    """Return the keys that come along, and whether they are none of the distro's.

    Without any, the base image's own keyring counts. An armored key needs a name with ``.asc``.
    """
    if config.keyring:
        path = settled_path(root, config.keyring)
        if not path.is_file():
            raise NotFoundError(
                f"There is no keyring '{path}', which /{CONFIG_PATH} names.",
                resolution=f"Put it there, or correct [distros.….archive] keyring in"
                f" /{CONFIG_PATH}.",
            )
        return _key_files([path]), False
    if "BEGIN PGP" in source.signed_by:
        # An indented field, whose empty line is a dot.
        lines = [line.strip() for line in source.signed_by.splitlines()]
        text = "\n".join("" if line == "." else line for line in lines)
        return {"inline.asc": f"{text}\n".encode()}, True
    # A fingerprint narrows apt's general keys down; it names no file.
    paths = [word for word in re.split(r"[\s,]+", source.signed_by) if word.startswith("/")]
    is_foreign = not {*paths} <= {*archive.keyrings, *archive.host_keyrings}
    files = [in_root(root, name) for name in paths or archive.host_keyrings]
    own = {in_root(root, name).resolve() for name in archive.keyrings}
    if {file.resolve() for file in files} <= own:
        return {}, False
    return _key_files(file for file in files if file.is_file()), is_foreign


def _key_files(paths: Iterable[Path]) -> dict[str, bytes]:
    keys = {}
    for path in paths:
        content = path.read_bytes()
        keys[f"{path.stem}{'.asc' if content.lstrip().startswith(_ARMOR) else '.gpg'}"] = content
    return keys


def _configured(
    pin: DistroPin, archive: AptArchive, config: ArchiveConfig, root: Path
) -> list[AptSource]:
    mirror = config.mirror
    if mirror is None:
        return []
    security = config.security_mirror or (mirror if archive.security_in_archive else None)
    if security is None:
        log.warning(
            "%s names a mirror but no security_mirror for %s: going without security updates",
            root / CONFIG_PATH,
            pin.id,
        )
    places = [(mirror, ""), (mirror, "-updates"), (security, "-security")]
    places += [(mirror, "-backports")] if config.backports else []
    return [AptSource(uri.rstrip("/"), f"{pin.codename}{part}") for uri, part in places if uri]


def _of_apt(
    pin: DistroPin, archive: AptArchive, config: ArchiveConfig, root: Path
) -> list[AptSource]:
    release = pin.codename
    known = {*archive.components, *archive.own_components}
    # What may be the distro's archive, by what can be seen without asking.
    sources = [
        source
        for source in read_sources(root)
        if _is_remote(source.uri) and known.issuperset(source.components)
    ]
    suites = {f"{release}{part}" for part in ("", "-updates", "-security", "-backports")}
    own = [source for source in sources if source.suite in suites]
    if not any(source.suite == release for source in own):
        own = _derived(sources, pin)
    at_release = next((source for source in own if source.suite == release), None)
    if at_release is None:
        raise NotFoundError(
            f"No mirror of {pin.id} {pin.version} ({release}) is known.",
            resolution=f"Name one in /{CONFIG_PATH}: [distros.{pin.id}.archive]"
            ' mirror = "https://…", security_mirror = "https://…".',
            details=f"looked in {root / CONFIG_PATH}, {root / 'etc/apt/sources.list'} and"
            f" {root / 'etc/apt/sources.list.d'}",
        )
    backports = f"{release}-backports"
    if config.backports and not any(source.suite == backports for source in own):
        own.append(at_release._replace(suite=backports))
    return own


def _derived(sources: Iterable[AptSource], pin: DistroPin) -> list[AptSource]:
    """Return sources for a release, at the addresses of another release of the same distro."""
    distro, _ = release_of(pin)
    others = [*(release.codename for release in distro.releases), *_MOVING]
    suites: dict[str, tuple[str, ...]] = {}
    for name in others:
        suites[name] = (pin.codename, f"{pin.codename}-updates")
        suites[f"{name}-security"] = (f"{pin.codename}-security",)
    return [
        source._replace(suite=suite) for source in sources for suite in suites.get(source.suite, ())
    ]


_CERTIFICATES = ("sslclientcert", "sslclientkey", "sslcacert")
_OFF = {"0", "no", "false", "off"}


def entitlements_of(distro: Distro, root: Path) -> dict[str, str]:
    """Return what a host has: path on the host by path in the container."""
    paths = {one.container: in_root(root, one.host) for one in distro.entitlement}
    found = {inside: str(path) for inside, path in paths.items() if holds_something(path)}
    if distro.family == "dnf" and _lacking(distro, found):
        found |= _of_a_cloud(root)
    return found


def lacking_entitlements(distro: Distro, root: Path) -> list[Entitlement]:
    """Return what nothing can be solved without, and the host has not."""
    lacking = _lacking(distro, entitlements_of(distro, root))
    return [] if distro.family == "dnf" and _of_a_cloud(root) else lacking


def _lacking(distro: Distro, found: dict[str, str]) -> list[Entitlement]:
    return [one for one in distro.entitlement if one.required and one.container not in found]


def _of_a_cloud(root: Path) -> dict[str, str]:
    """Return repository files that name a client's certificate, and what they name, if enabled."""
    found: dict[str, str] = {}
    for name in glob_in_root(root, "etc/yum.repos.d/*.repo"):
        named = {
            PurePosixPath(path): in_root(root, path)
            for path in _named_by(in_root(root, name), root)
        }
        files = {str(path): str(place) for path, place in named.items() if place.is_file()}
        if files:
            found |= {f"/{name}": str(in_root(root, name)), **files}
    return found


def _named_by(file: Path, root: Path) -> Iterator[str]:
    """Yield the files that the enabled repositories of a file name; none without a certificate."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        text = file.read_text(errors="replace")
        parser.read_string(text)
    except (OSError, configparser.Error):
        # dnf leaves it out too.
        return
    is_used = False
    for name in parser.sections():
        section = parser[name]
        if section.get("sslclientcert") and section.get("enabled", "1").lower() not in _OFF:
            is_used = True
            yield from (
                path for key in _CERTIFICATES if (path := section.get(key, "")).startswith("/")
            )
            for address in section.get("gpgkey", "").replace(",", " ").split():
                if address.startswith("file:///"):
                    yield address.removeprefix("file://")
    # What stands for $NAME in addresses, such as the minor release that a host stays at.
    for variable in glob_in_root(root, "etc/dnf/vars/*") if is_used else ():
        if f"${variable.name}" in text:
            yield f"/{variable}"
