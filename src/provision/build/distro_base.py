"""The base image of a build: the one that is here, a registry's, or one made from packages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from provision.build.base_image import BaseRequest, find_base, named_base
from provision.build.bootstrap import Mirror, make_apt_base, make_rpm_base
from provision.build.developer_container import FLATCAR, ensure_developer_image
from provision.build.solving import rpm_origin, suites_of
from provision.build.workspace import Settings
from provision.distros import find_distro
from provision.distros.debian.distro_archive import uses_archive
from provision.distros.debian.suites import SuiteAddress
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError
from provision.files import write_atomic
from provision.pin import BasePin
from provision.progress import Note, Progress, silent


def ensure_distro_base(
    settings: Settings,
    engine: Callable[[], Engine],
    request: BaseRequest,
    *,
    progress: Progress = silent,
) -> BasePin:
    """Return a base image; it is made if it is neither here nor in its registry.

    debootstrap, dnf or zypper of this machine makes it from the distro's packages, and Flatcar's
    from the developer container of the release.

    Args:
        engine: Connects to the engine; not called for an image that is named by its digest.
    """
    if (named := named_base(request)) is not None:
        return named
    connected = engine()
    try:
        return find_base(connected, request, progress=progress)
    except NotFoundError:
        if not request.can_be_made:
            raise
    progress(Note(f"There is no image {request.name}; making it"))
    if request.distro == FLATCAR:
        return ensure_developer_image(settings, connected, request, progress=progress)
    return _made(settings, connected, request, progress)


def _made(settings: Settings, engine: Engine, request: BaseRequest, progress: Progress) -> BasePin:
    distro = find_distro(f"{request.distro}:{request.version}")
    if not uses_archive(distro):
        origin = rpm_origin(settings, distro)
        return make_rpm_base(engine, request, origin, state=settings.state, progress=progress)
    suites = [one for one in suites_of(settings, distro) if one.suite == distro.codename]
    # Rather not one that may be another's archive.
    suite = min(suites, key=lambda one: one.origin is not None)
    source = Mirror(suite.uri, _keyring_file(settings, suite) if suite.has_own_keys else None)
    return make_apt_base(engine, request, source, state=settings.state, progress=progress)


def _keyring_file(settings: Settings, suite: SuiteAddress) -> Path:
    """Write the keys that sign a suite to one file.

    Binary keyrings are sequences of keys:
    https://www.rfc-editor.org/rfc/rfc9580#section-10.1
    """
    keyring = b"".join(file.read_bytes() for file in suite.keyrings)
    path = settings.state / "archive/keys" / f"{hashlib.sha256(keyring).hexdigest()}.gpg"
    write_atomic(path, keyring)
    return path
