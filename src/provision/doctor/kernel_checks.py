"""Problems of the running kernel: missing, conflicting and refused modules, and its log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provision.catalogue.suitability import Card, advice, cards_of
from provision.doctor.observation import (
    Driver,
    Finding,
    Observation,
    check,
    drivers,
    installed,
)
from provision.files import glob_in_root, in_root, selinux_label
from provision.host.boot import IF_IT_COMES_BACK
from provision.host.facts import signature_rules
from provision.kmod.load import devices_of, loaded_conflicts
from provision.kmod.loader import (
    FIRMWARE_FOLDER,
    FIRMWARE_PARAMETER,
    firmware_names,
)
from provision.kmod.module_signatures import is_signed
from provision.manifest import Manifest
from provision.store.layout import UNITS
from provision.store.units import PACKAGED_UNITS, unlabelled

_MODULE_TYPE = "modules_object_t"
_STARTED = re.compile(r"^ExecStart=(/\S+)", re.MULTILINE)


@check(
    "Each card has a driver in provision.toml, and each driver there a card",
    of=lambda host: any(_cards(host)),
)
def cards(host: Observation) -> Iterator[Finding]:
    configured = {driver.name for driver in host.drivers}
    for driver in host.drivers:
        if driver.seen.lacks_card:
            yield driver.warn(
                "this host has no card that it is for",
                "the card is missing, switched off, or given to a virtual machine",
                f"look for it: lspci -nn; without one, remove [drivers.{driver.name}] from"
                " /etc/provision/provision.toml",
            )
    for recipe in host.recipes:
        found = cards_of(recipe, host.facts.pci)
        setting = host.config.drivers.get(recipe.name)
        for card in found:
            if setting and not card.takes(setting.flavour, setting.version):
                yield Finding(
                    "warn",
                    f"{card.wanted}, and provision.toml names something else",
                    "this card gets no driver; while another one does, the status is not about it",
                    advice(recipe, found),
                    recipe.name,
                )
            elif card.device.driver is None and recipe.name not in configured:
                yield Finding(
                    "warn",
                    f"{card.name} has no driver",
                    f"the catalogue has one, '{recipe.name}', and provision.toml does not name it",
                    f"write [drivers.{recipe.name}] into /etc/provision/provision.toml, then:"
                    " provision plan",
                )


@check(
    "No in-tree module holds the hardware",
    of=lambda host: any(m.host.conflicts for _d, _e, m in host.installed()),
)
def conflicts(host: Observation) -> Iterator[Finding]:
    for driver, _entry, manifest in host.installed():
        for name in loaded_conflicts(manifest, host.loaded):
            held = [d.address for d in host.facts.pci if d.driver == name]
            yield driver.fail(
                f"{name} is loaded" + (f" and drives {', '.join(held)}" if held else ""),
                "the kernel's own driver for the same hardware was loaded first",
                f"unload it when it is idle: provision load {driver.name}; else reboot."
                f" {IF_IT_COMES_BACK}",
            )


@check("The modules have the signatures that the kernel requires", of=installed)
def signing(host: Observation) -> Iterator[Finding]:
    rules = " and ".join(signature_rules(host.root))
    for driver, entry, manifest in host.installed():
        unsigned = [m.name for m in manifest.modules if not is_signed(entry / m.path)]
        if unsigned and rules:
            yield driver.fail(
                f"the kernel runs with {rules}, and these are not signed: {', '.join(unsigned)}",
                "the kernel refuses modules that are not signed with a key that it knows",
                "docs/how-to/secure-boot.md: [signing] in provision.toml, mokutil --import",
            )
        elif unsigned and host.facts.secure_boot == "enabled":
            yield driver.warn(
                f"Secure Boot is on, and these are not signed: {', '.join(unsigned)}",
                "this kernel accepts them while it is not locked down; others would refuse them",
                "docs/how-to/secure-boot.md: [signing] in provision.toml, mokutil --import",
            )
    if host.facts.secure_boot == "unknown":
        yield Finding(
            "unknown",
            "the firmware's variables can't be read",
            "efivarfs is not mounted, or this is not root",
            "run as root; mount -t efivarfs efivarfs /sys/firmware/efi/efivars",
        )


@check(
    "The kernel allows loading modules",
    of=lambda host: host.text("proc/sys/kernel/modules_disabled"),
)
def modules_disabled(host: Observation) -> Iterator[Finding]:
    if host.text("proc/sys/kernel/modules_disabled") == "1":
        yield Finding(
            "fail",
            "kernel.modules_disabled is 1",
            "loading modules is forbidden until the next boot",
            "remove it from /etc/sysctl.d, or set it after provision-boot.service; then reboot",
        )


@check("Device nodes have the links that engines need", of=lambda host: any(_loaded(host)))
def device_nodes(host: Observation) -> Iterator[Finding]:
    for driver, manifest in _loaded(host):
        unlinked = _without_link(host, manifest)
        if unlinked:
            yield driver.warn(
                f"no link in /dev/char for {', '.join(unlinked)}",
                "containers lose the device when systemd reloads ('Unknown Error'): runc looks it"
                " up by that link",
                f"have them made: provision load {driver.name}",
            )


@check(
    "The kernel finds the firmware of each driver",
    of=lambda host: any(firmware_names(m) for _d, _e, m in host.installed()),
)
def firmware(host: Observation) -> Iterator[Finding]:
    folder = host.text(str(FIRMWARE_PARAMETER)) or ""
    for driver, _entry, manifest in host.installed():
        names = firmware_names(manifest)
        if not names:
            continue
        if folder not in {"", f"/{FIRMWARE_FOLDER}"}:
            yield driver.fail(
                f"the kernel looks for firmware in {folder}",
                "another program has set firmware_class.path",
                "remove it from the kernel's command line, or put the driver's firmware there",
            )
        elif any(module.name in host.loaded for module in manifest.modules) and (
            absent := [n for n in names if not _is_file(host.root, n)]
        ):
            yield driver.fail(
                f"the kernel can't find {absent[0]}",
                "/run/provision/firmware is empty or of another version",
                f"provision load {driver.name}",
            )


@check(
    "SELinux allows the units to start, and the modules in the store to be loaded",
    of=lambda host: host.facts.selinux == "enforcing",
)
def selinux(host: Observation) -> Iterator[Finding]:
    for program, file, label in _unlabelled_programs(host):
        yield Finding(
            "fail",
            f"units start {program}, and {file} has the label {label}",
            "SELinux lets a unit execute only programs: the unit ends with 203/EXEC, although the"
            " same command works in a shell",
            f"restorecon -v {file}; if the label stays, install provision in /opt/provision",
        )
    for driver, entry, manifest in host.installed():
        path = entry / manifest.modules[0].path
        found = selinux_label(path)
        if found is None:
            seen = f"the label of {path} can't be read"
            cause = "the file system has no labels, or belongs to another machine"
            cure = "run this on the host itself, as root"
            yield Finding("unknown", seen, cause, cure, driver.name)
        elif _MODULE_TYPE not in found:
            yield driver.fail(
                f"the modules in the store have the label {found}",
                f"SELinux lets the kernel load only files of type {_MODULE_TYPE}",
                f"chcon -R -t {_MODULE_TYPE} {entry}/lib/modules; never setenforce 0",
            )


def _unlabelled_programs(host: Observation) -> set[tuple[str, PurePosixPath, str]]:
    units = [
        host.text(str(name)) or ""
        for folder in (UNITS, PACKAGED_UNITS)
        for name in glob_in_root(host.root, f"{folder}/provision-*.service")
    ]
    programs = {program for text in units for program in _STARTED.findall(text)}
    return {
        (program, file, label)
        for program in programs
        for file, label in unlabelled(host.root, program)
    }


def _loaded(host: Observation) -> Iterator[tuple[Driver, Manifest]]:
    for driver, _entry, manifest in host.installed():
        if any(module.name in host.loaded for module in manifest.modules):
            yield driver, manifest


def _cards(host: Observation) -> Iterator[Card | Driver]:
    for recipe in host.recipes:
        yield from cards_of(recipe, host.facts.pci)
    yield from (one for one in host.drivers if one.recipe and one.recipe.hardware.pci)


def _without_link(host: Observation, manifest: Manifest) -> list[str]:
    devices = in_root(host.root, "dev")
    found = []
    for path in sorted({p for pattern in devices_of(manifest) for p in devices.glob(pattern)}):
        numbers = path.stat().st_rdev
        link = devices / "char" / f"{os.major(numbers)}:{os.minor(numbers)}"
        if path.is_char_device() and not link.is_symlink():
            found.append(f"/dev/{path.relative_to(devices)}")
    return found


def _is_file(root: Path, name: str) -> bool:
    # A link there holds a path as the host itself calls it, whatever the root is.
    link = in_root(root, FIRMWARE_FOLDER / name, follow=False)
    return link.is_symlink() and in_root(root, FIRMWARE_FOLDER / name).is_file()


class _Complaint(NamedTuple):
    pattern: re.Pattern[str]
    cause: str
    cure: str
    # The first group is a firmware file; those of other drivers don't count.
    names_firmware: bool = False


# Sources: kernel/module, security/lockdown and drivers/base/firmware_loader of the kernel; NVIDIA's
# resource manager (NVRM).
_COMPLAINTS = (
    _Complaint(
        re.compile(r"API mismatch: the client has (?:the )?version (\S+?),"),
        cause="a program uses libraries of another version than the module",
        cure="restart programs with the old libraries; the check old-files names them",
    ),
    _Complaint(
        re.compile(r"Direct firmware load for (\S+) failed"),
        cause="the kernel did not find the firmware",
        cure="tell the kernel its folder: provision load; see the check firmware",
        names_firmware=True,
    ),
    _Complaint(
        re.compile(r"avc:\s+denied\s+\{ module_load \}"),
        cause="SELinux refuses to load modules that lack the type modules_object_t",
        cure="see the check selinux",
    ),
    _Complaint(
        re.compile(r"Loading of (unsigned module|module with \S+ \S+) is rejected"),
        cause="this kernel takes only modules that are signed with a key that it knows",
        cure="docs/how-to/secure-boot.md",
    ),
    _Complaint(
        re.compile(r"Lockdown: .*module loading is restricted"),
        cause="the kernel is locked down and takes only modules signed with a key that it knows",
        cure="docs/how-to/secure-boot.md",
    ),
    _Complaint(
        re.compile(r"version magic '[^']*' should be '[^']*'|disagrees about version of symbol"),
        cause="a module was built for another kernel or with other headers",
        cure="build it again for the running kernel: provision apply",
    ),
)


@check("The kernel has not complained about drivers since it started", of=drivers)
def kernel_log(host: Observation) -> Iterator[Finding]:
    if host.log is None:
        yield Finding(
            "unknown",
            "the kernel's log can't be read",
            "only root may read it, and containers have none",
            "run as root, on the host itself",
        )
        return
    ours = {
        name for _driver, _entry, manifest in host.installed() for name in firmware_names(manifest)
    }
    for complaint in _COMPLAINTS:
        lines = [line for line in host.log if _applies(complaint, line, ours)]
        if lines:
            times = f" ({len(lines)} times)" if len(lines) > 1 else ""
            yield Finding("warn", f"{lines[-1]}{times}", complaint.cause, complaint.cure)


def _applies(complaint: _Complaint, line: str, firmware: set[str]) -> bool:
    match = complaint.pattern.search(line)
    if match is None:
        return False
    return not complaint.names_firmware or match[1] in firmware
