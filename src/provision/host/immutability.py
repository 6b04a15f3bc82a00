"""Whether and how a host keeps its system from being changed."""

from __future__ import annotations

from pathlib import Path

from provision.rootfs import in_root


def immutable_kind(root: Path, distro: str) -> str | None:
    """Return ``ostree``, ``flatcar``, ``transactional``, ``read-only``, or None for none of them.

    Args:
        root: Root of the host.
        distro: Its id, as in os-release.
    """
    if in_root(root, "run/ostree-booted").exists():
        return "ostree"
    if distro == "flatcar":
        return "flatcar"
    read_only = _is_read_only(root)
    updater = any(in_root(root, f"{f}/transactional-update").exists() for f in ("usr/sbin", "sbin"))
    # The program can be installed on an ordinary host too, where it does no harm.
    if updater and read_only is not False:
        return "transactional"
    return "read-only" if read_only else None


def _is_read_only(root: Path) -> bool | None:
    """Return whether /usr is mounted read-only; None if nothing tells (a root that isn't running).

    Source: fstab(5), the format of /proc/mounts; a later line hides an earlier one.
    """
    try:
        lines = in_root(root, "proc/mounts").read_text().splitlines()
    except OSError:
        return None
    options = {fields[1]: fields[3].split(",") for fields in map(str.split, lines)}
    mounted = options.get("/usr", options.get("/"))
    return None if mounted is None else "ro" in mounted
