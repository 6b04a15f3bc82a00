"""Problems of settings: provision.toml, and the engines' own configuration."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from provision.agent.hold import OTHER_LOADERS, hindrance
from provision.distros import all_distros, distro_named
from provision.doctor.observation import Finding, Observation, check
from provision.doctor.observation import drivers as configured_drivers
from provision.errors import ConfigError, redact
from provision.files import glob_in_root, in_root
from provision.host.facts import find_qemu, qemu_of
from provision.kmod.guest import how_to_install
from provision.registry.keys import settled_keys

_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
_RUNTIME = "oci-decorator"
# A Python for hosts that have none brings programs along.
_PROGRAMS = ("usr/bin", "usr/local/bin", "opt/provision/python/bin")
_DAEMON_JSON = "etc/docker/daemon.json"
_DROP_IN = "etc/containers/containers.conf.d/50-oci-decorator.conf"
# In the order in which podman reads them: containers.conf(5).
_CONTAINERS_CONF = (
    "usr/share/containers/containers.conf",
    "usr/share/containers/containers.conf.d/*.conf",
    "etc/containers/containers.conf",
    "etc/containers/containers.conf.d/*.conf",
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


@check("Artifacts are prepared before the boot of a new kernel", of=configured_drivers)
def policy(host: Observation) -> Iterator[Finding]:
    if not host.config.policy.prebuild:
        yield Finding(
            "warn",
            "[policy] prebuild is false",
            "after a boot with a new kernel, the host has no drivers until they are built",
            "prebuild = true in /etc/provision/provision.toml",
        )
        return
    trial, arch = host.config.policy.trial, host.facts.arch
    seen = "artifacts are prepared, and not tried in their kernel"
    lacking = f"there is no {qemu_of(arch)}"
    # The first two are what an admin decides, and no problem.
    if trial is False:
        yield Finding("ok", f"{seen}: [policy] trial is false")
    elif find_qemu(arch) is not None:
        return
    elif trial is None:
        yield Finding("ok", f"{seen}: {lacking}, and [policy] trial is not set")
    elif not (host.facts.engines and _has_packaged_qemu(host)):
        yield Finding(
            "warn",
            f"{seen}, as [policy] trial asks for",
            f"{lacking}, and no engine that has one in a container of Debian or Ubuntu",
            f"install it: {how_to_install(arch)}",
        )


def _has_packaged_qemu(host: Observation) -> bool:
    distro = distro_named(host.facts.distro.id)
    return distro is not None and distro.apt is not None


@check(
    "The boot loader's default can be held, as [policy] hold_kernels asks for",
    of=lambda host: host.config.policy.hold_kernels,
)
def hold(host: Observation) -> Iterator[Finding]:
    known = host.status.hold.problem if host.status.hold else None
    problem = known or hindrance(host.root)
    if problem is not None:
        yield Finding(
            "warn",
            f"no kernel is held: {problem}",
            "a kernel boots by default, whether or not it has its drivers",
            OTHER_LOADERS,
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
                text = in_root(root, name).read_text()
                programs = tomllib.loads(text)["engine"]["runtimes"][_RUNTIME]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                # The file does not configure it, or podman refuses the file.
                continue
            if isinstance(programs, list) and programs:
                yield str(name), tuple(map(str, programs))


def _docker(root: Path) -> tuple[str, ...]:
    """Return the program of Docker's runtime oci-decorator; empty: Docker has none."""
    try:
        entry: object = json.loads(in_root(root, _DAEMON_JSON).read_text())["runtimes"][_RUNTIME]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # As above.
        return ()
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return (path,) if isinstance(path, str) else ()
