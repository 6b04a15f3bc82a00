"""What the kernel has complained about since it started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from provision.doctor.scene import Finding, Scene
from provision.kmod.device_setup import firmware_names


@dataclass(frozen=True, slots=True)
class _Complaint:
    """What the kernel logs, what that means, and what to do.

    Attributes:
        names_firmware: The first group is a firmware file; those of other drivers don't count.
    """

    pattern: re.Pattern[str]
    cause: str
    cure: str
    names_firmware: bool = False


# Sources: kernel/module, security/lockdown and drivers/base/firmware_loader of the kernel; NVIDIA's
# resource manager (NVRM).
_COMPLAINTS = (
    _Complaint(
        re.compile(r"API mismatch: the client has (?:the )?version (\S+?),"),
        cause="a program uses libraries of another version than the module",
        cure="restart what still runs with the old libraries; the check old-files names it",
    ),
    _Complaint(
        re.compile(r"Direct firmware load for (\S+) failed"),
        cause="the kernel did not find the firmware",
        cure="provision load makes it known to the kernel; see the check firmware",
        names_firmware=True,
    ),
    _Complaint(
        re.compile(r"avc:\s+denied\s+\{ module_load \}"),
        cause="SELinux keeps modules from being loaded that lack the type modules_object_t",
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
        cure="provision apply builds it again for the running kernel",
    ),
)


def kernel_log(scene: Scene) -> Iterator[Finding]:
    """The kernel has not complained about drivers since it started."""
    if scene.log is None:
        yield Finding(
            "unknown",
            "the kernel's log can't be read",
            "only root may, and containers have none",
            "run as root, on the host itself",
        )
        return
    ours = {
        name for _driver, _entry, manifest in scene.installed() for name in firmware_names(manifest)
    }
    for complaint in _COMPLAINTS:
        lines = [line for line in scene.log if _applies(complaint, line, ours)]
        if lines:
            times = f" ({len(lines)} times)" if len(lines) > 1 else ""
            yield Finding("warn", f"{lines[-1]}{times}", complaint.cause, complaint.cure)


def _applies(complaint: _Complaint, line: str, firmware: set[str]) -> bool:
    match = complaint.pattern.search(line)
    if match is None:
        return False
    return not complaint.names_firmware or match[1] in firmware
