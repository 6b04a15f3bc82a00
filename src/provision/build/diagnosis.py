"""Says why a build failed: the source line and the kernel, the checksum, the package, the disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from provision.distros.family import fill
from provision.engine.stream import BuildStream, StepRecord, layers_of
from provision.errors import ExitCode, ProvisionError, redact
from provision.pin import Pin

# The classic builder keeps each step as an image without a name. Other programs (a matrix, `docker
# image prune`) may remove it before the next step has it as its parent.
# Source of the first text: SetParent in image/store.go of github.com/moby/moby. The second text is
# the answer to the creation of a container from such an image.
# An engine of one architecture takes an empty layer of another's image from its cache, and then
# refuses it (moby's classic builder does).
OTHER_PLATFORM = re.compile(r"was found but does not match the specified platform")
LAYER_LOST = re.compile(r"unknown parent image ID|[Nn]o such image: sha256:|layer does not exist")


class _Cause(NamedTuple):
    """A known cause of failed builds.

    ``pattern`` matches a line of the output; its group ``said``, or else the line, is one of the
    placeholders of ``message``. ``is_outside``: the cause is neither the driver nor its Pin.
    """

    pattern: str
    message: str
    resolution: str
    exit_code: ExitCode = ExitCode.FAILED
    is_outside: bool = False


# What lines of our programs in the build container begin with.
_OUR_PROGRAMS = "(?:collect|extras|kernel tree|unpack)"
_OWN_BUILD = (
    "Say in driver.toml how the driver is built instead: kind 'deb', 'archive' or 'git', with"
    " [flavours.NAME.build] (docs/reference/driver-toml.md)."
)
_SET_BY_PATCH = "a dkms.conf only sets variables."
_CAUSES = (
    # The lines are those of templates/dkms/dkms.bash.
    _Cause(
        r"^dkms: excluded: (?P<said>.*)",
        "{what} is not built, because its dkms.conf excludes this kernel: {said}.",
        "Take another version of the driver (--version), or a kernel that it is for (--kernel)."
        " 'kernels' in driver.toml lets such kernels be refused before a build.",
        ExitCode.NOT_FOUND,
    ),
    _Cause(
        r"^dkms: BUILD_DEPENDS names other DKMS packages:(?P<said>.*)",
        "{what} needs modules of other DKMS packages, which one recipe does not build: {said}.",
        "Build the sources together: kind 'git', with the other package's repository as one of"
        " [[source.releases.submodules]], or an archive that holds all of them; then"
        " [flavours.NAME.build] with a 'command' that makes them in their order, and the modules"
        " of all under 'modules' (docs/reference/driver-toml.md). If the modules need no symbols"
        " of the other ones, remove BUILD_DEPENDS with a patch in the driver's patches/ folder.",
        ExitCode.NOT_FOUND,
    ),
    _Cause(
        r"^dkms: reading dkms\.conf changes files: (?P<said>.*)",
        "The dkms.conf of {driver} runs commands that change files while it is read: {said}.",
        f"Move those commands to a script, and name that as PRE_BUILD: {_SET_BY_PATCH} A patch in"
        " the driver's patches/ folder can do it.",
    ),
    _Cause(
        r"^dkms: (?P<said>reading \S+ did not end.*|dkms\.conf (?:ends itself|is no program).*)",
        "The dkms.conf of {driver} can't be read: {said}.",
        f"Correct it with a patch in the driver's patches/ folder: {_SET_BY_PATCH}",
    ),
    _Cause(
        r"^dkms: (?P<said>(?:no|several) dkms\.conf.*)",
        "The source of {driver} has {said}.",
        "Name the folder that has the right one as 'directory' of the source in driver.toml, or say"
        " there how the driver is built.",
    ),
    _Cause(
        r"^dkms: (?P<said>dkms\.conf (?:does not set|sets) .*)",
        "The dkms.conf of {driver} is incomplete: {said}.",
        "Correct it with a patch in the driver's patches/ folder. Where a name or a version is a"
        f" template, the vendor's own build fills it in. {_OWN_BUILD}",
    ),
    _Cause(
        r"^dkms: (?P<said>(?:the patch|dkms\.conf names the patch) .*)",
        "{what} could not be built: {said}.",
        "The dkms.conf names that patch for this kernel (PATCH, PATCH_MATCH): take another version"
        " of the driver (--version), or correct it with a patch in the driver's patches/ folder.",
    ),
    _Cause(
        r"^dkms: dkms\.conf runs programs that the build has not: (?P<said>.*)",
        "The dkms.conf of {driver} runs programs that the build container does not have: {said}.",
        'Name their packages in driver.toml, under [source]: packages = ["…"].',
    ),
    _Cause(
        r"^dkms: the running kernel is asked for: (?P<said>.*)",
        "{what} could not be built, and its source asks for the running kernel: {said}.",
        "A build is for a kernel that need not run: put $kernelver of the dkms.conf in the place of"
        " 'uname -r', such as MAKE=\"make KVER=$kernelver\" for that line, with a patch in the"
        " driver's patches/ folder.",
    ),
    _Cause(
        r"^dkms: dkms\.conf uses variables that nothing sets: (?P<said>.*)",
        "{what} could not be built, and its dkms.conf uses variables that nothing sets: {said}.",
        "The lines above say what failed. If such a variable is the reason, set it with a patch of"
        " dkms.conf in the driver's patches/ folder; DKMS itself sets kernelver, arch,"
        " kernel_source_dir, dkms_tree and source_tree.",
    ),
    _Cause(
        r"^dkms: the build did not make: (?P<said>.*)",
        "The dkms.conf of {what} names modules that did not come out: {said}.",
        "Compare BUILT_MODULE_NAME and BUILT_MODULE_LOCATION with what the build made, which the"
        " lines above say; a kernel without an option may lack a module.",
    ),
    _Cause(
        r"^dkms: (?P<said>.*)",
        "{what} could not be built: {said}.",
        "The lines above are the failing step's last ones; the whole output has the rest.",
    ),
    _Cause(
        LAYER_LOST.pattern,
        "{what} could not be built: other programs kept removing layers that the build uses.",
        "Stop what removes images of the engine, such as a timer with 'docker image prune', then"
        " run the command again.",
        is_outside=True,
    ),
    _Cause(
        r"exec format error$",
        "{what} could not be built: this machine can't run programs of its architecture.",
        "Let QEMU run them (sudo apt-get install qemu-user-binfmt; before Debian 13:"
        " qemu-user-static).",
        is_outside=True,
    ),
    _Cause(
        r"[Nn]o space left on device",
        "The engine's disk is full: {what} could not be built.",
        "Make room where the engine keeps its images (docker system df, docker image prune), "
        "then run the command again.",
        is_outside=True,
    ),
    _Cause(
        r"^(?P<said>\S+): FAILED( open or read)?$",
        "A download of {driver} has the wrong sha256: {said}.",
        "Either the source changed the file or someone altered it on the way: don't use it. "
        "Compare with the vendor's own checksum, then correct driver.toml or the mirror.",
    ),
    _Cause(
        r"Temporary failure resolving|Could not resolve|^[EW]: Failed to fetch|"
        r"^[EW]: Some index files failed to download|^E: Unable to fetch|Could not connect to",
        "The build container could not download: {said}",
        "Check whether the build container reaches the archive: --network host, or name a "
        "proxy ([network] proxy) or a mirror in provision.toml.",
        is_outside=True,
    ),
    _Cause(
        r"^E: (?P<said>(?:Version '.*' for '.*' was not found|Unable to locate package).*)",
        "The archive no longer has a package that the Pin names: {said}.",
        "Resolve again, so that the versions come from the archive's present index; for an old "
        "kernel, name a mirror that keeps old packages.",
    ),
    # The lines are those of build/step.py.
    _Cause(
        rf"^{_OUR_PROGRAMS}: mistake: (?P<said>.*)",
        "{what} could not be built, by a mistake of provision: {said}.",
        "Report it, with the whole output.",
    ),
    _Cause(
        rf"^{_OUR_PROGRAMS}: failed: (?P<said>.*)",
        "{what} could not be built: {said}.",
        "The lines above are the failing step's last ones; the whole output has the rest. Where a"
        " program is missing, name its package under 'packages' of the build in driver.toml.",
    ),
    _Cause(
        r"^collect: (?!\d+ modules)(?P<said>.*)",
        "{what} was built, but not all that its recipe names: {said}.",
        "Correct 'modules' and 'files' of the driver's driver.toml for this version.",
    ),
    _Cause(
        r"^unpack: (?!\d+ files)(?P<said>.*)",
        "The source of {driver} can't be unpacked: {said}.",
        "Compare the file with the vendor's own; then correct the source in driver.toml: its"
        " address and sha256, 'strip' of the release, 'archive' of the build.",
    ),
    _Cause(
        r"^kernel tree: the configuration drifted",
        "The kernel tree can't be that of {kernel}: its configuration drifted. The options are"
        " below.",
        "Take the source of exactly this kernel (a distro's kernel has patches of its own), and the"
        " configuration that it was built with: zcat /proc/config.gz. What a missing tool turned"
        " off is a mistake of provision: report it.",
    ),
    _Cause(
        r"^kernel tree: (?P<said>the kernel was built with.*)",
        "The compiler is not that of {kernel}: {said}.",
        "Name a distro, or a base image, that has the kernel's compiler: 'toolchain' of [[trees]],"
        " or 'base_images' of [distros.ID], in /etc/provision/provision.toml.",
    ),
    _Cause(
        r"^kernel tree: CONFIG_MODVERSIONS",
        "The tree of {kernel} has no Module.symvers, and the kernel has modversions: it would"
        " refuse the modules.",
        "Take the Module.symvers from the build of this kernel, and name it as 'symvers' of"
        " [[trees]] in /etc/provision/provision.toml.",
    ),
    _Cause(
        r"^kernel tree: (?P<said>.*)",
        "The kernel tree can't serve {kernel}: {said}.",
        "Name the right tree under [[trees]] in /etc/provision/provision.toml.",
    ),
    _Cause(
        r"^\d+ out of \d+ hunks? (FAILED|ignored)|^patch: \*{4}",
        "A patch does not apply to {driver}.",
        "Correct the patch in the driver's patches/ folder, or its 'versions' in driver.toml.",
    ),
)


_UNKNOWN = _Cause(
    "",
    "{what} could not be built.",
    "The lines above are the failing step's last ones; the whole output has the rest.",
)


def _cause_of(lines: Sequence[str]) -> tuple[_Cause, str]:
    """Return the first known cause that the output of a step shows, and what the line says."""
    for cause in _CAUSES:
        pattern = re.compile(cause.pattern)
        for line in lines:
            if match := pattern.search(line):
                said = match.groupdict().get("said")
                return cause, line if said is None else said.strip().rstrip(".")
    return _UNKNOWN, ""


# GCC and clang: https://gcc.gnu.org/onlinedocs/gcc/Diagnostic-Message-Formatting-Options.html
_COMPILER = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<text>.+)$"
)
_MODPOST = re.compile(r"^ERROR: modpost: (?P<text>.+ \[(?P<file>[^\]]+)\] undefined!)$")
_EXCERPT = re.compile(r"^\s*(\d+ )?\s*\|")
_EXCERPT_LINES = 4
_ERRORS_SHOWN = 5
_LAST_LINES = 20
# Of a step's output around the first error of a compiler.
_LONGEST_LINE = 400
_LINES_BEFORE, _LINES_AFTER = 5, 25
_INSTRUCTION_WIDTH = 160


@dataclass(frozen=True, slots=True)
class SourceError:
    """An error that the compiler reports."""

    file: str
    # None: it is about a symbol.
    line: int | None
    text: str
    # The source text that the compiler shows with it.
    excerpt: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """File and line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return "\n".join([f"{self.place}: error: {self.text}", *self.excerpt])


