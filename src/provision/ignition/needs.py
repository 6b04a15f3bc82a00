"""What a provision.toml names that a machine wouldn't have, and what must not be served."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from provision.config import Config
from provision.errors import ConfigError, Mistake

# What belongs to the image.
_SHIPPED = "/usr/"


def check_config(config: Config, *, file: Path, expected: Collection[str]) -> None:
    """Refuse a provision.toml that can't be given to a machine as it is.

    Args:
        config: What it says.
        file: Where it is, for messages.
        expected: Files of the machine that somebody else puts there.

    Raises:
        ConfigError: It holds a secret, or names a file that would be missing; all are named.
    """
    if secret := [Mistake(key, text) for key, text in _secrets(config)]:
        raise ConfigError(
            str(file),
            secret,
            resolution="Take it out: config.ign can be read by whoever reaches its address, and"
            " stays on the machine.",
        )
    missing = [
        Mistake(key, f"'{path}' would not be on the machine")
        for key, path in _named_files(config)
        if path not in expected and not path.startswith(_SHIPPED)
    ]
    if missing:
        raise ConfigError(
            str(file),
            missing,
            resolution="Put it there by your own configuration, into which this one is merged, and"
            " say so (--expect PATH). Keys are never taken into config.ign.",
        )


def _named_files(config: Config) -> Iterator[tuple[str, str]]:
    signing = config.signing
    files = {"key": signing.key, "certificate": signing.certificate, "pin_file": signing.pin_path}
    for name, path in files.items():
        if path is not None and path.startswith("/"):
            yield f"signing.{name}", path
    for name, distro in config.distros.items():
        if distro.archive.keyring is not None:
            yield f"distros.{name}.archive.keyring", distro.archive.keyring
    for number, folder in enumerate(config.catalogue):
        yield f"catalogue.{number}", folder


def _secrets(config: Config) -> Iterator[tuple[str, str]]:
    text = "has a password in it"
    addresses = {"engine.host": config.engine.host}
    for name, distro in config.distros.items():
        addresses[f"distros.{name}.archive.mirror"] = distro.archive.mirror
        addresses[f"distros.{name}.archive.security_mirror"] = distro.archive.security_mirror
    for key, address in addresses.items():
        if address is not None and urlsplit(address).password is not None:
            yield key, text
