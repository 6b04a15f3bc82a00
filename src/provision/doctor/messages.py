"""What the kernel has complained about since it started."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.doctor.finding import Finding
from provision.doctor.scene import Scene

# What the kernel logs, what that means, and what to do. Sources: kernel/module, security/lockdown,
# drivers/base/firmware_loader of the kernel; NVIDIA's resource manager (NVRM).
_COMPLAINTS = (
    (
        re.compile(r"API mismatch: the client has (?:the )?version (\S+?),"),
        "a program uses libraries of another version than the module",
        "restart what still runs with the old libraries; 'provision doctor' names it in old-files",
    ),
    (
        re.compile(r"Direct firmware load for (\S+) failed"),
        "the kernel did not find the firmware",
        "provision load makes it known to the kernel; see the check firmware",
    ),
    (
        re.compile(r"avc:\s+denied\s+\{ module_load \}"),
        "SELinux keeps modules from being loaded that don't have the type modules_object_t",
        "see the check selinux",
    ),
    (
        re.compile(r"Loading of (unsigned module|module with \S+ \S+) is rejected"),
        "this kernel takes only modules that are signed with a key that it knows",
        "docs/how-to/secure-boot.md",
    ),
    (
        re.compile(r"Lockdown: .*module loading is restricted"),
        "the kernel is locked down and takes only modules that are signed with a key that it knows",
        "docs/how-to/secure-boot.md",
    ),
    (
        re.compile(r"version magic '[^']*' should be '[^']*'|disagrees about version of symbol"),
        "a module was built for another kernel or with other headers",
        "provision apply builds it anew for the running kernel",
    ),
)


def kernel_log(scene: Scene) -> Iterator[Finding]:
    """The kernel did not complain since it started."""
    if scene.log is None:
        yield Finding(
            "unknown",
            "the kernel's log can't be read",
            "only root may, and containers have none",
            "run as root, on the host itself",
        )
        return
    for pattern, cause, cure in _COMPLAINTS:
        lines = [line for line in scene.log if pattern.search(line)]
        if lines:
            times = f" ({len(lines)} times)" if len(lines) > 1 else ""
            yield Finding("warn", f"{lines[-1]}{times}", cause, cure)
