"""Says why a build failed: the source line and the kernel, the checksum, the package, the disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from provision.engine.stream import BuildStream, StepRecord
from provision.errors import ExitCode, NotFoundError, ProvisionError
from provision.pin import Pin

# The classic builder keeps each step as an image without a name. Other programs (a matrix, `docker
# image prune`) may remove it before the next step has it as its parent.
# Source of the first text: SetParent in image/store.go of github.com/moby/moby. The second text is
# the answer to the creation of a container from such an image.
LAYER_LOST = re.compile(r"unknown parent image ID|[Nn]o such image: sha256:|layer does not exist")


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of failure.

    Attributes:
        message: Returns the message for the Pin and that line.
        is_outside: Whether the cause is neither the driver nor its Pin.
    """

    pattern: re.Pattern[str]
    message: Callable[[Pin, str], str]
    resolution: str
    exit_code: ExitCode = ExitCode.FAILED
    is_outside: bool = False


def what(pin: Pin) -> str:
    """Return the name of a build in messages."""
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
_DKMS_CAUSES = (
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
_CAUSES = (
    *_DKMS_CAUSES,
    Cause(
        LAYER_LOST,
        lambda pin, _line: f"{what(pin)} could not be built: other programs kept removing layers"
        " that the build uses.",
        "Stop what removes images of the engine, such as a timer with 'docker image prune', then"
        " run the command again.",
        is_outside=True,
    ),
    Cause(
        re.compile(r"[Nn]o space left on device"),
        lambda pin, _line: f"The engine's disk is full: {what(pin)} could not be built.",
        "Make room where the engine keeps its images (docker system df, docker image prune), "
        "then run the command again.",
        is_outside=True,
    ),
    Cause(
        re.compile(r"^(?P<file>\S+): FAILED( open or read)?$"),
        lambda pin, line: f"A download of {pin.driver.name} {pin.driver.version} has the wrong "
        f"sha256: {line.split(':', 1)[0]}.",
        "Either the source changed the file or someone altered it on the way: don't use it. "
        "Compare with the vendor's own checksum, then correct driver.toml or the mirror.",
    ),
    Cause(
        re.compile(r"Temporary failure resolving|Could not resolve|^[EW]: Failed to fetch|"
            r"^[EW]: Some index files failed to download|^E: Unable to fetch|Could not connect to"),
        lambda _pin, line: f"The build container could not download: {line}",
        "Check whether the build container reaches the archive: --network host, or name a "
        "proxy ([network] proxy) or a mirror in provision.toml.",
        is_outside=True,
    ),
    Cause(
        re.compile(r"^E: Version '.*' for '.*' was not found|^E: Unable to locate package"),
        lambda _pin, line: f"The archive no longer has a package that the Pin names: {line[3:]}.",
        "Resolve again, so that the versions come from the archive's present index; for an old "
        "kernel, name a mirror that keeps old packages.",
    ),
    Cause(
        re.compile(r"^collect: (?!\d+ modules)"),
        lambda pin, line: f"{what(pin)} was built, but not all that its recipe names: "
        f"{line.removeprefix('collect: ')}.",
        "Correct 'modules' and 'files' of the driver's driver.toml for this version.",
    ),
    Cause(
        re.compile(r"^kernel tree: the configuration drifted"),
        lambda pin, _line: f"The kernel tree can't be that of {pin.kernel.release}: its"
        " configuration drifted. The options are below.",
        "Take the source of exactly this kernel (a distro's kernel has patches of its own), and the"
        " configuration that it was built with: zcat /proc/config.gz. What a missing tool turned"
        " off is a mistake of provision: report it.",
    ),
    Cause(
        re.compile(r"^kernel tree: the kernel was built with"),
        lambda pin, line: f"The compiler is not that of {pin.kernel.release}:"
        f" {line.removeprefix('kernel tree: ')}.",
        "Name a distro, or a base image, that has the kernel's compiler: 'toolchain' of [[trees]],"
        " or 'base_images' of [distros.ID], in /etc/provision/provision.toml.",
    ),
    Cause(
        re.compile(r"^kernel tree: CONFIG_MODVERSIONS"),
        lambda pin, _line: f"The tree of {pin.kernel.release} has no Module.symvers, and the kernel"
        " has modversions: it would refuse the modules.",
        "Take the Module.symvers from the build of this kernel, and name it as 'symvers' of"
        " [[trees]] in /etc/provision/provision.toml.",
    ),
    Cause(
        re.compile(r"^kernel tree: "),
        lambda pin, line: f"The kernel tree can't serve {pin.kernel.release}:"
        f" {line.removeprefix('kernel tree: ')}.",
        "Name the right tree under [[trees]] in /etc/provision/provision.toml.",
    ),
    Cause(
        re.compile(r"^\d+ out of \d+ hunks? (FAILED|ignored)|^patch: \*{4}"),
        lambda pin, _line: f"A patch does not apply to {pin.driver.name} {pin.driver.version}.",
        "Correct the patch in the driver's patches/ folder, or its 'versions' in driver.toml.",
    ),
)  # fmt: skip


def cause_of(lines: Iterable[str]) -> tuple[Cause, str] | None:
    """Return the first known cause that the output of a step shows, and the line that shows it."""
    lines = list(lines)
    found = ((cause, line) for cause in _CAUSES for line in lines if cause.pattern.search(line))
    return next(found, None)


# GCC and clang: https://gcc.gnu.org/onlinedocs/gcc/Diagnostic-Message-Formatting-Options.html
_COMPILER = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<text>.+)$"
)
_MODPOST = re.compile(r"^ERROR: modpost: (?P<text>.+ \[(?P<file>[^\]]+)\] undefined!)$")
_EXCERPT = re.compile(r"^\s*(\d+ )?\s*\|")
_EXCERPT_LINES = 4
_ERRORS_SHOWN = 5
_LAST_LINES = 20
_INSTRUCTION_WIDTH = 160


