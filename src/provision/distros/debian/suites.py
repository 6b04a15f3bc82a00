"""The suites of a distro's archive, and the apt configuration that says where they are.

Source: sources.list(5) of apt 2.6 and 3.0.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from provision.config import PATH as CONFIG_PATH
from provision.config import ArchiveConfig
from provision.distros.distro import AptArchive
from provision.distros.family import Repository
from provision.distros.known import archive_of, release_of
from provision.errors import NotFoundError, ProvisionError
from provision.files import glob_in_root, in_root, settled_path, write_atomic
from provision.pin import DistroPin

log = logging.getLogger(__name__)

_ONE_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<address>\S+)\s+(?P<suite>\S+)(?P<components>.*)"
)
# What the one-line format calls its options, by their names in the other format.
_OPTION_NAMES = {
    "signed-by": "Signed-By",
    "enabled": "Enabled",
    "check-valid-until": "Check-Valid-Until",
}
# apt.conf(5): what apt reads as false.
_FALSE = frozenset({"no", "false", "without", "off", "disable", "0"})
_ARMOR = "-----BEGIN PGP PUBLIC KEY BLOCK-----"


@dataclass(frozen=True, slots=True)
class AptSource:
    """One archive that apt takes packages from."""

    uri: str
    suite: str
    components: tuple[str, ...]
    # Key files, as named there; empty: apt's general keys.
    signed_by: tuple[str, ...]
    key: str | None
    origin: str
    # Whether its index counts although it is out of date (``Check-Valid-Until: no``).
    snapshot: bool = False


def read_sources(root: Path) -> list[AptSource]:
    """Return the enabled binary sources of the apt configuration under ``root``.

    Lines that make no sense are logged and left out, as one broken file of someone else's
    archive must not stop a build.
    """
    found: list[AptSource] = []
    for pattern, parse in _FILES:
        for name in glob_in_root(root, f"etc/apt/{pattern}"):
            path = in_root(root, name)
            if path.is_file():
                found += parse(_text(path), origin=str(root / name))
    return [resolved for source in found for resolved in _follow_mirror_file(source, root)]


def parse_list(text: str, *, origin: str) -> Iterator[AptSource]:
    """Yield the sources of a file in the one-line format (``sources.list``)."""
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not re.match(r"deb\s", entry):
            continue
        match = _ONE_LINE.fullmatch(entry)
        if match is None:
            log.warning("%s:%d: not a source that apt would understand", origin, number)
            continue
        options = dict(
            option.split("=", 1) for option in (match["options"] or "").split() if "=" in option
        )
        named = {_OPTION_NAMES.get(key, key): value for key, value in options.items()}
        yield from _sources(
            [match["address"]], [match["suite"]], match["components"].split(), named, origin
        )


def parse_deb822(text: str, *, origin: str) -> Iterator[AptSource]:
    """Yield the sources of a file in the deb822 format (``*.sources``)."""
    from debian.deb822 import Deb822  # noqa: PLC0415 - 5 % of a run with nothing to do

    for stanza in Deb822.iter_paragraphs(text.splitlines(keepends=True), use_apt_pkg=False):
        fields = {str(key): str(value) for key, value in stanza.items()}
        fold = {key.lower(): value for key, value in fields.items()}
        if "deb" not in fold.get("types", "").split():
            continue
        named = {name: fold[key] for key, name in _OPTION_NAMES.items() if key in fold}
        yield from _sources(
            fold.get("uris", "").split(),
            fold.get("suites", "").split(),
            fold.get("components", "").split(),
            named,
            origin,
        )


def _sources(
    uris: Iterable[str],
    suites: Iterable[str],
    components: Iterable[str],
    options: Mapping[str, str],
    origin: str,
) -> Iterator[AptSource]:
    if options.get("Enabled", "yes").lower() in _FALSE:
        return
    is_snapshot = options.get("Check-Valid-Until", "yes").lower() in _FALSE
    signed_by = options.get("Signed-By", "")
    key = signed_by if _ARMOR in signed_by else None
    # A fingerprint narrows apt's general keys down; it names no file.
    files = () if key else tuple(w for w in re.split(r"[\s,]+", signed_by) if w.startswith("/"))
    sections = tuple(components)
    for uri in uris:
        for suite in suites:
            yield AptSource(
                uri.rstrip("/"), suite, sections, files, key, origin, snapshot=is_snapshot
            )


def _follow_mirror_file(source: AptSource, root: Path) -> Iterator[AptSource]:
    """Yield a source, or what the list of mirrors says that it stands for (cloud images).

    Source: apt-transport-mirror(1).
    """
    scheme, _, path = source.uri.partition(":")
    if scheme != "mirror+file":
        yield source
        return
    mirrors = in_root(root, path)
    if not mirrors.is_file():
        log.warning("%s: there is no list of mirrors '%s'", source.origin, mirrors)
        return
    for line in _text(mirrors).splitlines():
        uri = line.partition("#")[0].split("\t")[0].strip().rstrip("/")
        if uri.startswith(("http://", "https://")):
            yield replace(source, uri=uri)
            return


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


# In the order in which apt reads them.
_FILES = (
    ("sources.list", parse_list),
    ("sources.list.d/*.list", parse_list),
    ("sources.list.d/*.sources", parse_deb822),
)


# https://www.rfc-editor.org/rfc/rfc9580#name-forming-ascii-armor
_BLOCK = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?P<body>.*?)-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)


def dearmor(text: str, *, name: str) -> bytes:
    """Return the keys of an armored text in binary form.

    Args:
        text: One or more blocks. As a deb822 field it is indented, and its empty line is a dot.
    """
    keys = b""
    for block in _BLOCK.finditer(text):
        lines = [line.strip() for line in block["body"].splitlines()]
        # Headers such as "Version: …" have a colon, the checksum starts with '='.
        data = [line for line in lines if line not in {"", "."} and ":" not in line]
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


def binary_keyring(path: Path, folder: Path) -> Path:
    """Return a key file itself, or a binary copy of it in ``folder`` where it is armored."""
    content = path.read_bytes()
    if not content.lstrip().startswith(b"-----BEGIN PGP"):
        return path
    return store_key(content.decode(errors="replace"), folder, name=str(path))


def store_key(text: str, folder: Path, *, name: str) -> Path:
    """Write an armored key as a binary file into ``folder`` and return its path."""
    binary = dearmor(text, name=name)
    path = folder / f"{hashlib.sha256(binary).hexdigest()}.gpg"
    write_atomic(path, binary)
    return path


# Names of suites that point at another release as time goes by.
_MOVING = ("oldoldstable", "oldstable", "stable", "testing")


def suite_addresses(
    pin: DistroPin, *, config: ArchiveConfig, root: Path, key_folder: Path
) -> list[Repository]:
    """Return the suites of a distro's archive as repositories, without components.

    A mirror in ``provision.toml`` takes precedence. Otherwise, the machine's own apt configuration
    names the addresses. If it is for another release of the same distro, the suites of this release
    are read at the same addresses. A suite has keys where they are not the distro's own, which the
    base image has.

    Args:
        key_folder: Folder for binary copies of keys that apt has as text.
    """
    archive = archive_of(pin)
    # One keyring may have two names (Debian 13: .gpg is a link to .pgp).
    own = {in_root(root, name).resolve() for name in archive.keyrings}
    sources = _configured(pin, archive, config, root) or _of_apt(pin, archive, config, root)
    default = _keyrings(pin, archive, config, root, key_folder)
    if config.keyring:
        # What an admin names counts as it is here, and not as the base image has it.
        own -= {key.resolve() for key in default}
    found: list[Repository] = []
    for source in sources:
        keys = default
        if source.key:
            keys = (store_key(source.key, key_folder, name=source.origin),)
        elif source.signed_by:
            files = [in_root(root, name) for name in source.signed_by]
            keys = tuple(binary_keyring(file, key_folder) for file in files if file.is_file())
        is_foreign = {key.resolve() for key in keys} != {key.resolve() for key in default}
        keys = keys or default
        has_own_keys = not {key.resolve() for key in keys} <= own
        suite = Repository(
            source.suite,
            (source.uri,),
            keys={key.name: key.read_bytes() for key in keys} if has_own_keys else {},
            is_snapshot=source.snapshot or config.snapshot,
            # It may be another's archive, whose index then says so.
            origin=archive.origin if is_foreign else None,
        )
        if suite not in found:
            found.append(suite)
    return found


def _configured(
    pin: DistroPin, archive: AptArchive, config: ArchiveConfig, root: Path
) -> list[AptSource]:
    """Return the suites at the mirrors that provision.toml names."""
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
    return [
        AptSource(uri.rstrip("/"), f"{pin.codename}{part}", (), (), None, str(CONFIG_PATH))
        for uri, part in places
        if uri
    ]


def _of_apt(
    pin: DistroPin, archive: AptArchive, config: ArchiveConfig, root: Path
) -> list[AptSource]:
    """Return the suites that the machine's own apt configuration names."""
    release = pin.codename
    # What may be the distro's archive, by what can be seen without asking.
    sources = [
        source
        for source in read_sources(root)
        if source.uri.startswith(("http://", "https://"))
        and set(source.components) <= set(archive.components)
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
        own.append(replace(at_release, suite=backports))
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
        replace(source, suite=suite) for source in sources for suite in suites.get(source.suite, ())
    ]


def _keyrings(
    pin: DistroPin, archive: AptArchive, config: ArchiveConfig, root: Path, key_folder: Path
) -> tuple[Path, ...]:
    names = (config.keyring,) if config.keyring else archive.keyrings
    for name in names:
        path = settled_path(root, name)
        if path.is_file():
            return (binary_keyring(path, key_folder),)
    raise NotFoundError(
        f"The keys that sign the archive of {pin.id} were not found.",
        resolution=f"Install the package '{archive.keyring_package}', or name a keyring file in"
        f' /{CONFIG_PATH}: [distros.{pin.id}.archive] keyring = "…".',
        details="\n".join(f"looked for {root / name.lstrip('/')}" for name in names),
    )
