"""What a host's settings say of a distro: base image, repositories, request to its solver."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from provision import distros
from provision.build.base_image import BaseRequest, find_base, image_for, named_base
from provision.build.bootstrap import Mirror, RpmOrigin, make_apt_base, make_rpm_base
from provision.build.developer_container import FLATCAR, ensure_developer_image
from provision.build.package_store import closure_key
from provision.build.solve import SolveRequest
from provision.build.workspace import Settings
from provision.distros import find_distro
from provision.distros.debian.suites import SuiteAddress, suite_addresses
from provision.distros.entitlements import entitlements_of
from provision.distros.kernel_tree import Toolchain
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, UsageError
from provision.files import in_root, write_atomic
from provision.host.facts import read_facts
from provision.pin import BasePin, DistroPin
from provision.progress import Note, Progress, silent

_NO_NAME = re.compile(r"[^A-Za-z0-9+._-]")


def solve_request(
    settings: Settings,
    distro: DistroPin,
    base: BasePin,
    *,
    kernel: str = "",
    packages: Iterable[str] = (),
    repositories: tuple[distros.Repository, ...] = (),
    network: str | None = None,
    toolchain: Toolchain | None = None,
) -> SolveRequest:
    """Return the request to a distro's solver, which runs in a container of a base image.

    Args:
        kernel: The kernel's release; empty: kernels are only listed.
        packages: Further packages that a recipe needs, by Debian's names.
        toolchain: The compiler for a kernel tree; None: the headers are packages.
    """
    data, release = distros.release_of(distro)
    more = toolchain.packages if toolchain else ()
    return SolveRequest(
        distro=data,
        release=release,
        base=base,
        kernel=kernel,
        architecture=settings.architecture,
        tools=data.build_tools(release, (*packages, *more)),
        repositories=repositories,
        root=settings.root,
        network=network or settings.config.engine.network,
        toolchain=toolchain,
        archive_mirror=settings.config.distro(distro.id).archive.mirror,
    )


def suites_of(settings: Settings, distro: DistroPin) -> list[SuiteAddress]:
    """Return the suites of a distro's archive."""
    _refuse_repositories(settings, distro)
    return suite_addresses(
        distro,
        config=settings.config.distro(distro.id).archive,
        root=settings.root,
        key_folder=settings.state / "archive/keys",
    )


def archive_repositories(
    suites: Iterable[SuiteAddress], components: tuple[str, ...]
) -> tuple[distros.Repository, ...]:
    """Return the suites of an archive as repositories for a distro's solver."""
    return tuple(
        distros.Repository(
            suite.suite,
            (suite.uri,),
            keys={file.name: file.read_bytes() for file in suite.keyrings}
            if suite.has_own_keys
            else {},
            components=components,
            is_snapshot=suite.snapshot,
            origin=suite.origin,
        )
        for suite in suites
    )


def configured_repositories(
    settings: Settings, distro: DistroPin
) -> tuple[distros.Repository, ...]:
    """Return the repositories that provision.toml names for a release, with their keys."""
    data, release = distros.release_of(distro)
    found = []
    for one in settings.config.distro(distro.id).repositories:
        # 9.4 is a release of 9, as everywhere.
        if one.version is not None and data.release(one.version) != release:
            continue
        keys: dict[str, bytes] = {}
        for name in one.keys:
            path = in_root(settings.root, name)
            if not path.is_file():
                raise NotFoundError(
                    f"There is no key '{path}', which the repository '{one.id}' names.",
                    resolution=f"Put it there, or correct [distros.{distro.id}] repositories in"
                    " /etc/provision/provision.toml.",
                )
            keys[_key_name(path, keys)] = path.read_bytes()
        signed = data.signed_index if one.signed is None else one.signed
        found.append(distros.Repository(one.id, one.urls, keys, is_signed=signed))
    return tuple(found)


def _key_name(path: Path, others: Container[str]) -> str:
    """Return a name for a key that is unique in its repository, and that the container can read.

    Its programs read lists of keys, in which a blank or comma ends a name.
    """
    name = _NO_NAME.sub("_", path.name)
    return f"{closure_key({'key': str(path)})[:12]}-{name}" if name in others else name


