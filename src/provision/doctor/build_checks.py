"""Problems of builds: kernels, headers, compilers, distros."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.build.dockerfile import template_family
from provision.build.workspace import default_cache
from provision.distros import distro_named, find_distro
from provision.distros.repositories import lacking_entitlements
from provision.doctor.observation import (
    Finding,
    Observation,
    always,
    check,
    installed,
    recipes,
)
from provision.errors import NotFoundError
from provision.host.facts import BUILD_SOCKETS
from provision.sources.upstream import (
    ended_branch,
    kept,
    known_branches,
    outdated_tables,
    today,
)

# linux_banner of init/version.c: "(gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld …)".
_GCC = re.compile(r"gcc\D*?(?:-\d+)?[^)]*\)\s+(\d+)\.")
_MAJOR = re.compile(r"(\d+)")
_LISTENS = 0x10000  # SO_ACCEPTCON
# The units that have an engine listen.
_STARTED_BY = {"docker": "docker", "podman": "podman.socket"}


@check("The compiler that built the kernel also built the modules", of=installed)
def compiler(host: Observation) -> Iterator[Finding]:
    banner = _GCC.search(host.text("proc/version") or "")
    for driver, _entry, manifest in host.installed():
        name = manifest.pin.compiler.name if manifest.pin.compiler else ""
        used = _MAJOR.search(name)
        if banner and used and used[1] != banner[1]:
            yield driver.warn(
                f"built by {name}, and the running kernel by gcc {banner[1]}",
                "another compiler may lay out shared structures differently",
                f"build it, then install its image: provision build --rebuild {driver.name};"
                " provision install --again IMAGE",
            )


@check(
    "No driver is known to fail on the running and the next kernels",
    of=lambda host: any(driver.recipe and driver.manifest for driver in host.drivers),
)
def kernel_range(host: Observation) -> Iterator[Finding]:
    for driver in host.drivers:
        if driver.recipe is None or driver.manifest is None:
            continue
        built = driver.manifest.pin.driver
        version = built.version
        for release in driver.seen.artifacts:
            found = driver.recipe.standing(
                version=version, flavour=built.flavour, kernel_release=release
            )
            if found.known == "fails" and found.row is not None:
                yield driver.warn(
                    f"{version} is known to fail on {release}",
                    f"{found.row.reason}",
                    f"use a version that works ('provision drivers kernels {driver.name}' lists"
                    " them), or keep the older kernel",
                )


@check("The vendor still supports the branch of each driver", of=recipes)
def branch(host: Observation) -> Iterator[Finding]:
    for driver in host.drivers:
        configured = host.config.drivers.get(driver.name)
        version = driver.manifest.pin.driver.version if driver.manifest else None
        version = version or (configured.version if configured else None)
        if driver.recipe is None or version is None:
            continue
        # The vendor's last answer: a check uses no network.
        upstream = driver.recipe.upstream
        readings = kept(upstream, machine=host.facts.arch, distro=None, folder=default_cache())
        branches = known_branches(upstream, readings)
        if ended := ended_branch(driver.name, version, branches, today()):
            yield driver.warn(
                ended.message,
                "its vendor no longer corrects it, nor makes it build on newer kernels",
                ended.resolution,
            )


@check("What each driver's recipe says of its vendor is not older than a year", of=recipes)
def old_tables(host: Observation) -> Iterator[Finding]:
    for driver in host.drivers:
        if driver.recipe is None:
            continue
        for found in outdated_tables(driver.recipe, today()):
            yield driver.warn(
                found.message,
                "where a vendor does not answer, or does not say, its table counts",
                found.resolution,
            )


@check("Drivers can be built for the kernels of this distro and release", of=always)
def distro(host: Observation) -> Iterator[Finding]:
    if host.config.tree_of(host.facts.kernel or "") is not None:
        return
    known = distro_named(_kernel_distro(host))
    try:
        if known is None or known.family != "tree":
            template_family(_kernel_distro(host))
        if known is not None:
            find_distro(_release(host))
    except NotFoundError as error:
        yield Finding(
            "warn",
            error.message.rstrip("."),
            "nothing can be built for this host's kernels",
            error.resolution or "build on a host with a supported distro",
        )


@check(
    "A host without a package manager has a configured source of headers or images",
    of=lambda host: host.facts.immutable,
)
def headers_source(host: Observation) -> Iterator[Finding]:
    distro_id = _kernel_distro(host)
    settings = host.config.distro(distro_id)
    data = distro_named(distro_id)
    # Base images of other families contain their repositories; suites of apt are the host's.
    in_image = data is not None and data.apt is None
    known = settings.archive.mirror or settings.repositories or in_image
    registry = host.config.registry
    has_images = registry.address is not None or registry.folders
    if not known and not has_images:
        yield Finding(
            "warn",
            f"this host is immutable ({host.facts.immutable}), and provision.toml names neither a"
            " registry nor an archive",
            "the host has no package sources for headers",
            f"set [distros.{distro_id}.archive] mirror, or [registry] address, in"
            " /etc/provision/provision.toml",
        )


@check(
    "A host whose distro needs a subscription has one, or names its own repositories",
    of=lambda host: known.entitlement if (known := distro_named(_kernel_distro(host))) else None,
)
def entitlement(host: Observation) -> Iterator[Finding]:
    distro_id = _kernel_distro(host)
    known = distro_named(distro_id)
    if known is None or host.config.distro(distro_id).repositories:
        return
    for one in lacking_entitlements(known, host.root):
        yield Finding(
            "warn",
            f"{one.host} is missing or empty, and the repositories of {known.name} need it",
            "the headers of its kernels can't be downloaded without it",
            f"register this host, or name a mirror: [distros.{distro_id}] repositories in"
            " /etc/provision/provision.toml",
        )


def _kernel_distro(host: Observation) -> str:
    return _release(host).partition(":")[0]


def _release(host: Observation) -> str:
    own = host.facts.distro
    return host.config.kernel_distro or f"{own.id}:{own.version}"


@check(
    "A container engine listens for builds",
    of=lambda host: host.drivers and host.config.policy.build != "never",
)
def engine(host: Observation) -> Iterator[Finding]:
    configured = host.config.engine.host
    if configured and not configured.startswith("unix://"):
        # An engine on another machine: no check uses the network.
        return
    sockets = (configured.removeprefix("unix://"),) if configured else BUILD_SOCKETS
    listening = _listening(host)
    if listening is None:
        yield Finding(
            "unknown",
            "which sockets are listened to can't be read",
            "/proc/net/unix is missing",
            "run this on the host itself",
        )
    elif not listening & {_without_var(path) for path in sockets}:
        installed = {engine.name for engine in host.facts.engines} & _STARTED_BY.keys()
        yield Finding(
            "warn",
            f"nothing listens on {' or '.join(sorted(sockets))}",
            "modules are built in containers, also those for the next kernel",
            " or ".join(f"systemctl enable --now {_STARTED_BY[name]}" for name in sorted(installed))
            or "install Docker or podman, or name an engine: [engine] host in provision.toml",
        )


def _listening(host: Observation) -> set[str] | None:
    """Return the sockets that something listens on; connecting would start their service.

    Source: net/unix/af_unix.c (unix_seq_show) and include/uapi/linux/net.h (SO_ACCEPTCON).
    """
    text = host.text("proc/net/unix")
    if text is None:
        return None
    return {
        _without_var(name)
        for _num, _references, _protocol, flags, _type, _state, _inode, *names in map(
            str.split, text.splitlines()[1:]
        )
        for name in names
        if int(flags, 16) & _LISTENS
    }


def _without_var(path: str) -> str:
    # /var/run is a link to /run; a socket has the name that its service gave it.
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
