"""Problems of a host around its drivers: libraries, units, disk, builds, settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from provision.agent.status import NAME_A_DRIVER, ArtifactStatus
from provision.build.dockerfile import template_family
from provision.build.workspace import default_cache
from provision.catalogue.fields import DraDriver
from provision.distros.distro import all_distros, distro_named, find_distro
from provision.distros.repositories import lacking_entitlements
from provision.doctor.observation import (
    Driver,
    Finding,
    Observation,
    always,
    check,
    drivers,
    installed,
    recipes,
)
from provision.errors import ConfigError, NotFoundError, redact
from provision.files import glob_in_root, in_root
from provision.host import STORE
from provision.host.facts import BUILD_SOCKETS, find_qemu, qemu_of
from provision.kmod.guest import how_to_install
from provision.manifest import Manifest
from provision.registry.signatures import settled_keys
from provision.sources.upstream import (
    ended_branch,
    kept,
    known_branches,
    outdated_tables,
    today,
)
from provision.store.layout import UNITS
from provision.store.units import PACKAGED_UNITS, kernel_hooks
from provision.trust import distrusted

_BOOT = "provision-boot.service"
_ENABLED = {
    _BOOT: "nothing loads the drivers at boot",
    "provision-kernel.path": "nothing prepares drivers for a new kernel",
    "provision-apply.timer": "nothing makes missing artifacts after a boot",
    "provision-repeat.timer": "nothing makes missing artifacts",
}
_STARTED = re.compile(r"^ExecStart=(/\S+) apply\b", re.MULTILINE)
# Installed only if the settings ask for it.
_CDI = "provision-cdi.path"
# Where distros keep libraries.
_LIBRARIES = ("usr/lib", "usr/lib64", "usr/lib/*-linux-gnu", "usr/local/lib")
# Of the kubelet.
_KUBELET, _LOGS = "var/lib/kubelet", "var/log/pods"
_RUNTIME = "oci-decorator"
_DAEMON_JSON = "etc/docker/daemon.json"
_DROP_IN = "etc/containers/containers.conf.d/50-oci-decorator.conf"
# In the order in which podman reads them: containers.conf(5).
_CONTAINERS_CONF = (
    "usr/share/containers/containers.conf",
    "usr/share/containers/containers.conf.d/*.conf",
    "etc/containers/containers.conf",
    "etc/containers/containers.conf.d/*.conf",
)
_FREE = 2 << 30


@check("Each driver works, and will after the next boot, as 'provision status' says", of=always)
def status(host: Observation) -> Iterator[Finding]:
    if not host.drivers:
        yield Finding("unknown", "nothing is configured", "no driver is installed", NAME_A_DRIVER)
    elif (error := host.status.error) is not None:
        yield Finding("unknown", error.message, error.details, error.resolution)
    for note in host.status.kernels.notes if host.drivers else ():
        yield Finding("unknown", note, "nothing is prepared for a kernel that is not known", None)
    for driver, shown in zip(host.drivers, host.status.drivers, strict=True):
        for note in shown.notes:
            yield driver.warn(note, None, None)
        if (other := shown.other) is not None:
            yield driver.warn(
                other.seen,
                "programs that load modules by name, such as udev, load that copy; and DKMS reports"
                " success where it skips a kernel without headers",
                other.resolution,
            )
        for artifact in shown.kernels:
            yield from _of_artifact(driver, artifact)


def _of_artifact(driver: Driver, artifact: ArtifactStatus) -> Iterator[Finding]:
    state, failure = artifact.state, artifact.failure
    seen = " ".join(filter(None, (f"for {artifact.release} it is {state}:", artifact.reason)))
    cause, cure = failure.details if failure else None, artifact.resolution
    if failure is not None and failure.log:
        cure = f"{cure or 'See why'}; the whole output is in {failure.log}"
    is_waiting = state == "reboot-required"
    is_less = state == "ready" and artifact.reason is not None
    is_damaged = driver.seen.artifacts[artifact.release].damage is not None
    if state in {"failed", "missing"} or is_damaged or not (artifact.is_ready or is_waiting):
        yield driver.fail(seen, cause, cure)
    elif is_waiting or is_less or failure or artifact.distrust or driver.seen.unknown:
        yield driver.warn(seen, cause, cure)
    elif artifact.unsigned is not None:
        yield driver.warn(
            f"the artifact for {artifact.release} is unsigned",
            f"it came from {artifact.unsigned}, and no trusted key has signed that image",
            f"sign the image (provision registry sign), then pull it again: provision registry"
            f" pull {artifact.unsigned}",
        )


@check("The host's own libraries of a driver have the version of its modules", of=installed)
def host_libraries(host: Observation) -> Iterator[Finding]:
    folders = [
        in_root(host.root, name)
        for pattern in _LIBRARIES
        for name in glob_in_root(host.root, pattern)
    ]
    for driver, _entry, manifest in host.installed():
        version = manifest.pin.driver.version
        stems = {name for f in manifest.files if (name := _stem(f.path, version))}
        other = [
            path
            for folder in folders
            for stem in sorted(stems)
            for path in sorted(folder.glob(f"{stem}[0-9]*.[0-9]*"))
            if not path.is_symlink() and path.name != f"{stem}{version}"
        ]
        if other:
            yield driver.warn(
                f"/{other[0].relative_to(host.root)} is not of version {version}",
                "a package or a vendor's installer installed another user space; programs that use"
                " it fail with 'driver/library version mismatch'",
                "remove that package; the folder of the driver's own libraries is in"
                f" /etc/ld.so.conf.d/provision-{driver.name}.conf",
            )


@check("No process still uses files of an artifact that is no longer in use", of=drivers)
def old_files(host: Observation) -> Iterator[Finding]:
    store = f"/{STORE}/"
    current = {entry.name for _driver, entry, _manifest in host.installed()}
    for process in sorted(in_root(host.root, "proc").glob("[0-9]*")):
        used = {
            (parts[0], parts[1])
            for path in _mapped(process)
            if path.startswith(store)
            and len(parts := path.removeprefix(store).split("/")) > 1
            and parts[1] not in current
        }
        for driver, digest in sorted(used):
            name = host.text(f"proc/{process.name}/comm") or "?"
            yield Finding(
                "warn",
                f"{name} (process {process.name}) still uses {digest}",
                "it was started before the driver changed; with new modules it fails with 'version"
                " mismatch'",
                "restart it",
                driver,
            )


@check("The units are installed and enabled, and only root may change what they start", of=drivers)
def units(host: Observation) -> Iterator[Finding]:
    enabled = {link.name for link in _enabled(host, "provision-*")}
    expected = dict(_ENABLED)
    if any(in_root(host.root, folder / _CDI).is_file() for folder in (UNITS, PACKAGED_UNITS)):
        expected[_CDI] = "engines see the CDI devices of an earlier driver"
    missing = {name: text for name, text in expected.items() if name not in enabled}
    if missing:
        yield Finding(
            "warn",
            f"not enabled: {', '.join(missing)}",
            "; ".join(missing.values()),
            "have them installed and enabled: provision units install",
        )
    hooks = kernel_hooks(host.root) if enabled else ()
    for hook in (one for one in hooks if not in_root(host.root, one).is_file()):
        yield Finding(
            "warn",
            f"/{hook} is missing",
            "a new kernel is noticed only by its folder, before its packages are complete",
            "have it installed: provision units install",
        )
    for folder in (UNITS, PACKAGED_UNITS):
        program = _STARTED.search(host.text(str(folder / _BOOT)) or "")
        if program and (found := distrusted(in_root(host.root, program[1]))):
            yield Finding(
                "fail",
                f"/{folder / _BOOT} starts {program[1]}, and {found}",
                "who may change the program decides what root runs at the next boot",
                found.cure,
            )


def _dra_drivers(host: Observation) -> list[tuple[Driver, DraDriver, Manifest]]:
    """Return the drivers whose DRA driver a kubelet has started here, or tries to."""
    return [
        (driver, dra, manifest)
        for driver, _entry, manifest in host.installed()
        if driver.recipe and (dra := driver.recipe.dra)
        if any(
            glob_in_root(host.root, pattern)
            # The second: the kubelet's logs of pods, NAMESPACE_POD_UID, of those too that wait.
            for pattern in (f"{_KUBELET}/plugins_registry/{dra.name}*", f"{_LOGS}/*_{dra.pods}_*")
        )
    ]


@check("Kubernetes' DRA driver on this host starts with the driver's version", of=_dra_drivers)
def dra(host: Observation) -> Iterator[Finding]:
    for driver, found, manifest in _dra_drivers(host):
        if why := found.refuses(manifest.pin.driver.version):
            yield driver.warn(
                why,
                "pods that claim devices wait for ever",
                f"choose a version {found.versions} in provision.toml, then: provision apply; or"
                " use the device plugin",
            )


@check(
    "The driver folders that provision.toml names exist",
    of=lambda host: host.config.catalogue,
)
def catalogue(host: Observation) -> Iterator[Finding]:
    for folder in host.config.catalogue:
        if not in_root(host.root, folder).is_dir():
            yield Finding(
                "warn",
                f"catalogue names {folder}, and there is no such folder",
                "its drivers are unknown; provision's own driver of the same name is used instead",
                "make the folder, or remove it from catalogue in /etc/provision/provision.toml",
            )


@check("The distros that provision.toml names are known", of=lambda host: host.config.distros)
def distros(host: Observation) -> Iterator[Finding]:
    known = sorted(distro.id for distro in all_distros())
    for name in host.config.distros:
        if name not in known:
            yield Finding(
                "warn",
                f"provision.toml has [distros.{name}], and there is no such distro",
                "the mirrors, repositories and base images in it have no effect",
                f"use the ID of its os-release; known are {', '.join(known)}",
            )


@check(
    "The oci-decorator runtime that engines know is the installed one, and it exists",
    of=lambda host: dict(_podman(host.root)) or _docker(host.root),
)
def runtime(host: Observation) -> Iterator[Finding]:
    known = dict(_podman(host.root))
    if known:
        name, programs = next(reversed(known.items()))
        if _DROP_IN in known and programs != known[_DROP_IN]:
            yield Finding(
                "warn",
                f"/{name} gives podman another oci-decorator than /{_DROP_IN}",
                "drop-ins are read in the order of their names, and the last one applies",
                f"remove oci-decorator from /{name}",
            )
        yield from _missing(host.root, name, programs)
    if programs := _docker(host.root):
        yield from _missing(host.root, _DAEMON_JSON, programs)


def _missing(root: Path, name: str, programs: tuple[str, ...]) -> Iterator[Finding]:
    # Docker looks for a bare name in its own PATH, which is not known here.
    is_known = all(program.startswith("/") for program in programs)
    if is_known and not any(in_root(root, program).is_file() for program in programs):
        yield Finding(
            "warn",
            f"/{name} has the runtime oci-decorator, and there is no {' or '.join(programs)}",
            "the program was moved or removed; no container starts with this runtime",
            "install it again (the role provision_hook does), or remove the runtime",
        )


def _podman(root: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the files that configure oci-decorator for podman; the last one applies."""
    for pattern in _CONTAINERS_CONF:
        for name in glob_in_root(root, pattern):
            try:
                text = in_root(root, name).read_text(errors="replace")
                programs = tomllib.loads(text)["engine"]["runtimes"][_RUNTIME]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                # The file does not configure it, or podman refuses the file.
                continue
            if isinstance(programs, list) and programs:
                yield str(name), tuple(map(str, programs))


