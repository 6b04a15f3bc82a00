"""Lets the kernel find the firmware of an artifact, which lies in the store and not below /lib.

The kernel looks into one folder of our choice before its own:
https://docs.kernel.org/driver-api/firmware/fw_search_path.html. It is made again at each load, on a
file system that a reboot empties, and holds links into the store.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from provision.errors import ProvisionError
from provision.files import in_root, switch_symlink
from provision.manifest import Manifest

FOLDER = PurePosixPath("run/provision/firmware")
PARAMETER = PurePosixPath("sys/module/firmware_class/parameters/path")
_PREFIXES = ("/usr/lib/firmware/", "/lib/firmware/")


def offer_firmware(entry: Path, manifest: Manifest, *, root: Path = Path("/")) -> bool:
    """Link an artifact's firmware to where the kernel looks.

    Args:
        entry: The artifact's folder.
        manifest: Its manifest.
        root: Root of the running host.

    Returns:
        Whether the artifact has any.

    Raises:
        ProvisionError: Another folder is set, so the kernel would not look into ours.
        OSError: The folder can't be written.
    """
    names = firmware_names(manifest)
    if not names:
        return False
    ours = f"/{FOLDER}"
    current = configured_folder(root)
    if current not in {"", ours}:
        raise ProvisionError(
            f"The kernel looks for firmware in '{current}', which someone else has set.",
            resolution=f"Remove firmware_class.path={current} from the kernel's command line (or"
            f" from whatever writes /{PARAMETER}), or copy the driver's firmware there and to"
            " /lib/firmware.",
        )
    real = entry.resolve()
    for name, path in names.items():
        target = f"/{(real / path).relative_to(root.resolve())}"
        switch_symlink(in_root(root, FOLDER / name, follow=False), target)
    if current != ours:
        # Not atomically: it is no file but a parameter of the kernel.
        in_root(root, PARAMETER).write_text(ours)
    return True


def firmware_names(manifest: Manifest) -> dict[str, str]:
    """Return what the kernel calls each firmware file, with its path in the artifact."""
    return {
        file.path.removeprefix(prefix): f"driver{file.path}"
        for file in manifest.files
        for prefix in _PREFIXES
        if file.kind == "firmware" and file.path.startswith(prefix)
    }


def configured_folder(root: Path) -> str:
    """Return the folder that the kernel looks into before its own; empty if there is none."""
    try:
        return in_root(root, PARAMETER).read_text().strip()
    except OSError:
        return ""
