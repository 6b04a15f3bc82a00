"""Signs the modules of an artifact on its way into the store, with the key of provision.toml."""

from __future__ import annotations

from pathlib import Path

from provision.manifest import Manifest
from provision.modules.sign_file import fetch_sign_file, find_sign_file
from provision.modules.signing import sign
from provision.pipeline.resolution import choose_distro, open_driver_index, signing_key
from provision.pipeline.settings import Settings
from provision.progress import Progress, silent


def sign_entry(
    settings: Settings, entry: Path, manifest: Manifest, *, progress: Progress = silent
) -> None:
    """Sign the modules of an artifact that has not become a store entry yet.

    Only where its Pin was resolved for the key that provision.toml has; an image that was made for
    another host stays as it is.

    Raises:
        NotFoundError: Key, certificate or the kernel's sign-file are missing.
        ProvisionError: A module could not be signed.
    """
    pin = manifest.pin
    if pin.signing_key is None or pin.signing_key != signing_key(settings):
        return
    signing = settings.config.signing
    tool = find_sign_file(pin, root=settings.root)
    if tool is None:
        distro = choose_distro(settings, f"{pin.distro.id}:{pin.distro.version}")
        tool = fetch_sign_file(
            pin,
            lambda: open_driver_index(settings, None, distro, progress=progress),
            cache=settings.state,
            progress=progress,
        )
    sign(entry, manifest, signing, tool, root=settings.root, progress=progress)