@dataclass(frozen=True, slots=True)
class SourceError:
    """An error that the compiler reports.

    Attributes:
        line: Line number; None for an unresolved symbol.
    """

    file: str
    line: int | None
    text: str
    excerpt: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return "\n".join([f"{place}: error: {self.text}", *self.excerpt])


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """What is known of a failed build besides its message.

    Attributes:
        is_outside: Whether the cause is neither the driver nor its Pin, but a full disk or a
            network that fails. Other builds would fail alike.
        exit_code: ``NOT_FOUND`` where the driver itself says that it is not for the kernel.
    """

    steps: Sequence[StepRecord] = ()
    source_errors: Sequence[SourceError] = ()
    log: Path | None = None
    is_outside: bool = False
    exit_code: ExitCode = ExitCode.FAILED


class BuildError(ProvisionError):
    """A build that failed; the other attributes are those of its ``BuildFailure``."""

    def __init__(
        self,
        message: str,
        failure: BuildFailure = BuildFailure(),
        *,
        resolution: str,
        details: str,
    ) -> None:
        super().__init__(message, resolution=resolution, details=details)
        self.exit_code = failure.exit_code
        self.steps = tuple(failure.steps)
        self.log = failure.log
        self.source_errors = tuple(failure.source_errors)
        self.is_outside = failure.is_outside

    @property
    def step(self) -> StepRecord | None:
        """The instruction that failed, if one did."""
        return self.steps[-1] if self.steps else None

    def members(self) -> dict[str, object]:
        """Return the instruction that failed, and each error of the compiler."""
        return {
            "instruction": self.step.instruction if self.step else None,
            "source_errors": [asdict(error) for error in self.source_errors],
        }


def build_error(pin: Pin, stream: BuildStream, log: Path) -> BuildError:
    """Return the error of a failed build."""
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    where = f"Step {step.number}/{stream.total}: {_short(step.instruction)}" if step else ""
    failure = BuildFailure(stream.steps, source_errors(lines), log)
    if failure.source_errors:
        shown = [str(error) for error in failure.source_errors[:_ERRORS_SHOWN]]
        details = "\n".join([*shown, where, f"Whole output: {log}"])
        return _compile_error(pin, failure, details)
    ending = [where, *lines[-_LAST_LINES:], _reason(stream), f"Whole output: {log}"]
    details = "\n".join(line for line in ending if line)
    return _step_error(pin, failure, [*lines, stream.error or ""], details)


def kind_of(error: ProvisionError) -> Literal["compile", "build", "missing", "failed"]:
    """Return the kind of a failure, as status, metrics and the matrix name it.

    ``compile``: a compiler refused the source, and will do so again. ``build``: another step
    failed. ``missing``: headers, kernel, driver or version. ``failed``: everything else.
    """
    match error:
        case BuildError():
            return "compile" if error.source_errors else "build"
        case NotFoundError():
            return "missing"
        case _:
            return "failed"


def _short(instruction: str) -> str:
    words = " ".join(instruction.split())
    return words if len(words) <= _INSTRUCTION_WIDTH else f"{words[:_INSTRUCTION_WIDTH]}…"


def _reason(stream: BuildStream) -> str:
    """Return the message of the engine, without the whole instruction that it repeats."""
    if stream.exit_status is not None:
        return f"The step ended with exit status {stream.exit_status}."
    return stream.error or ""


def source_errors(lines: Sequence[str]) -> list[SourceError]:
    """Return the errors of compilers and modpost in the output of a build, in its order."""
    errors = []
    for index, line in enumerate(lines):
        if match := _COMPILER.match(line):
            excerpt = _excerpt(lines[index + 1 :])
            errors.append(SourceError(match["file"], int(match["line"]), match["text"], excerpt))
        elif match := _MODPOST.match(line):
            errors.append(SourceError(match["file"], None, match["text"]))
    return errors


def _excerpt(following: Sequence[str]) -> tuple[str, ...]:
    lines = []
    for line in following[:_EXCERPT_LINES]:
        if not _EXCERPT.match(line):
            break
        lines.append(line)
    return tuple(lines)


def _compile_error(pin: Pin, failure: BuildFailure, details: str) -> BuildError:
    first = failure.source_errors[0]
    place = first.file if first.line is None else f"{first.file} line {first.line}"
    number = len(failure.source_errors)
    count = "1 error" if number == 1 else f"{number} errors"
    return BuildError(
        f"{what(pin)} does not compile: {count}, the first in {place}.",
        failure,
        resolution="Take a driver version that supports this kernel (--version), another flavour"
        f" (--flavour) or another kernel ('provision drivers kernels {pin.driver.name}' lists"
        f" them). If"
        " there is none, add a patch to the driver's patches/ folder, or report the lines above to"
        " its vendor.",
        details=details,
    )


def _step_error(pin: Pin, failure: BuildFailure, lines: Sequence[str], details: str) -> BuildError:
    found = cause_of(lines)
    if found is None:
        return BuildError(
            f"{what(pin)} could not be built.",
            failure,
            resolution="The lines above are the failing step's last ones; the whole output has the"
            " rest.",
            details=details,
        )
    cause, line = found
    return BuildError(
        cause.message(pin, line),
        replace(failure, is_outside=cause.is_outside, exit_code=cause.exit_code),
        resolution=cause.resolution,
        details=details,
    )
