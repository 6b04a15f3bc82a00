"""Flatcar's developer container of a release: downloaded, its signature checked, made an image."""

from __future__ import annotations

import re
from pathlib import Path

from provision.build.base_image import BaseRequest
from provision.build.developer_container import make_developer_image
from provision.distros.debian.keyrings import binary_keyring
from provision.distros.kernel_tree.tree_family import release_address
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, UsageError
from provision.fetch import download_signed
from provision.files import in_root, lock
from provision.host import read_facts
from provision.pin import BasePin
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent

FLATCAR = "flatcar"
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){0,3}")
_FILE = "flatcar_developer_container.bin.bz2"
_KEYRING = "/etc/provision/keys/flatcar.asc"
# Source: https://www.flatcar.org/security/image-signing-key/
_FINGERPRINT = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"


def developer_request(settings: Settings, distro: str | None) -> BaseRequest | None:
    """Return which developer container is meant; None: another distro's base image is.

    Args:
        settings: The host.
        distro: ``flatcar:4081.2.0``; None: the host's.

    Raises:
        UsageError: The version is missing, or not valid.
    """
    facts = read_facts(settings.root)
    named = distro or f"{facts.distro.id}:{facts.distro.version}"
    name, _, version = named.partition(":")
    if name != FLATCAR:
        return None
    # It becomes part of an address and of a file's name.
    if not _VERSION.fullmatch(version):
        what = f"'{version}' is no version of Flatcar" if version else "Its version is missing"
        raise UsageError(
            f"{what}.",
            resolution="Give it as os-release has it: provision base flatcar:4081.2.0",
        )
    return BaseRequest(
        distro=FLATCAR,
        version=version,
        codename=FLATCAR,
        architecture=facts.arch,
        reference=f"flatcar-developer:{version}",
    )


def ensure_developer_image(
    settings: Settings,
    engine: Engine,
    request: BaseRequest,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> tuple[BasePin, bool]:
    """Return the developer container as an image, and whether it was made.

    Raises:
        NotFoundError: There is no such release, or the key that signs them is not on the host.
        SignatureError: The file is not signed by that key.
        ProvisionError: A download failed, or the file is not what it should be.
    """
    before = engine.image(request.name)
    if before is not None and not replace:
        return BasePin(image=request.name, digest=before.id), False
    # The download has one name: while one process checks its signature, none may write to it.
    with lock(settings.state / "locks" / "developer-containers"):
        image = engine.image(request.name)
        if image is not None and (before is None or image.id != before.id):
            # By the process that this one waited for.
            return BasePin(image=request.name, digest=image.id), False
        return _made(settings, engine, request, progress), True


def _made(settings: Settings, engine: Engine, request: BaseRequest, progress: Progress) -> BasePin:
    archive = settings.config.distro(FLATCAR).archive
    place = release_address(FLATCAR, request.version, request.architecture, mirror=archive.mirror)
    packed = settings.state / "developer-containers" / f"{request.version}.bin.bz2"
    keyring = _keyring(settings, archive.keyring or _KEYRING)
    download_signed(f"{place}/{_FILE}", keyring=keyring, destination=packed, progress=progress)
    pin = make_developer_image(
        engine, request, packed=packed, state=settings.state, progress=progress
    )
    # Half a gigabyte that is of no use once the image is there.
    packed.unlink()
    return pin


def _keyring(settings: Settings, name: str) -> Path:
    path = in_root(settings.root, name)
    if not path.is_file():
        raise NotFoundError(
            f"The key that signs Flatcar's releases is not there: '{path}'.",
            resolution="Download it from https://www.flatcar.org/security/image-signing-key/,"
            f" compare its fingerprint, and put it there: gpg --show-keys {path} has to say"
            f" {_FINGERPRINT}. Another file can be named as 'keyring' of [distros.flatcar.archive]"
            " in /etc/provision/provision.toml.",
        )
    folder = settings.state / "archive/keys"
    folder.mkdir(parents=True, exist_ok=True)
    return binary_keyring(path, folder)