def _docker(root: Path) -> tuple[str, ...]:
    """Return the program of Docker's runtime oci-decorator; empty: Docker has none."""
    try:
        # As Docker does, with the byte order mark of an editor of Windows.
        text = in_root(root, _DAEMON_JSON).read_text(encoding="utf-8-sig", errors="replace")
        entry: object = json.loads(text)["runtimes"][_RUNTIME]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # As above.
        return ()
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return (path,) if isinstance(path, str) else ()


@check("There is space for another artifact", of=drivers)
def store(host: Observation) -> Iterator[Finding]:
    folder = in_root(host.root, STORE)
    if folder.is_dir() and (free := shutil.disk_usage(folder).free) < _FREE:
        yield Finding(
            "warn",
            f"{free >> 20} MiB are left on the disk of /{STORE}",
            "an artifact takes up to 1 GiB while it is unpacked; builds need more in the engine",
            "provision gc; docker image prune",
        )


def _enabled(host: Observation, pattern: str) -> list[PurePosixPath]:
    return [
        link
        for link in glob_in_root(host.root, f"{UNITS}/*.wants/{pattern}")
        if in_root(host.root, link, follow=False).is_symlink()
    ]


def _stem(path: str, version: str) -> str | None:
    name = path.rpartition("/")[2]
    return name.removesuffix(version) if ".so." in name and name.endswith(version) else None


