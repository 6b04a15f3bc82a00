"""Under SELinux, modprobe in this process's own domain.

Policies send modprobe to a domain of its own (``kmod_t``), and those of the reference policy
(Debian's) let that one into /lib/modules but not into /var/lib, whatever label the store's files
have. Who installs drivers may read the store and load modules; so no other domain is needed.
"""

from __future__ import annotations

from pathlib import Path

from provision.host.security import selinux
from provision.rootfs import in_root


def in_own_domain(argv: list[str | Path], root: Path = Path("/")) -> list[str | Path]:
    """Return an argument list that runs a program in this process's own SELinux domain.

    Args:
        argv: Program and arguments.
        root: Root of the running host.

    Source: runcon(1), of coreutils; proc_pid_attr(5).
    """
    if selinux(root) not in {"enforcing", "permissive"}:
        return argv
    try:
        context = in_root(root, "proc/self/attr/current").read_text().rstrip("\0\n")
    except OSError:
        # The kernel has no SELinux, whatever the configuration says.
        return argv
    return ["runcon", context, *argv] if context else argv
