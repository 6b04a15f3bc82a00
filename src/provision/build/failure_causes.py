"""What a line of a failed build says, and what to do about it; those of a dkms.conf are here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from provision.errors import ExitCode
from provision.pin import Pin


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of failure: how its lines look, what to say about it, what to do.

    Attributes:
        pattern: Found in the line.
        message: Makes the message of the Pin and that line.
        resolution: What to do next.
        exit_code: Of the command.
        is_outside: Whether the cause lies outside of the driver and its Pin.
    """

    pattern: re.Pattern[str]
    message: Callable[[Pin, str], str]
    resolution: str
    exit_code: ExitCode = ExitCode.FAILED
    is_outside: bool = False


def what(pin: Pin) -> str:
    """Return what was to be built, as messages call it."""
    return (
        f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour}) for kernel "
        f"{pin.kernel.release}"
    )


def _said(line: str, before: str) -> str:
    return line.partition(before)[2].strip().rstrip(".")


_OWN_BUILD = (
    "Say in driver.toml how the driver is built instead: kind 'deb', 'archive' or 'git', with"
    " [flavours.NAME.build] (docs/reference/driver-toml.md)."
)
# The lines are those of templates/dkms/dkms.bash.
DKMS_CAUSES = (
    Cause(
        re.compile(r"^dkms: excluded: "),
        lambda pin, line: f"{what(pin)} is not built, because its dkms.conf excludes this kernel:"
        f" {_said(line, 'excluded: ')}.",
        "Take another version of the driver (--version), or a kernel that it is for (--kernel)."
        " 'kernels' in driver.toml lets such kernels be refused before a build.",
        ExitCode.NOT_FOUND,
    ),
    Cause(
        re.compile(r"^dkms: BUILD_DEPENDS"),
        lambda pin, line: f"{what(pin)} needs modules of other DKMS packages, which one recipe does"
        f" not build: {_said(line, 'packages:')}.",
        "Build the sources together: kind 'git', with the other package's repository as one of"
        " [[source.releases.submodules]], or an archive that holds all of them; then"
        " [flavours.NAME.build] with a 'command' that makes them in their order, and the modules"
        " of all under 'modules' (docs/reference/driver-toml.md). If the modules need no symbols"
        " of the other ones, remove BUILD_DEPENDS with a patch in the driver's patches/ folder.",
        ExitCode.NOT_FOUND,
    ),
    Cause(
        re.compile(r"^dkms: reading dkms\.conf changes files: "),
        lambda pin, line: f"The dkms.conf of {pin.driver.name} {pin.driver.version} runs commands"
        f" that change files while it is read: {_said(line, 'files: ')}.",
        "Move those commands to a script, and name that as PRE_BUILD: a dkms.conf only sets"
        " variables. A patch in the driver's patches/ folder can do it.",
    ),
    Cause(
        re.compile(r"^dkms: (reading \S+ did not end|dkms\.conf (ends itself|is no program))"),
        lambda pin, line: f"The dkms.conf of {pin.driver.name} {pin.driver.version} can't be read:"
        f" {_said(line, 'dkms: ')}.",
        "Correct it with a patch in the driver's patches/ folder: a dkms.conf only sets variables.",
    ),
    Cause(
        re.compile(r"^dkms: (no|several) dkms\.conf"),
        lambda pin, line: f"The source of {pin.driver.name} {pin.driver.version} has"
        f" {_said(line, 'dkms: ')}.",
        "Name the folder that has the right one as 'directory' of the source in driver.toml, or say"
        " there how the driver is built.",
    ),
    Cause(
        re.compile(r"^dkms: dkms\.conf (does not set|sets) "),
        lambda pin, line: f"The dkms.conf of {pin.driver.name} {pin.driver.version} is incomplete:"
        f" {_said(line, 'dkms: ')}.",
        "Correct it with a patch in the driver's patches/ folder. Where a name or a version is a"
        " template, the vendor's own build fills it in. " + _OWN_BUILD,
    ),
    Cause(
        re.compile(r"^dkms: (the patch|dkms\.conf names the patch) "),
        lambda pin, line: f"{what(pin)} could not be built: {_said(line, 'dkms: ')}.",
        "The dkms.conf names that patch for this kernel (PATCH, PATCH_MATCH): take another version"
        " of the driver (--version), or correct it with a patch in the driver's patches/ folder.",
    ),
    Cause(
        re.compile(r"^dkms: dkms\.conf uses variables that nothing sets: "),
        lambda pin, line: f"{what(pin)} could not be built, and its dkms.conf uses variables that"
        f" nothing sets: {_said(line, 'sets: ')}.",
        "The lines above say what failed. If such a variable is the reason, set it with a patch of"
        " dkms.conf in the driver's patches/ folder; DKMS itself sets kernelver, arch,"
        " kernel_source_dir, dkms_tree and source_tree.",
    ),
    Cause(
        re.compile(r"^dkms: the build did not make: "),
        lambda pin, line: f"The dkms.conf of {what(pin)} names modules that did not come out:"
        f" {_said(line, 'make: ')}.",
        "Compare BUILT_MODULE_NAME and BUILT_MODULE_LOCATION with what the build made, which the"
        " lines above say; a kernel without an option may lack a module.",
    ),
    Cause(
        re.compile(r"^dkms: "),
        lambda pin, line: f"{what(pin)} could not be built: {_said(line, 'dkms: ')}.",
        "The lines above are the failing step's last ones; the whole output has the rest.",
    ),
)  # fmt: skip