class BuildError(ProvisionError):
    """A build that failed.

    Args:
        is_outside: Whether the cause is neither the driver nor its Pin, but a full disk or a
            network that fails. Other builds would fail alike.
        exit_code: ``NOT_FOUND`` where the driver itself says that it is not for the kernel.
    """

    def __init__(
        self,
        message: str,
        *,
        resolution: str,
        details: str,
        steps: Iterable[StepRecord] = (),
        source_errors: Sequence[SourceError] = (),
        log: Path | None = None,
        is_outside: bool = False,
        exit_code: ExitCode = ExitCode.FAILED,
    ) -> None:
        super().__init__(message, resolution=resolution, details=details)
        self.exit_code = exit_code
        # A compiler that refused the source will do so again.
        self.reason = "compile" if source_errors else "build"
        self.steps = tuple(steps)
        self.source_errors = tuple(source_errors)
        self.log = log
        self.is_outside = is_outside

    @property
    def step(self) -> StepRecord | None:
        """The instruction that failed, if one did."""
        return self.steps[-1] if self.steps else None

    def members(self) -> dict[str, object]:
        """Return the instruction that failed, the compiler's errors, its output, and the layers."""
        return {
            "instruction": self.step.instruction if self.step else None,
            "source_errors": [asdict(error) for error in self.source_errors],
            "excerpt": [redact(line[:_LONGEST_LINE]) for line in self._excerpt()],
            "log": str(self.log) if self.log else None,
            "layers": layers_of(self.steps),
        }

    def _excerpt(self) -> Sequence[str]:
        """Return the part of the step's output that shows why it failed."""
        lines = list(self.step.lines) if self.step else []
        if self.source_errors:
            first = self.source_errors[0]
            place = first.file if first.line is None else f"{first.file}:{first.line}:"
            for number, line in enumerate(lines):
                if place in line:
                    return lines[max(0, number - _LINES_BEFORE) : number + _LINES_AFTER]
        return lines[-_LAST_LINES:]