def _mapped(process: Path) -> Iterator[str]:
    """Yield the files that a process has mapped: proc(5), the last column of maps."""
    try:
        lines = (process / "maps").read_text(errors="replace").splitlines()
    except OSError:
        # The process has ended meanwhile, or this user may not read it.
        return
    for line in lines:
        path = line.partition("/")
        if path[1]:
            yield os.path.normpath("/" + path[2].removesuffix(" (deleted)"))


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
        readings = kept(upstream, machine=host.facts.arch, folder=default_cache())
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


_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
# A Python for hosts that have none brings programs along.
_PROGRAMS = ("usr/bin", "usr/local/bin", "opt/provision/python/bin")


@check(
    "Units reach the network by the same proxy as a shell",
    of=lambda host: host.config.network.proxy or (host.drivers and _named_proxy(host)),
)
def network(host: Observation) -> Iterator[Finding]:
    proxy = host.config.network.proxy
    if proxy is not None:
        yield Finding("ok", f"{redact(proxy)} is the proxy, by [network] in provision.toml")
        return
    named = _named_proxy(host)
    if named is None:
        return
    value = host.environment[named]
    if any(value in (host.text(str(name)) or "") for name in _unit_settings(host)):
        yield Finding("ok", f"{redact(value)} is the proxy, by {named} and systemd's settings")
        return
    yield Finding(
        "warn",
        f"the proxy {redact(value)} comes from {named} of this environment only",
        "units do not have the variables of a shell: nothing is built for the next kernel",
        f"write the value of {named} into /etc/provision/provision.toml: [network] proxy",
    )


