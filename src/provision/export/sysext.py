"""System extension images: several kernels' artifacts of a driver, and the unit that loads one.

Sources: systemd-sysext(8), os-release(5) for extension-release files, and
https://uapi-group.org/specifications/specs/extension_image/.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.build.dockerfile import shell_word
from provision.build.request import DriverRequest
from provision.errors import NotFoundError, UsageError
from provision.export import ArtifactSource, check_driver
from provision.files import copy_output, scratch, templates_dir
from provision.kmod.loader import firmware_names, link_modules, loader_script
from provision.loader_script import Place
from provision.manifest import Manifest
from provision.pin import names_of
from provision.progress import Note, report
from provision.run import LONG_LIMIT_S, find_program, run
from provision.store.activate import modprobe_config, vendor_config
from provision.store.layout import Layout
from provision.store.units import filled

_TOP = PurePosixPath("/usr/lib/provision")
_UNITS = "usr/lib/systemd/system"
# The same files give the same bytes: no time, owner, or random table of the machine's.
_SQUASHFS = (
    *("-noappend", "-all-root", "-all-time", "0", "-mkfs-time", "0", "-no-xattrs", "-no-exports"),
    *("-comp", "zstd", "-no-progress", "-quiet"),
)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The systems that an extension merges with."""

    # ``ID`` of os-release; ``_any``: every system, since the unit checks the kernel.
    id: str = "_any"
    # ``VERSION_ID`` of os-release; None: any.
    version_id: str | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """An unpacked artifact and its manifest."""

    folder: Path
    manifest: Manifest


def need_mksquashfs() -> None:
    """Check that the program that makes the image is installed."""
    if find_program("mksquashfs") is None:
        raise NotFoundError(
            "There is no program mksquashfs, which makes system extensions.",
            resolution="apt-get install squashfs-tools (Fedora, EL: dnf install squashfs-tools)",
        )


def extension_name(driver: str) -> str:
    """Return the name of a driver's extension: its file's, without ``.raw``."""
    return f"provision-{driver}"


def lay_out(tree: Path, artifacts: Sequence[Artifact], hosts: Hosts) -> None:
    """Fill a new folder with the extension's files below /usr."""
    first = artifacts[0].manifest.pin
    driver = first.driver.name
    _check_alike(artifacts)
    top = tree / _TOP.relative_to("/") / driver
    for artifact in artifacts:
        manifest = artifact.manifest
        entry = _TOP / driver / manifest.pin.short_digest
        shutil.copytree(artifact.folder, top / entry.name, symlinks=True)
        link_modules(top / entry.name)
        kernels = _TOP / driver / "kernels" / manifest.pin.kernel.release
        place = tree / kernels.relative_to("/")
        place.mkdir(parents=True)
        vendor_file = _vendor_file(manifest, entry)
        where = Place(str(entry), vendor_file=str(kernels / "vendor.json") if vendor_file else "")
        (place / "load").write_text(loader_script(artifact.folder, manifest, where))
        if vendor_file:
            (place / "vendor.json").write_text(vendor_file)
        for name, path in firmware_names(manifest).items():
            target = tree / "usr/lib/firmware" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact.folder / path, target)
    _units(tree, first.driver.name, first.driver.version)
    # Not the driver's own: a kernel that the extension has nothing for loads the in-tree copies.
    blacklist = modprobe_config(driver, conflicts=artifacts[0].manifest.host.conflicts)
    if blacklist is not None:
        _write(tree / f"usr/lib/modprobe.d/provision-{driver}.conf", blacklist)
    _release(tree, driver, names_of(first.kernel.architecture).systemd, hosts)
    for parent, _folders, names in os.walk(tree):
        Path(parent).chmod(0o755)
        for file in (Path(parent, name) for name in names):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def export_sysext(
    source: ArtifactSource,
    requests: Sequence[DriverRequest | str],
    hosts: Hosts,
    driver: str,
    folder: Path,
) -> tuple[Path, list[Manifest]]:
    """Make the extension of a driver in a new folder; return it, and what it has.

    Args:
        requests: Its artifacts: requests for them, or names of their images.
    """
    target = folder / f"{extension_name(driver)}.raw"
    with scratch(source.settings.state, "export") as work:
        artifacts = []
        for number, one in enumerate(requests):
            place = work / str(number)
            if isinstance(one, str):
                artifacts.append(Artifact(place, source.unpack(one, place)))
                check_driver(artifacts[-1].manifest, driver, one)
            else:
                artifacts.append(Artifact(place, source.artifact(one, place)))
        tree, image = work / "tree", work / "extension.squashfs"
        lay_out(tree, artifacts, hosts)
        report(Note(f"Packing {target.name}"))
        # Reproducible; equal files are stored once.
        words: list[str | Path] = ["mksquashfs", tree, image, *_SQUASHFS]
        run(words, why="make the system extension", timeout=LONG_LIMIT_S)
        copy_output(image, target)
    return target, [artifact.manifest for artifact in artifacts]


def _check_alike(artifacts: Sequence[Artifact]) -> None:
    pins = [artifact.manifest.pin for artifact in artifacts]
    for what, names in (
        ("drivers", {pin.driver.name for pin in pins}),
        ("versions", {pin.driver.version for pin in pins}),
        ("architectures", {pin.kernel.architecture for pin in pins}),
    ):
        if len(names) > 1:
            raise UsageError(
                f"The artifacts are of several {what}: {', '.join(sorted(names))}.",
                resolution="Make an extension of each: its user space is that of one version.",
            )
    kernels = [pin.kernel.release for pin in pins]
    if twice := sorted({kernel for kernel in kernels if kernels.count(kernel) > 1}):
        raise UsageError(
            f"Two artifacts are for the kernel {twice[0]}.", resolution="Leave one of them out."
        )


def _vendor_file(manifest: Manifest, entry: PurePosixPath) -> str | None:
    text = vendor_config(Layout(Path("/"), manifest.pin.driver.name), manifest)
    if text is None:
        return None
    document = json.loads(text) | {"root": str(entry / "driver")}
    return json.dumps(document, indent=2) + "\n"


def _units(tree: Path, driver: str, version: str) -> None:
    name = f"{extension_name(driver)}.service"
    _write(
        tree / _UNITS / name,
        filled("sysext/provision.service.j2", templates_dir(), driver=driver, version=version),
    )
    # Nothing enables units of a merged extension, so it includes the link that enables one.
    link = tree / _UNITS / "multi-user.target.wants" / name
    link.parent.mkdir()
    link.symlink_to(f"../{name}")


def _release(tree: Path, driver: str, architecture: str, hosts: Hosts) -> None:
    name = f"extension-release.{extension_name(driver)}"
    lines = [f"ID={shell_word(hosts.id)}"]
    lines += [f"VERSION_ID={shell_word(hosts.version_id)}"] if hosts.version_id else []
    # systemd 255 and newer then load the new units by themselves.
    lines += [f"ARCHITECTURE={architecture}", "EXTENSION_RELOAD_MANAGER=1", ""]
    _write(tree / "usr/lib/extension-release.d" / name, "\n".join(lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
