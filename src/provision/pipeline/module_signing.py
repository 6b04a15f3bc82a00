"""Signs the modules of an artifact on its way into the store, with the key of provision.toml."""

from __future__ import annotations

from pathlib import Path

from provision.files import in_root
from provision.kmod.sign import fingerprint, sign_modules, verify_signatures
from provision.manifest import Manifest
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent


def is_signed_here(settings: Settings, entry: Path, manifest: Manifest) -> bool:
    """Return whether an entry's modules carry the signatures that this host would give them.

    A key is no part of a Pin with a closure: where provision.toml names another key now, the
    entry stays the right one, and only its signatures are of before.

    Raises:
        NotFoundError: There is no certificate, or no ``openssl``.
        OSError: A module can't be read.
    """
    certificate = settings.config.signing.certificate
    if certificate is None or not manifest.pin.closure:
        return True
    path = in_root(settings.root, certificate)
    return not verify_signatures(entry, manifest, path)


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
    sign_modules(entry, manifest, settings.config.signing, root=settings.root, progress=progress)


def signing_key(settings: Settings) -> str | None:
    """Return the fingerprint of the key that modules are signed with; None: they are not.

    Raises:
        NotFoundError: provision.toml names a certificate that is not there.
    """
    certificate = settings.config.signing.certificate
    if certificate is None:
        return None
    return fingerprint(in_root(settings.root, certificate))
