"""Troubles in the running kernel: modules that are not loaded, in the way, or would be refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from provision.doctor.scene import Finding, Scene
from provision.files import in_root
from provision.kmod.device_setup import (
    FIRMWARE_FOLDER,
    configured_folder,
    firmware_names,
    missing_nodes,
)
from provision.kmod.load import devices_of
from provision.kmod.loaded import other_builds, users_of
from provision.kmod.module_signatures import is_signed
from provision.kmod.unload import loaded_conflicts
from provision.manifest import Manifest

_MODULE_TYPE = "modules_object_t"


def loaded(scene: Scene) -> Iterator[Finding]:
    """The modules of each driver are loaded."""
    for driver, _entry, manifest in scene.installed():
        needed = [m.name for m in manifest.modules if m.name not in manifest.host.optional]
        missing = [name for name in needed if name not in scene.loaded]
        if missing:
            failure = driver.state.of(manifest.pin.kernel.release).failure
            yield Finding(
                "fail",
                f"not loaded: {', '.join(missing)}",
                failure.message if failure else "no one loaded it since the host started",
                f"provision load {driver.name}; provision units, to have it done at boot",
                driver.name,
            )


def reboot_required(scene: Scene) -> Iterator[Finding]:
    """The loaded modules are those in the store."""
    for driver, entry, manifest in scene.installed():
        others = other_builds(manifest, entry, scene.loaded)
        others = tuple(name for name in others if not scene.loaded[name].is_in_tree)
        if not others:
            continue
        users = users_of(others, scene.loaded, devices=devices_of(manifest), root=scene.root)
        who = "; ".join(map(str, users)) or "no one uses it"
        yield Finding(
            "warn",
            f"{', '.join(others)} is loaded from another build than the one in the store",
            f"it could not be unloaded when the new one came, or was not tried: {who}",
            f"stop who uses it, then provision unload {driver.name} and provision load"
            f" {driver.name}; or reboot",
            driver.name,
        )


def in_tree_copy(scene: Scene) -> Iterator[Finding]:
    """The in-tree module of the same name was not loaded first."""
    for driver, entry, manifest in scene.installed():
        for name in other_builds(manifest, entry, scene.loaded):
            if scene.loaded[name].is_in_tree:
                yield Finding(
                    "fail",
                    f"{name} is the kernel's own, not the one in the store",
                    "the initramfs or udev loaded it before the store's could be",
                    f"provision unload {driver.name} and provision load {driver.name} when it is"
                    " idle; keep it out of the initramfs (update-initramfs -u, dracut -f)",
                    driver.name,
                )


def conflicts(scene: Scene) -> Iterator[Finding]:
    """No in-tree module holds the hardware."""
    for driver, _entry, manifest in scene.installed():
        config = driver.layout.modprobe_config
        for name in loaded_conflicts(manifest, scene.loaded):
            held = [d.address for d in scene.facts.pci if d.driver == name]
            yield Finding(
                "fail",
                f"{name} is loaded" + (f" and drives {', '.join(held)}" if held else ""),
                "the kernel's own driver of the same hardware came first",
                f"provision load {driver.name} unloads it when it is idle; else reboot. If it comes"
                " back, make the initramfs again (update-initramfs -u, dracut -f)",
                driver.name,
            )
        if manifest.host.conflicts and not config.is_file():
            yield Finding(
                "warn",
                f"/{config.relative_to(scene.root)} is missing",
                "someone removed it, or the driver was installed by an older provision",
                f"provision install {driver.name} writes it again",
                driver.name,
            )


def signing(scene: Scene) -> Iterator[Finding]:
    """The modules meet the kernel's demands."""
    reason = _demands_signatures(scene)
    for driver, entry, manifest in scene.installed():
        unsigned = [m.name for m in manifest.modules if not is_signed(entry / m.path)]
        if unsigned and reason:
            yield Finding(
                "fail",
                f"{reason}, and these are not signed: {', '.join(unsigned)}",
                "the kernel refuses modules that are not signed with a key that it knows",
                "docs/how-to/secure-boot.md: [signing] in provision.toml, mokutil --import",
                driver.name,
            )
        elif unsigned and scene.facts.secure_boot == "enabled":
            yield Finding(
                "warn",
                f"Secure Boot is on, and these are not signed: {', '.join(unsigned)}",
                "this kernel takes them as long as it is not locked down; others would refuse them",
                "docs/how-to/secure-boot.md: [signing] in provision.toml, mokutil --import",
                driver.name,
            )
    if scene.facts.secure_boot == "unknown":
        yield Finding(
            "unknown",
            "the firmware's variables can't be read",
            "efivarfs is not mounted, or this is not root",
            "run as root; mount -t efivarfs efivarfs /sys/firmware/efi/efivars",
        )


