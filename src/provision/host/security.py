"""What on a host restricts loading modules and reading files."""

from __future__ import annotations

import re
from pathlib import Path

from provision.rootfs import in_root

# UEFI specification 2.10, section 3.3: the global variables' GUID.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# efivarfs puts four bytes of attributes before the value:
# https://docs.kernel.org/filesystems/efivarfs.html
_ATTRIBUTES = 4


def secure_boot(root: Path) -> str:
    """Return ``enabled``, ``disabled``, ``absent`` (no UEFI) or ``unknown`` (no access)."""
    firmware = in_root(root, "sys/firmware/efi")
    if not firmware.is_dir():
        return "absent"
    try:
        value = in_root(root, f"sys/firmware/efi/efivars/{_SECURE_BOOT}").read_bytes()[_ATTRIBUTES:]
    except FileNotFoundError:
        # A firmware without the variable has no Secure Boot; without efivarfs nobody knows.
        mounted = any((firmware / "efivars").glob("*"))
        return "absent" if mounted else "unknown"
    except OSError:
        return "unknown"
    return "enabled" if value == b"\x01" else "disabled"


def lockdown(root: Path) -> str | None:
    """Return the kernel's lockdown, or None where it has none.

    Source: kernel_lockdown(7): ``none [integrity] confidentiality``.
    """
    try:
        text = in_root(root, "sys/kernel/security/lockdown").read_text()
    except OSError:
        return None
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else None


def selinux(root: Path) -> str:
    """Return ``enforcing``, ``permissive``, ``disabled`` or ``absent``.

    Of a root that isn't running it is what its configuration asks for.
    """
    try:
        text = in_root(root, "sys/fs/selinux/enforce").read_text()
    except OSError:
        pass
    else:
        return "enforcing" if text == "1" else "permissive"
    configured = _configured(in_root(root, "etc/selinux/config"))
    if configured is None:
        return "absent"
    return "disabled" if in_root(root, "sys/fs").is_dir() else configured


def _configured(path: Path) -> str | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    match = re.search(r"^SELINUX=(enforcing|permissive|disabled)\s*$", text, re.MULTILINE)
    return match[1] if match else "disabled"
