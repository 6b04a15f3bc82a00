"""What an engine says of a build: its steps, their times and layers, and why it failed."""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from provision.documents import Frozen
from provision.errors import ExitCode, ProvisionError, redact
from provision.explain import Kind, explain, last_line
from provision.pin import Pin
from provision.progress import Event, Output, Step, Transfer

# "Step 3/12 : RUN make" (Docker's classic builder, counted over all stages), "[1/3] STEP 3/5: RUN
# make" (podman, counted within the stage).
_STEP = re.compile(r"^(?:\[\d+/\d+\] )?step (\d+)/(\d+) ?: (.*)$", re.IGNORECASE)
# " ---> 4632e85b82c4" (Docker), "--> 4632e85b82c" (podman): the image after a step.
_LAYER = re.compile(r"^ ?--?-> ([0-9a-f]{11,64})$")
_CACHED = re.compile(r"^ ?--?-> Using cache", re.IGNORECASE)
_BUILT = re.compile(r"^Successfully built [0-9a-f]{12,64}$")
_CHATTER = re.compile(
    r"^( ?--?->|Removing intermediate container|Successfully (built|tagged)|\[\d+/\d+\] COMMIT|$)"
)
# Colours of the engine around stderr, and those that programs print.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REMOVING = re.compile(r"^Removing intermediate container")
_LINES_KEPT = 1000
# A longer one, of a driver's build, comes in pieces.
_LONGEST_LINE = 64 << 10


@dataclass(slots=True)
class StepRecord:
    """One executed instruction of the Dockerfile."""

    # Its number from one, over all stages (podman: within the stage).
    number: int
    instruction: str
    seconds: float = 0.0
    cached: bool = False
    # Short id of the image after it.
    layer: str | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))


def layers_of(steps: Iterable[StepRecord]) -> list[str]:
    """Return the layers with a driver's source and objects that its build left, the oldest first.

    They often have a gigabyte. No other build can use them, but after a failure the next try goes
    on from them.
    """
    layers: list[str] = []
    for step in steps:
        words = step.instruction.lower().split()
        if words == ["from", "scratch"]:
            break
        if words[0] != "from" and step.layer:
            layers.append(step.layer)
    return layers