def modules_disabled(scene: Scene) -> Iterator[Finding]:
    """The kernel loads modules at all."""
    if scene.text("proc/sys/kernel/modules_disabled") == "1":
        yield Finding(
            "fail",
            "kernel.modules_disabled is 1",
            "someone has forbidden to load modules until the next boot",
            "take it out of /etc/sysctl.d, or order what sets it after provision-boot.service;"
            " reboot",
        )


def device_nodes(scene: Scene) -> Iterator[Finding]:
    """Device nodes exist, with the links that engines find them by."""
    for driver, _entry, manifest in scene.installed():
        if not any(module.name in scene.loaded for module in manifest.modules):
            continue
        missing = [f"/dev/{node.name}" for node in missing_nodes(manifest, root=scene.root)]
        unlinked = _without_link(scene, manifest)
        if missing:
            yield Finding(
                "fail",
                f"missing: {', '.join(missing)}",
                "neither the kernel nor udev makes them",
                f"provision load {driver.name} makes them, loaded or not",
                driver.name,
            )
        if unlinked:
            yield Finding(
                "warn",
                f"no link in /dev/char for {', '.join(unlinked)}",
                "containers lose the device when systemd reloads ('Unknown Error'): runc looks it"
                " up by that link",
                f"provision load {driver.name} makes them, loaded or not",
                driver.name,
            )


def firmware(scene: Scene) -> Iterator[Finding]:
    """The kernel finds the firmware of each driver."""
    folder = configured_folder(scene.root)
    for driver, _entry, manifest in scene.installed():
        names = firmware_names(manifest)
        if not names:
            continue
        if folder not in {"", f"/{FIRMWARE_FOLDER}"}:
            yield Finding(
                "fail",
                f"the kernel looks for firmware in {folder}",
                "someone else has set firmware_class.path",
                "take it off the kernel's command line, or put the driver's firmware there",
                driver.name,
            )
        elif any(module.name in scene.loaded for module in manifest.modules) and (
            absent := [n for n in names if not _is_file(scene.root, n)]
        ):
            yield Finding(
                "fail",
                f"the kernel can't find {absent[0]}",
                "/run/provision/firmware is empty or of another version",
                f"provision load {driver.name}",
                driver.name,
            )


def selinux(scene: Scene) -> Iterator[Finding]:
    """SELinux allows the modules in the store to be loaded."""
    if scene.facts.selinux != "enforcing":
        return
    for driver, entry, manifest in scene.installed():
        path = entry / manifest.modules[0].path
        label = _label(path)
        if label is None:
            yield Finding(
                "unknown",
                f"the label of {path} can't be read",
                "the file system has no labels, or this is another machine's",
                "run this on the host itself, as root",
                driver.name,
            )
        elif _MODULE_TYPE not in label:
            yield Finding(
                "fail",
                f"the modules in the store have the label {label}",
                f"SELinux lets the kernel load only files of type {_MODULE_TYPE}",
                f"chcon -R -t {_MODULE_TYPE} {entry}/lib/modules; never setenforce 0",
                driver.name,
            )


def _demands_signatures(scene: Scene) -> str | None:
    """Return what makes the kernel refuse unsigned modules; None: it doesn't."""
    if scene.facts.lockdown in {"integrity", "confidentiality"}:
        return f"the kernel is locked down ({scene.facts.lockdown})"
    if scene.text("sys/module/module/parameters/sig_enforce") == "Y":
        return "module.sig_enforce is on"
    return None


def _without_link(scene: Scene, manifest: Manifest) -> list[str]:
    devices = in_root(scene.root, "dev")
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


def _label(path: Path) -> str | None:
    try:
        return os.getxattr(path, "security.selinux").decode().rstrip("\0")
    except OSError:
        return None
