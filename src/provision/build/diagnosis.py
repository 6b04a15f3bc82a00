"""Says why a build failed: the source line and the kernel, the checksum, the package, the disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from provision.build.failure_causes import DKMS_CAUSES, Cause, what
from provision.engine.stream import BuildStream, StepRecord
from provision.errors import ExitCode, NotFoundError, ProvisionError
from provision.pin import Pin

# GCC and clang: https://gcc.gnu.org/onlinedocs/gcc/Diagnostic-Message-Formatting-Options.html
_COMPILER = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<text>.+)$"
)
_MODPOST = re.compile(r"^ERROR: modpost: (?P<text>.+ \[(?P<file>[^\]]+)\] undefined!)$")
# The classic builder keeps each step as an image without a name, and other programs may remove it
# before the next step has it as its parent: a matrix, `docker image prune`.
# Source of the first: SetParent in image/store.go of github.com/moby/moby; of the second: what
# creating a container from such an image answers.
LAYER_LOST = re.compile(r"unknown parent image ID|[Nn]o such image: sha256:|layer does not exist")
_EXCERPT = re.compile(r"^\s*(\d+ )?\s*\|")
_EXCERPT_LINES = 4
_ERRORS_SHOWN = 5
_LAST_LINES = 20
_INSTRUCTION_WIDTH = 160


@dataclass(frozen=True, slots=True)
class SourceError:
    """One complaint of the compiler.

    Attributes:
        file: As the compiler names it.
        line: Line number; None for an unresolved symbol.
        text: The complaint.
        excerpt: The source text that the compiler shows with it.
    """

    file: str
    line: int | None
    text: str
    excerpt: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return "\n".join([f"{place}: error: {self.text}", *self.excerpt])


class BuildError(ProvisionError):
    """A build that failed.

    Attributes:
        source_errors: What the compiler complained about, if it did.
        steps: The instructions that were run; the last one failed, if one did.
        log: The file with the whole output.
        is_outside: Whether the cause lies outside of the driver and its Pin: a full disk, a
            network that fails. Other builds would fail alike.
        exit_code: NOT_FOUND where the driver itself says that it is not for the kernel.
    """

    def __init__(
        self,
        message: str,
        *,
        resolution: str,
        details: str,
        steps: Sequence[StepRecord] = (),
        source_errors: Sequence[SourceError] = (),
        log: Path | None = None,
        is_outside: bool = False,
        exit_code: ExitCode = ExitCode.FAILED,
    ) -> None:
        super().__init__(message, resolution=resolution, details=details)
        self.exit_code = exit_code
        self.steps = tuple(steps)
        self.log = log
        self.source_errors = tuple(source_errors)
        self.is_outside = is_outside

    @property
    def step(self) -> StepRecord | None:
        """The instruction that failed, if one did."""
        return self.steps[-1] if self.steps else None

    def members(self) -> dict[str, object]:
        """Return the instruction that failed, and each complaint of the compiler."""
        return {
            "instruction": self.step.instruction if self.step else None,
            "source_errors": [asdict(error) for error in self.source_errors],
        }


_CAUSES = (
    *DKMS_CAUSES,
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
        "Check whether the build container reaches the archive: --network host, a proxy in the "
        "environment, or a mirror in provision.toml.",
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
        "Take the Module.symvers of the very build of the kernel, and name it as 'symvers' of"
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


def build_error(pin: Pin, stream: BuildStream, log: Path) -> BuildError:
    """Make the error of a failed build.

    Args:
        pin: What was to be built.
        stream: What the engine said.
        log: The file with the whole output.
    """
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    found = source_errors(lines)
    where = f"Step {step.number}/{stream.total}: {_short(step.instruction)}" if step else ""
    ending = [*lines[-_LAST_LINES:], _reason(stream), f"Whole output: {log}"]
    is_outside, exit_code = False, ExitCode.FAILED
    if found:
        message, resolution = _compile_failure(pin, found)
        shown = [str(error) for error in found[:_ERRORS_SHOWN]]
        details = "\n".join([*shown, where, f"Whole output: {log}"])
    else:
        message, resolution, exit_code, is_outside = _other_failure(
            pin, [*lines, stream.error or ""]
        )
        details = "\n".join(line for line in [where, *ending] if line)
    return BuildError(
        message,
        resolution=resolution,
        details=details,
        steps=stream.steps,
        source_errors=found,
        log=log,
        is_outside=is_outside,
        exit_code=exit_code,
    )


def kind_of(error: ProvisionError) -> Literal["compile", "build", "missing", "failed"]:
    """Return why an artifact could not be had, as status, metrics and the matrix name it.

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
    """Return what the engine says, without the whole instruction that it repeats."""
    if stream.exit_status is not None:
        return f"The step ended with exit status {stream.exit_status}."
    return stream.error or ""


def source_errors(lines: Sequence[str]) -> list[SourceError]:
    """Return what compilers and modpost complained about in a build's output, in its order."""
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


def _compile_failure(pin: Pin, found: Sequence[SourceError]) -> tuple[str, str]:
    first = found[0]
    place = first.file if first.line is None else f"{first.file} line {first.line}"
    count = "1 error" if len(found) == 1 else f"{len(found)} errors"
    message = f"{what(pin)} does not compile: {count}, the first in {place}."
    resolution = (
        "Take a driver version that supports this kernel (--version), another flavour (--flavour)"
        f" or another kernel ('provision kernels {pin.driver.name}' lists them). If there is none,"
        " add a patch to the driver's patches/ folder, or report the lines above to its vendor."
    )
    return message, resolution


def _other_failure(pin: Pin, lines: Sequence[str]) -> tuple[str, str, ExitCode, bool]:
    for cause in _CAUSES:
        for line in lines:
            if cause.pattern.search(line):
                said = cause.message(pin, line)
                return said, cause.resolution, cause.exit_code, cause.is_outside
    return (
        f"{what(pin)} could not be built.",
        "The lines above are the failing step's last ones; the whole output has the rest.",
        ExitCode.FAILED,
        False,
    )