def build_error(pin: Pin, stream: BuildStream, log: Path) -> BuildError:
    """Return the error of a failed build."""
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    where = ""
    if step:
        words = " ".join(step.instruction.split())
        cut = words if len(words) <= _INSTRUCTION_WIDTH else f"{words[:_INSTRUCTION_WIDTH]}…"
        where = f"Step {step.number}/{stream.total}: {cut}"
    driver = pin.driver
    what = f"{driver.name} {driver.version} ({driver.flavour}) for kernel {pin.kernel.release}"
    if errors := source_errors(lines):
        first = errors[0]
        place = first.file if first.line is None else f"{first.file} line {first.line}"
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        shown = map(str, errors[:_ERRORS_SHOWN])
        return BuildError(
            f"{what} does not compile: {count}, the first in {place}.",
            resolution="Take a driver version that supports this kernel (--version), another"
            f" flavour (--flavour) or another kernel ('provision drivers kernels {driver.name}'"
            " lists them). If there is none, add a patch to the driver's patches/ folder, or report"
            " the lines above to its vendor.",
            details="\n".join([*shown, where, f"Whole output: {log}"]),
            steps=stream.steps,
            source_errors=errors,
            log=log,
        )
    # The engine's own message repeats the whole instruction.
    reason = stream.error or ""
    if stream.exit_status is not None:
        reason = f"The step ended with exit status {stream.exit_status}."
    ending = [where, *lines[-_LAST_LINES:], reason, f"Whole output: {log}"]
    cause, said = _cause_of([*lines, stream.error or ""])
    values = {
        "what": what,
        "driver": f"{driver.name} {driver.version}",
        "kernel": pin.kernel.release,
        "said": said,
    }
    return BuildError(
        fill(cause.message, values),
        resolution=cause.resolution,
        details="\n".join(line for line in ending if line),
        steps=stream.steps,
        log=log,
        is_outside=cause.is_outside,
        exit_code=cause.exit_code,
    )


def source_errors(lines: Sequence[str]) -> list[SourceError]:
    """Return the errors of compilers and modpost in the output of a build, in its order."""
    errors = []
    for index, line in enumerate(lines):
        if match := _COMPILER.match(line):
            following = lines[index + 1 : index + 1 + _EXCERPT_LINES]
            excerpt = tuple(takewhile(_EXCERPT.match, following))
            errors.append(SourceError(match["file"], int(match["line"]), match["text"], excerpt))
        elif match := _MODPOST.match(line):
            errors.append(SourceError(match["file"], None, match["text"]))
    return errors
