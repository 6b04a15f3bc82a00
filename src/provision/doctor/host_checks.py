"""Problems of the host: other copies, old files in use, units, reboots, the store."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from provision.agent.status import NAME_A_DRIVER, ArtifactStatus
from provision.catalogue.fields import DraDriver
from provision.distros.repositories import apt_settings, is_true
from provision.doctor.observation import (
    Driver,
    Finding,
    Observation,
    always,
    check,
    drivers,
    installed,
)
from provision.files import glob_in_root, in_root
from provision.host import STORE
from provision.manifest import Manifest
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
_FREE = 2 << 30
# By unattended-upgrades and dnf5-automatic(8).
_DNF_AUTOMATIC = "etc/dnf/automatic.conf"
_REBOOT_OF_APT = "unattended-upgrade::automatic-reboot"
_REBOOT_OF_DNF = re.compile(r"^\s*reboot\s*=\s*when-(?:needed|changed)", re.MULTILINE)


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


@check("No updater reboots into a kernel that was not prepared", of=always)
def automatic_reboot(host: Observation) -> Iterator[Finding]:
    reboots = ""
    for name, value in apt_settings(host.root, _REBOOT_OF_APT):
        reboots = name if is_true(value) else ""
    if _REBOOT_OF_DNF.search(host.text(_DNF_AUTOMATIC) or ""):
        reboots = _DNF_AUTOMATIC
    if reboots and not _enabled(host, "provision-kernel.path"):
        yield Finding(
            "warn",
            f"/{reboots} allows automatic reboots",
            "kernels are upgraded automatically, and nothing prepares the drivers",
            "provision units install; its units delay a reboot while a build runs",
        )


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
    """Return the links that enable units."""
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
