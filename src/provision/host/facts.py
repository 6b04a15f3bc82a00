"""The facts of a host: its distro, PCI devices, engines, and what restricts loading modules."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from os.path import lexists
from pathlib import Path
from typing import NamedTuple

from distro import LinuxDistribution

from provision.errors import NotFoundError
from provision.files import in_root, text_in_root
from provision.host.kernels import kernel_release, machine
from provision.run import find_program

# NVML writes eight digits and capital letters, the kernel at least four.
_ADDRESS = re.compile(
    r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([01]?[0-9a-fA-F])\.([0-7])", re.ASCII
)
_CLASS_DIGITS = 4
# Where pciutils and hwdata put it.
_PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "var/lib/pciutils/pci.ids")
_MAX_PCI_IDS = 16 << 20
_LONGEST = 256
_ID_DIGITS = 4
_PCI_SOLD = re.compile(r"\[(.+)\]$")
# The line of a vendor or class, which ends the devices of the one before.
_PCI_VENDOR = re.compile(r"^[0-9a-fC]", re.MULTILINE)


def pci_address(text: str) -> str | None:
    """Return an address as sysfs writes it; None if the text is not an address."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def pci_order(address: str) -> tuple[int, ...]:
    """Return the sort key of an address that ``pci_address`` returned: its numbers."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


class PciDevice(NamedTuple):
    """A PCI device; ids are hexadecimal, as ``lspci -n`` prints them."""

    address: str
    vendor: str
    device: str
    device_class: str
    driver: str | None
    # The loaded module that its driver belongs to; None: it has no driver, or one of the kernel's
    # own image.
    module: str | None = None
    # Under which it is sold, by the host's pci.ids; None: that is missing, or does not know it.
    name: str | None = None


def pci_devices(root: Path) -> tuple[PciDevice, ...]:
    """Return the PCI devices by address.

    Source: https://docs.kernel.org/PCI/sysfs-pci.html
    """
    folder = in_root(root, "sys/bus/pci/devices")
    try:
        addresses = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ()
    found = (_device(in_root(root, f"sys/bus/pci/devices/{name}"), name) for name in addresses)
    names = _pci_names(root)
    return tuple(
        device._replace(name=_pci_name(names, device)) for device in found if device is not None
    )


def _pci_names(root: Path) -> str:
    """Return the text of a host's pci.ids; empty if it has none that is readable."""
    for place in _PCI_IDS:
        with suppress(OSError), in_root(root, place).open("rb") as stream:
            return stream.read(_MAX_PCI_IDS).decode(errors="replace")
    return ""


def _pci_name(names: str, device: PciDevice) -> str | None:
    """Return a device's name: in brackets after that of its chip, or alone.

    Source: pci.ids(5): vendors begin a line, their devices follow after a tab each.
    """
    start = names.find(f"\n{device.vendor}  ")
    found = names.find(f"\n\t{device.device}  ", start) if start >= 0 else -1
    if found < 0 or _PCI_VENDOR.search(names, names.find("\n", start + 1), found):
        return None
    line = names[found + 1 : found + _LONGEST].partition("\n")[0][1 + _ID_DIGITS :]
    text = "".join(filter(str.isprintable, line)).strip()
    sold = _PCI_SOLD.search(text)
    return sold[1] if sold else text


def _device(folder: Path, address: str) -> PciDevice | None:
    try:
        texts = ((folder / name).read_text() for name in ("vendor", "device", "class"))
        vendor, device, kind = (text.strip().removeprefix("0x") for text in texts)
    except OSError:
        # The device was unplugged meanwhile.
        return None
    link = folder / "driver"
    driver = link.readlink().name if link.is_symlink() else None
    owner = folder / "driver/module"
    module = owner.readlink().name if owner.is_symlink() else None
    return PciDevice(address, vendor, device, kind[:_CLASS_DIGITS], driver, module)


