"""Reads the messages of a build: its steps, their times and layers, and why it failed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.errors import redact
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
    """Return a part of a message; empty if the engine left it out."""
    return value if isinstance(value, Mapping) else {}
