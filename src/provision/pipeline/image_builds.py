"""From a Pin to its image, and from a distro to its base image."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from provision.build.artifact_image import BuildRequest, Built, build, find
from provision.build.base_image import BaseRequest, find_base
from provision.build.debootstrap import Mirror, make_base
from provision.build.dockerfile import RenderedContext
from provision.build.git_commits import CommitRequest, commits_of, have_commits
from provision.build.logins import GitAccess
from provision.build.package_store import PackageStore
from provision.build.rpm_base_image import make_rpm_base
from provision.distros.debian.distro_archive import uses_archive
from provision.engine.connection import connect
from provision.engine.docker_api import Engine, Image
from provision.engine.transfer import read_file
from provision.errors import NotFoundError, ProvisionError
from provision.files import write_atomic
from provision.kmod.verify import MANIFEST
from provision.pin import BasePin, DistroPin, RunfileSource, keyring_digest
from provision.pipeline.developer_container import developer_request, ensure_developer_image
from provision.pipeline.driver_request import BuildSettings, choose_distro
from provision.pipeline.package_pins import Resolved, render_context
from provision.pipeline.runfiles import have_parts
from provision.pipeline.solving import base_request, open_driver_index, rpm_origin
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, silent

_SHOWN = 12
# Build arguments that every Dockerfile has; Docker leaves them out of the layers' history.
# Source: https://docs.docker.com/reference/dockerfile/#predefined-args
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def module_sums(settings: Settings, engine: Engine, image: Image) -> dict[str, str]:
    """Return the sha256 of an artifact image's modules by path; empty if it can't be read."""
    try:
        manifest = json.loads(read_file(engine, image, str(MANIFEST), state=settings.state))
        return {str(one["path"]): str(one["sha256"]) for one in manifest["modules"]}
    except (ProvisionError, ValueError, KeyError, TypeError):
        return {}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return which modules of two builds of one Pin differ, one line each; none: they are equal.

    Args:
        before: Sums by path, of the build before.
        after: Sums by path, of this one.
    """
    return tuple(
        f"{path}: was {_shown(before.get(path))}, is {_shown(after.get(path))}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )


def explanation(found: tuple[str, ...]) -> str:
    """Return what to say about modules that differ although every input is the same."""
    return (
        "The modules differ from those of the image that was replaced, although the Pin is the"
        f" same: {'; '.join(found)}. So the driver's own build puts something into them that is"
        " not pinned: the time (__DATE__, KBUILD_BUILD_TIMESTAMP), a random number, the order of"
        " files. What to do: find it with 'diffoscope', and set it in the recipe's command."
    )


def _shown(sha256: str | None) -> str:
    return "not there" if sha256 is None else f"{sha256[:_SHOWN]}…"


def open_engine(settings: Settings) -> Engine:
    """Connect to the container engine of a host.

    Raises:
        NotFoundError: None answers.
        ProvisionError: It may not be used.
    """
    return connect(settings.config.engine.host)


def build_image(
    settings: Settings,
    engine: Engine,
    resolved: Resolved,
    how: BuildSettings,
    *,
    progress: Progress = silent,
) -> Built:
    """Build the image of a Pin, unless it exists.

    Raises:
        BuildError: A step failed; says which source line, package or checksum.
        ProvisionError: The engine failed.
    """
    context = render_context(resolved)
    request = BuildRequest(
        pin=resolved.pin,
        files=context.files,
        attach=lambda: downloaded_files(settings, resolved, context, progress=progress),
        state=settings.state,
        build_args=build_arguments(settings, jobs=how.jobs),
        fetch=partial(_fetched, settings, engine, resolved, progress),
        network="none",
        rebuild=how.rebuild,
    )
    replaced = find(engine, resolved.pin) if how.rebuild else None
    before = module_sums(settings, engine, replaced) if replaced else {}
    built = build(engine, request, progress=progress)
    image = engine.image(built.image_id) if before and built.built else None
    if image is None:
        return built
    differing = differences(before, module_sums(settings, engine, image))
    if differing:
        progress(Note(explanation(differing)))
    return replace(built, differing=differing)


def _fetched(
    settings: Settings,
    engine: Engine,
    resolved: Resolved,
    progress: Progress,
    toolchain: Callable[[], str],
) -> Mapping[str, Path]:
    """Return the files of a build context that hold commits of repositories."""
    request = CommitRequest(
        commits_of(resolved.pin.sources),
        PackageStore(settings.state),
        settings.state / "locks",
        resolved.network,
        _proxies(),
        GitAccess(settings.root, settings.state / "git-login"),
    )
    return have_commits(engine, toolchain, request, progress=progress)


def downloaded_files(
    settings: Settings,
    resolved: Resolved,
    context: RenderedContext,
    *,
    progress: Progress = silent,
) -> dict[str, Path]:
    """Return the files of a build context that are not rendered, in the package store.

    Args:
        settings: The host.
        resolved: What is built.
        context: Its context.
        progress: Receives what is downloaded.

    Raises:
        NotFoundError: A package or source is neither in the store nor at any of its addresses.
    """
    store = PackageStore(settings.state)
    sizes = {package.sha256: package.size for package in resolved.pin.closure}
    sources = {s.sha256: s.address for s in resolved.pin.sources if s.address}
    fetched = {
        path: store.fetch(
            sha256,
            (sources[sha256],) if sha256 in sources else resolved.urls.get(sha256, ()),
            name=sources.get(sha256, path.rpartition("/")[2]),
            size=sizes.get(sha256),
            progress=progress,
        )
        for path, sha256 in context.downloads.items()
    }
    _refuse_damaged(resolved, store)
    runfiles = [s for s in resolved.pin.sources if isinstance(s, RunfileSource)]
    made = {
        path: parts[part]
        for source in runfiles
        for parts in [_runfile_parts(settings, source, progress)]
        for path, part in context.parts.items()
    }
    return {**resolved.attached, **fetched, **made}


def _refuse_damaged(resolved: Resolved, store: PackageStore) -> None:
    """Refuse a kernel tree that was damaged since it was put into the package store."""
    damaged = [path for path in resolved.attached.values() if not store.whole(path.name)]
    if damaged:
        raise NotFoundError(
            f"The kernel tree of {resolved.pin.kernel.release} is damaged in the package store.",
            resolution=f"Have it made again: provision resolve {resolved.pin.driver.name} --kernel"
            f" {resolved.pin.kernel.release} --update",
            details="\n".join(map(str, damaged)),
        )


def _runfile_parts(
    settings: Settings, source: RunfileSource, progress: Progress
) -> Mapping[str, Path]:
    def fetch() -> Path:
        return PackageStore(settings.state).fetch(
            source.sha256, (source.url,), name=source.url.rpartition("/")[2], progress=progress
        )

    return have_parts(settings, source, fetch, progress=progress)


def wanted_base(settings: Settings, distro: str | None) -> BaseRequest:
    """Return which base image a distro, or the host's, is built on here.

    Raises:
        NotFoundError: The distro is not supported.
    """
    developer = developer_request(settings, distro)
    return developer or base_request(settings, choose_distro(settings, distro))


def ensure_base_image(
    settings: Settings,
    engine: Engine,
    distro: str | None,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> tuple[BasePin, bool]:
    """Return the base image of a distro, making it where it is missing.

    Args:
        settings: The host.
        engine: Where the image is wanted.
        distro: ``debian:12``; None: the host's.
        replace: Make it again although it is there.
        progress: Receives what goes on.

    Returns:
        The image, and whether it was made.

    Raises:
        NotFoundError: The distro is not supported, the program that makes it is missing, or it is
            not known from which repositories.
        ProvisionError: It could not be made.
    """
    developer = developer_request(settings, distro)
    if developer is not None:
        return ensure_developer_image(
            settings, engine, developer, replace=replace, progress=progress
        )
    chosen = choose_distro(settings, distro)
    request = wanted_base(settings, distro)
    if not replace:
        try:
            return find_base(engine, request, progress=progress), False
        except NotFoundError:
            progress(Note(f"There is no image {request.name}; making it"))
    if not request.can_be_made:
        return find_base(engine, request, progress=progress), False
    return _made_base(settings, engine, chosen, request, progress), True


def _made_base(
    settings: Settings,
    engine: Engine,
    distro: DistroPin,
    request: BaseRequest,
    progress: Progress,
) -> BasePin:
    """Make a base image from the distro's packages; errors as ``ensure_base_image``."""
    if not uses_archive(distro):
        origin = rpm_origin(settings, distro)
        return make_rpm_base(engine, request, origin, state=settings.state, progress=progress)
    index = open_driver_index(settings, None, distro, at_once=False, progress=progress)
    index.close()
    mirror = Mirror(index.mirror, _keyring_file(settings, index.keyring))
    return make_base(engine, request, mirror, state=settings.state, progress=progress)


def _keyring_file(settings: Settings, keyring: bytes | None) -> Path | None:
    """Return the keys as a file, for a program; None: they are the distro's own."""
    if keyring is None:
        return None
    path = settings.state / "archive/keys" / f"{keyring_digest(keyring)}.gpg"
    write_atomic(path, keyring)
    return path


def build_arguments(
    settings: Settings,
    mirror: str | None = None,
    security_mirror: str | None = None,
    *,
    is_snapshot: bool = False,
    jobs: int | None = None,
) -> dict[str, str]:
    """Return the arguments that every Dockerfile of ours takes; none changes the result.

    Args:
        settings: The host.
        mirror: Address of the distro's archive; None: nothing is downloaded.
        security_mirror: Address of its security updates, if there are any.
        is_snapshot: Whether the archive counts although its time of validity is over.
        jobs: Compilers at once; None: what provision.toml says, or one a processor.
    """
    count = jobs or settings.config.engine.jobs or _processors()
    args = {"JOBS": str(count)}
    if mirror:
        args["APT_MIRROR"] = mirror
    if security_mirror:
        args["APT_SECURITY_MIRROR"] = security_mirror
    if is_snapshot:
        args["APT_SNAPSHOT"] = "yes"
    return args | _proxies()


def _proxies() -> dict[str, str]:
    return {name: os.environ[name] for name in _PROXIES if name in os.environ}


def _processors() -> int:
    """Return how many processors this process may use (an engine elsewhere may have others)."""
    return len(os.sched_getaffinity(0))