# Folders of programs; Flatcar's extensions use /opt/bin.
_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/sbin", "opt/bin")
# Where engines that build listen by default: Docker first, then podman's service.
BUILD_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
# Each engine's name, program and usual sockets.
_ENGINES = (
    ("docker", "dockerd", ("run/docker.sock",)),
    ("podman", "podman", ("run/podman/podman.sock",)),
    (
        "containerd",
        "containerd",
        ("run/containerd/containerd.sock", "run/k3s/containerd/containerd.sock"),
    ),
    ("cri-o", "crio", ("run/crio/crio.sock",)),
)
# UEFI specification 2.10, section 3.3: the global variables' GUID.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# efivarfs puts four bytes of attributes before the value:
# https://docs.kernel.org/filesystems/efivarfs.html
_ATTRIBUTES = 4
_OS_RELEASES = ("etc/os-release", "usr/lib/os-release")


class Engine(NamedTuple):
    """An engine that is installed or answers."""

    name: str
    program: str | None
    # Path of its socket on the host; None if it isn't running, or needs no service.
    socket: str | None


def find_engines(root: Path) -> tuple[Engine, ...]:
    """Return the engines of a host, without connecting to them."""
    engines = []
    for name, program, sockets in _ENGINES:
        found = _first(root, [f"{folder}/{program}" for folder in _FOLDERS])
        socket = _first(root, sockets)
        if found or socket:
            engines.append(Engine(name, found, socket))
    return tuple(engines)


def _first(root: Path, names: tuple[str, ...] | list[str]) -> str | None:
    # A broken link counts: its target may be mounted later.
    return next((f"/{n}" for n in names if lexists(in_root(root, n, follow=False))), None)


# RHEL's QEMU, for its own architecture.
_QEMU_OF_RHEL = "/usr/libexec/qemu-kvm"


def qemu_of(architecture: str) -> str:
    """Return the name of the program that boots kernels of an architecture."""
    return f"qemu-system-{architecture}"


def find_qemu(architecture: str) -> str | None:
    """Return this machine's program that boots kernels of an architecture; None: it has none."""
    names = [qemu_of(architecture)]
    if os.uname().machine == architecture:
        names.append(_QEMU_OF_RHEL)
    return next(filter(None, map(find_program, names)), None)


def immutable_kind(root: Path, distro: str) -> str | None:
    """Return ``ostree``, ``flatcar``, ``transactional`` or ``read-only``; None for other hosts."""
    if in_root(root, "run/ostree-booted").exists():
        return "ostree"
    if distro == "flatcar":
        return "flatcar"
    read_only = _is_read_only(root)
    updater = any(in_root(root, f"{f}/transactional-update").exists() for f in ("usr/sbin", "sbin"))
    # The program may also be installed on an ordinary host, where it does no harm.
    if updater and read_only is not False:
        return "transactional"
    return "read-only" if read_only else None


def _is_read_only(root: Path) -> bool | None:
    """Return whether /usr is mounted read-only; None if the root has no /proc.

    Source: fstab(5), the format of /proc/mounts; a later line hides an earlier one.
    """
    text = text_in_root(root, "proc/mounts")
    if text is None:
        return None
    options = {words[1]: words[3].split(",") for words in map(str.split, text.splitlines())}
    mounted = options.get("/usr", options.get("/"))
    return None if mounted is None else "ro" in mounted


def secure_boot(root: Path) -> str:
    """Return ``enabled``, ``disabled``, ``absent`` (no UEFI) or ``unknown`` (no access)."""
    firmware = in_root(root, "sys/firmware/efi")
    if not firmware.is_dir():
        return "absent"
    try:
        value = in_root(root, f"sys/firmware/efi/efivars/{_SECURE_BOOT}").read_bytes()[_ATTRIBUTES:]
    except FileNotFoundError:
        # Firmware without the variable has no Secure Boot; without efivarfs it is unknown.
        mounted = any((firmware / "efivars").glob("*"))
        return "absent" if mounted else "unknown"
    except OSError:
        return "unknown"
    return "enabled" if value == b"\x01" else "disabled"


def lockdown(root: Path) -> str | None:
    """Return the kernel's lockdown; None if the kernel has no such feature.

    Source: kernel_lockdown(7): ``none [integrity] confidentiality``.
    """
    match = re.search(r"\[(\w+)\]", text_in_root(root, "sys/kernel/security/lockdown") or "")
    return match[1] if match else None


