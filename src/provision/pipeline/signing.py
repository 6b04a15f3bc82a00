"""Signs the modules of an artifact on its way into the store, with the key of provision.toml."""

from __future__ import annotations

from pathlib import Path

from provision.manifest import Manifest
from provision.modules.signing import sign
from provision.pipeline.resolution import signing_key
from provision.pipeline.settings import Settings
from provision.progress import Progress, silent


def sign_entry(
    settings: Settings, entry: Path, manifest: Manifest, *, progress: Progress = silent
) -> None:
    """Sign the modules of an artifact that has not become a store entry yet.

    Where its Pin names a key, only if that is the one that provision.toml has: an image that was
    made for another host stays as it is.

    Raises:
        NotFoundError: Key, certificate, PIN or OpenSSL are missing.
        ProvisionError: A module could not be signed.
    """
    pin = manifest.pin
    own = signing_key(settings)
    # A Pin with a closure or a kernel tree names no key: each host signs with its own.
    if own is None or (pin.signing_key != own and not pin.is_signed_by_hosts):
        return
    sign(entry, manifest, settings.config.signing, root=settings.root, progress=progress)