def _named_proxy(host: Observation) -> str | None:
    return next((name for name in _PROXIES if host.environment.get(name)), None)


def _unit_settings(host: Observation) -> Iterator[PurePosixPath]:
    """Yield the files in which admins give variables to all units, or to ours."""
    for folder in ("etc/systemd", "usr/lib/systemd"):
        for pattern in ("system.conf", "system.conf.d/*", "system/provision-*.service.d/*"):
            yield from glob_in_root(host.root, f"{folder}/{pattern}")


@check(
    "This host can read registries, and trusts a key of what comes from there",
    of=lambda host: host.config.registry.address or host.config.registry.folders,
)
def registry(host: Observation) -> Iterator[Finding]:
    yield from _trust(host)
    yield from _skopeo(host)


def _trust(host: Observation) -> Iterator[Finding]:
    if host.config.policy.build == "always":
        return
    registry = host.config.registry
    for folder in registry.folders:
        yield from _trust_in(host, f"oci:{folder}")
    if registry.address is not None:
        yield from _trust_in(host, registry.address)


def _skopeo(host: Observation) -> Iterator[Finding]:
    address = host.config.registry.address
    if address is None or host.config.policy.build == "always":
        return
    if not any(in_root(host.root, f"{folder}/skopeo").is_file() for folder in _PROGRAMS):
        yield Finding(
            "fail",
            "skopeo is not installed",
            f"this host reads registries with it, so it pulls nothing from {address}",
            "install it: apt-get install skopeo (dnf, zypper: the same name)",
        )


def _trust_in(host: Observation, address: str) -> Iterator[Finding]:
    trust = host.config.trust
    rules = {name: trust.rule(f"{address}/{name}", name) for name in host.config.drivers}
    for name, rule in rules.items() or [("", trust.rule(address, ""))]:
        about = name or None
        if rule.insecure:
            yield Finding(
                "warn",
                f"[trust] insecure: {address} may serve anything",
                "everyone who may write there decides what the kernel loads",
                "sign the images (provision registry sign), and name the public keys: [trust]"
                " keys ="
                ' "/etc/provision/trust.d"',
                about,
            )
        elif rule.keys is None:
            yield Finding(
                "fail",
                f"{address} is configured, and no key is trusted for it",
                "this host refuses all of its images",
                'name the public keys: [trust] keys = "/etc/provision/trust.d"; or build here:'
                ' [policy] build = "always"',
                about,
            )
        else:
            yield from _keys(host, rule.keys, about)


def _keys(host: Observation, keys: str, about: str | None) -> Iterator[Finding]:
    try:
        settled_keys(host.root, keys)
    except ConfigError as error:
        yield Finding(
            "fail",
            f"{keys} has keys that can't be used: {error.details}",
            "images of registries are refused until all keys are valid",
            error.resolution or "",
            about,
        )


@check(
    "Artifacts are tried in their kernel before it boots",
    of=lambda host: host.drivers and host.config.policy.prebuild,
)
def policy(host: Observation) -> Iterator[Finding]:
    trial, arch = host.config.policy.trial, host.facts.arch
    own = distro_named(host.facts.distro.id)
    seen = "artifacts are prepared, and not tried in their kernel"
    lacking = f"there is no {qemu_of(arch)}"
    # The first two are what an admin decides, and no problem.
    if trial is False:
        yield Finding("ok", f"{seen}: [policy] trial is false")
    elif find_qemu(arch) is not None:
        return
    elif trial is None:
        yield Finding("ok", f"{seen}: {lacking}, and [policy] trial is not set")
    elif not (host.facts.engines and own and own.apt):
        yield Finding(
            "warn",
            f"{seen}, as [policy] trial asks for",
            f"{lacking}, and no engine that has one in a container of Debian or Ubuntu",
            f"install it: {how_to_install(arch)}",
        )