def command_line(root: Path) -> list[str]:
    """Return the words of the running kernel's command line; none where no kernel runs."""
    return (text_in_root(root, "proc/cmdline") or "").split()


def signature_rules(root: Path) -> tuple[str, ...]:
    """Return why the kernel takes signed modules only, as words of its command line.

    What it does counts, and then what it was started with: the firmware's Secure Boot and the
    kernel's configuration need no word there, and a word may have no effect.
    """
    words = dict(word.partition("=")[::2] for word in command_line(root))
    level = lockdown(root) or words.get("lockdown")
    rules = [f"lockdown={level}"] if level in {"integrity", "confidentiality"} else []
    enforced = text_in_root(root, "sys/module/module/parameters/sig_enforce")
    if enforced is None:
        enforced = words.get("module.sig_enforce", "N") or "Y"
    # Source: kstrtobool of Linux.
    if re.match(r"[yYtT1]|[oO][nN]", enforced):
        rules.append("module.sig_enforce=1")
    return tuple(rules)


def selinux(root: Path) -> str:
    """Return ``enforcing``, ``permissive``, ``disabled`` or ``absent``.

    For a root that isn't running, it is the configured mode.
    """
    enforced = text_in_root(root, "sys/fs/selinux/enforce")
    if enforced is not None:
        return "enforcing" if enforced == "1" else "permissive"
    configured = text_in_root(root, "etc/selinux/config")
    if configured is None:
        return "absent"
    match = re.search(r"^SELINUX=(enforcing|permissive|disabled)\s*$", configured, re.MULTILINE)
    is_running = in_root(root, "sys/fs").is_dir()
    return match[1] if match and not is_running else "disabled"


class Distro(NamedTuple):
    """A distribution, as its os-release describes it."""

    id: str
    # Its version; empty for a rolling release.
    version: str
    codename: str
    # The distros that it is derived from, the closest first.
    like: tuple[str, ...]
    variant: str
    name: str
    # The build of the distro's image; empty for package-based hosts.
    build_id: str = ""


class HostFacts(NamedTuple):
    """The facts of a host."""

    distro: Distro
    # Release of the running kernel, or of the newest complete one for a root that isn't running;
    # None if the root has no kernel.
    kernel: str | None
    arch: str
    engines: tuple[Engine, ...]
    secure_boot: str
    lockdown: str | None
    selinux: str
    immutable: str | None
    pci: tuple[PciDevice, ...]


def read_facts(root: Path = Path("/")) -> HostFacts:
    """Return the facts of a host, given its root."""
    distro = read_distro(root)
    return HostFacts(
        distro=distro,
        kernel=kernel_release(root),
        arch=machine(root),
        engines=find_engines(root),
        secure_boot=secure_boot(root),
        lockdown=lockdown(root),
        selinux=selinux(root),
        immutable=immutable_kind(root, distro.id),
        pci=pci_devices(root),
    )


def read_distro(root: Path) -> Distro:
    """Read os-release.

    Source: https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    """
    places = [in_root(root, name) for name in _OS_RELEASES]
    file = next((place for place in places if place.is_file()), places[-1])
    known = LinuxDistribution(include_lsb=False, include_uname=False, os_release_file=str(file))
    fields = known.os_release_info()
    if not fields:
        raise NotFoundError(
            f"There is no os-release under '{root}', so it is no host's root.",
            details="\n".join(f"looked for {root / name}" for name in _OS_RELEASES),
            resolution="Give the root of a host: --root DIR",
        )
    return Distro(
        # The library renames some ids; this is the one that other tools use.
        id=fields.get("id", "linux"),
        version=fields.get("version_id", ""),
        # The library's codename() also reads other files of this machine.
        codename=known.os_release_attr("codename").lower(),
        like=tuple(fields.get("id_like", "").split()),
        variant=fields.get("variant_id", ""),
        name=fields.get("pretty_name", "Linux"),
        build_id=fields.get("build_id", ""),
    )