class BuildStream:
    """Collects a build's messages.

    Attributes:
        stage_ids: The finished images of all stages.
        exit_status: Exit status of the instruction that failed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps: list[StepRecord] = []
        self.total = 0
        self.stage_ids: list[str] = []
        self.error: str | None = None
        self.exit_status: int | None = None
        self._clock = clock
        self._begun = clock()
        self._partial = ""
        self._is_built = False

    @property
    def image_id(self) -> str | None:
        """The image of the last stage, once every instruction is done."""
        return self.stage_ids[-1] if self._is_built and self.stage_ids else None

    def feed(self, message: Mapping[str, Any]) -> list[Event]:
        """Process one message of the engine; return events to show."""
        if "stream" in message:
            return self._text(str(message["stream"]))
        if "aux" in message:
            identity = _mapping(message["aux"]).get("ID")
            if identity:
                self.stage_ids.append(str(identity))
        if "error" in message:
            self.error = str(message["error"]).strip()
            self.exit_status = _mapping(message.get("errorDetail")).get("code")
        if "status" in message:
            return transfer(message)
        return []

    def finish(self) -> None:
        """End the stream: no more messages come."""
        if self._partial:
            self._line(self._partial)
            self._partial = ""
        self._close_step()

    def _text(self, text: str) -> list[Event]:
        # A program's last line may lack its end.
        if _REMOVING.match(text) and self._partial:
            text = f"\n{text}"
        *lines, self._partial = (self._partial + text).split("\n")
        if len(self._partial) > _LONGEST_LINE:
            lines.append(self._partial)
            self._partial = ""
        # Only the engine's own "Step" line comes without its end in the same message.
        if _STEP.match(self._partial):
            lines.append(self._partial)
            self._partial = ""
        return [event for line in lines for event in self._line(line)]

    def _line(self, raw: str) -> list[Event]:
        last = raw[:-1] if raw.endswith("\r") else raw.rsplit("\r", 1)[-1]
        # The output of a driver's build is untrusted: it must not control a terminal. And all of it
        # may be shown or kept.
        line = redact(_ESCAPES.sub("", last))
        if match := _STEP.match(line):
            return [self._open_step(int(match[1]), int(match[2]), match[3].strip())]
        if not self.steps:
            return []
        step = self.steps[-1]
        if _BUILT.match(line):
            self._is_built = True
        elif match := _LAYER.match(line):
            step.layer = match[1]
        elif _CACHED.match(line):
            step.cached = True
        if _CHATTER.match(line):
            return []
        step.lines.append(line)
        return [Output(line)]

    def _open_step(self, number: int, total: int, instruction: str) -> Step:
        self._close_step()
        self.total = total
        self.steps.append(StepRecord(number, instruction))
        return Step(number, total, instruction)

    def _close_step(self) -> None:
        now = self._clock()
        if self.steps:
            self.steps[-1].seconds = now - self._begun
        self._begun = now


def transfer(message: Mapping[str, Any]) -> list[Event]:
    """Turn a progress message of a pull into an event, if it has anything to show."""
    detail = _mapping(message.get("progressDetail"))
    current, total = detail.get("current"), detail.get("total")
    if not isinstance(current, int):
        return []
    what = f"{message.get('status', '')} {message.get('id', '')}".strip()
    return [Transfer(what, current, total if isinstance(total, int) else None)]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# What our own programs in the build container say of a failure (build/step.py and dkms.bash), and
# where to look then.
_OURS = re.compile(
    r"^(dkms|collect|kernel tree|unpack): (?:failed: )?(?!\d+ (?:modules|files))(.+)", re.M
)
_WHERE = {
    "dkms": "A patch in the driver's patches/ folder can correct its dkms.conf, or driver.toml says"
    " how the driver is built (docs/reference/driver-toml.md).",
    "collect": "Correct 'modules' and 'files' of the driver's driver.toml for this version.",
    "unpack": "Compare the file with the vendor's own; then correct the source in driver.toml: its"
    " address and sha256, 'strip' of the release, 'archive' of the build.",
    "kernel tree": "Name the right tree and compiler under [[trees]] in"
    " /etc/provision/provision.toml (docs/how-to/kernel-trees.md).",
}
# Builds never have another kernel's folder. dkms.bash names the lines that ask for one.
_ASKED = "the running kernel is asked for"
_RUNNING = re.compile(r"/lib/modules/([^/\s]+)/build: No such file or directory")
_NAME_KERNEL = (
    "Where its Makefile says 'uname -r', it has to take the kernel that is built for:"
    " $(KERNELRELEASE) of dkms.conf's make, or a variable to which 'command' of driver.toml gives"
    " {kernel} or {kernel_build}. A patch in the driver's patches/ folder can say so."
)
_OUR_LINES = 3
_SEE_LOG = (
    "The lines above are the failing step's last ones; the whole output has the rest. Where a"
    " program is missing, name its package under 'packages' in driver.toml."
)


def is_layer_lost(error: str) -> bool:
    """Return whether an engine says that another program removed a layer that a build uses."""
    found = explain("build", error, {})
    return found is not None and found.kind is Kind.IN_USE


def _cause_of(lines: Sequence[str], error: str) -> tuple[str, str, Kind | None]:
    output = "\n".join(lines)
    if found := explain("build", f"{output}\n{error}", {}):
        return found.cause, found.what_to_do, found.kind
    running = _running_kernel(output)
    if ours := _OURS.findall(output):
        said = "; ".join(text.strip().rstrip(".") for _, text in ours[:_OUR_LINES])
        asks = running is not None or _ASKED in said
        return said, _NAME_KERNEL if asks else _WHERE.get(ours[0][0], _SEE_LOG), None
    if running is not None:
        return f"{_ASKED}, {running}", _NAME_KERNEL, None
    return last_line(output or error), _SEE_LOG, None


def _running_kernel(output: str) -> str | None:
    """Return the kernel whose files a build looked for, if that is not the one that it is for."""
    if found := _RUNNING.search(output):
        return found[1]
    release = os.uname().release
    missing = re.search(rf"{re.escape(release)}\S*: No such file or directory", output)
    return release if missing else None


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
_LINE_WIDTH = 400
_LINES_BEFORE, _LINES_AFTER = 5, 25
_INSTRUCTION_WIDTH = 160


class SourceError(Frozen):
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
        # A compiler that refused the source will do so again.
        reason = "compile" if source_errors else "build"
        super().__init__(
            message, resolution=resolution, details=details, reason=reason, is_outside=is_outside
        )
        self.exit_code = exit_code
        self.steps = tuple(steps)
        self.source_errors = tuple(source_errors)
        self.log = log

    @property
    def step(self) -> StepRecord | None:
        """The instruction that failed, if one did."""
        return self.steps[-1] if self.steps else None

    def members(self) -> dict[str, object]:
        """Return the instruction that failed, the compiler's errors, its output, and the layers."""
        return {
            "instruction": self.step.instruction if self.step else None,
            "source_errors": [error.model_dump(mode="json") for error in self.source_errors],
            "excerpt": [redact(line[:_LINE_WIDTH]) for line in self._excerpt()],
            "log": str(self.log) if self.log else None,
            "layers": layers_of(self.steps),
        }

    def _excerpt(self) -> Sequence[str]:
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
    cause, what_to_do, kind = _cause_of(lines, stream.error or "")
    return BuildError(
        f"{what} could not be built: {cause}.",
        resolution=what_to_do,
        details="\n".join(line for line in ending if line),
        steps=stream.steps,
        log=log,
        is_outside=kind is not None and kind.is_outside,
        exit_code=ExitCode.NOT_FOUND if kind is Kind.MISSING else ExitCode.FAILED,
    )


def source_errors(lines: Sequence[str]) -> list[SourceError]:
    """Return the errors of compilers and modpost in the output of a build, in its order."""
    errors = []
    for index, line in enumerate(lines):
        if match := _COMPILER.match(line):
            following = lines[index + 1 : index + 1 + _EXCERPT_LINES]
            excerpt = tuple(takewhile(_EXCERPT.match, following))
            number, text = int(match["line"]), match["text"]
            errors.append(SourceError(file=match["file"], line=number, text=text, excerpt=excerpt))
        elif match := _MODPOST.match(line):
            errors.append(SourceError(file=match["file"], line=None, text=match["text"]))
    return errors