def is_entitled(settings: Settings, distro: DistroPin) -> bool:
    """Return whether the host may use further repositories, which only the solver reads."""
    data, _release = distros.release_of(distro)
    return bool(entitlements_of(data, settings.root))


def base_request(
    settings: Settings, distro: DistroPin, *, reference: str | None = None
) -> BaseRequest:
    """Return the base image on which a distro is built here."""
    # For a build in a kernel tree, provision may have no data of the distro.
    data = distros.distro_named(distro.id)
    release = data.release(distro.version) if data else None
    if data and release and data.family == "tree" and release.version != distro.version:
        # These distros have an image for each version, and none for a whole release.
        release = None
    configured = _configured_image(settings, distro, data)
    apt = data.apt if data else None
    published = (
        image_for(settings.architecture, release.image) if release and release.image else None
    )
    return BaseRequest(
        distro=distro.id,
        version=distro.version,
        codename=distro.codename,
        architecture=settings.architecture,
        reference=reference or configured or published,
        # Not under a name that an admin chose: it stands for something else.
        can_be_made=not (reference or configured)
        and (apt is not None or bool(data and data.base_packages)),
        script=apt.debootstrap_script if apt else None,
    )


def _configured_image(
    settings: Settings, distro: DistroPin, data: distros.Distro | None
) -> str | None:
    """Return the base image that provision.toml names; its ``9.4`` is a release of 9 too."""
    images = settings.config.distro(distro.id).base_images
    if distro.version in images or data is None or data.family == "tree":
        return images.get(distro.version)
    release = data.release(distro.version)
    return next((image for name, image in images.items() if data.release(name) == release), None)


def rpm_origin(settings: Settings, distro: DistroPin) -> RpmOrigin:
    """Return the repositories from which dnf or zypper makes a base image."""
    data, release = distros.release_of(distro)
    own = configured_repositories(settings, distro)
    facts = read_facts(settings.root).distro
    full = facts.version if data.release(facts.version or "") == release else None
    version = full if facts.id == distro.id and full else release.version
    keyless = [one.id for one in own if not one.keys]
    if keyless:
        raise UsageError(
            f"The repositories {', '.join(keyless)} of [distros.{distro.id}] name no key, and there"
            " is no base image yet that would have the distro's.",
            resolution="Name the distro's key in /etc/provision/provision.toml: keys ="
            f' ["/path/of/its/key"]; {data.name} publishes it on its site.',
        )
    if own:
        return RpmOrigin(data, version, own)
    place = "etc/zypp/repos.d" if data.family == "zypper" else "etc/yum.repos.d"
    configured = in_root(settings.root, place)
    if facts.id != distro.id or full is None or not configured.is_dir():
        raise NotFoundError(
            f"It is not known from which repositories a base image of {data.name}"
            f" {release.version} can be made: this machine is no such host.",
            resolution="Name its repositories, with the keys that sign their packages, in"
            f" /etc/provision/provision.toml: [distros.{distro.id}] repositories ="
            ' [{ id = "…", urls = ["https://…"], keys = ["/path/of/its/key"] }]; or pull an image'
            f" where that is possible ({release.image}) and docker load it here.",
        )
    return RpmOrigin(data, version, configured=configured)


def _refuse_repositories(settings: Settings, distro: DistroPin) -> None:
    named = settings.config.distro(distro.id).repositories
    if not named:
        return
    path = in_root(settings.root, "etc/provision/provision.toml")
    first = named[0].urls[0]
    raise UsageError(
        f"{path}: distros.{distro.id}.repositories: packages of {distro.id} come from an archive"
        " with suites, and such repositories are of dnf and zypper.",
        resolution=f"Remove 'repositories' of [distros.{distro.id}], and name the archive instead:"
        f' [distros.{distro.id}.archive] mirror = "{first}", keyring = "/path/of/its/key".',
        details="\n".join(f"repository '{one.id}'" for one in named),
    )


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
    if not distros.uses_archive(distro):
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
