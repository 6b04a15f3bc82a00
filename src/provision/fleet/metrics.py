"""The hosts of a fleet, read from the metrics of their agents.

Metrics hold less than ``status.json``: no reasons, and pending reboots only for the whole host.
``fleet.gather`` asks a Prometheus for them. Source:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.errors import NotFoundError
from provision.fleet.host_status import DriverRow, Host, KernelRow, broken_host, rank, shown, worst

OBSERVED = "provision_observed_timestamp_seconds"
_LARGEST_FILE = 8 << 20
_LINE = re.compile(
    r"(?P<name>provision_[a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?"
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_PORT = re.compile(r"(.+):\d{1,5}")
_LARGEST_TIME = 2**53


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured value: the metric's name, its labels and the value."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_text(content: str) -> tuple[list[Sample], list[str]]:
    """Return provision's own samples in the text format, and the lines that could not be read.

    Args:
        content: Lines of the format; other programs' metrics and comments are skipped.
    """
    samples: list[Sample] = []
    problems: list[str] = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.startswith("provision_"):
            continue
        sample = _parsed(line.rstrip())
        if sample is None:
            problems.append(f"line {number} is not a metric: {shown(line)}")
        else:
            samples.append(sample)
    return samples, problems


def _parsed(line: str) -> Sample | None:
    found = _LINE.fullmatch(line)
    labels = None if found is None else _labels(found["labels"] or "")
    if found is None or labels is None:
        return None
    try:
        return Sample(found["name"], labels, float(found["value"]))
    except ValueError:
        return None


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    place = 0
    while place < len(text):
        found = _LABEL.match(text, place)
        if found is None:
            return None
        labels[found[1]] = _ESCAPED.sub(lambda one: {"n": "\n"}.get(one[1], one[1]), found[2])
        place = found.end()
    return labels


def hosts_of_files(paths: Sequence[Path]) -> list[Host]:
    """Return the hosts of files in the text format; the file's name is the host's name.

    A file with ``instance`` labels, such as the answer of ``/federate``, has several hosts.

    Args:
        paths: Files, or folders of files that end in ``.prom``.

    Raises:
        NotFoundError: There is no such file, or no file in a folder.
    """
    hosts: list[Host] = []
    for path in paths:
        files = sorted(path.glob("*.prom")) if path.is_dir() else [path]
        if not files:
            raise NotFoundError(
                f"The folder '{path}' has no file that ends in '.prom'.",
                resolution="Name a folder with one such file for each host, or the files.",
            )
        for file in files:
            hosts += _hosts_of_file(file)
    return hosts


def _hosts_of_file(path: Path) -> list[Host]:
    # Reading a named pipe would block.
    if not path.is_file():
        raise NotFoundError(
            f"There is no file '{path}'.",
            resolution="Name a folder with one such file for each host, or the files.",
        )
    with path.open("rb") as stream:
        data = stream.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        why = f"'{path}' is larger than {_LARGEST_FILE} bytes"
        return [broken_host(path.stem, "unreadable", why, None)]
    samples, problems = parse_text(data.decode(errors="replace"))
    if not samples:
        why = "; ".join([f"'{path}' has no metric of provision", *problems[:3]])
        advice = "Run 'provision apply' there, and check [metrics] textfile in its provision.toml."
        return [broken_host(path.stem, "no-status", why, advice)]
    return hosts_of_samples(samples, default=path.stem, notes=problems)


@dataclass
class _Found:
    """The samples of one host, by meaning."""

    kernels: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    def take(self, sample: Sample) -> None:
        labels = sample.labels
        if "driver" not in labels:
            self.values[sample.name] = sample.value
            return
        key = (labels["driver"], labels.get("kernel", "?"), labels.get("role", "running"))
        kernel = self.kernels.setdefault(key, {})
        match sample.name:
            case "provision_driver_ready":
                kernel["is_ready"] = sample.value == 1
            case "provision_driver_info":
                kernel["version"] = shown(labels.get("version", "")) or None
                kernel["digest"] = shown(labels.get("digest", "")) or None
            case "provision_failures" if sample.value:
                kernel["failure"] = (labels.get("reason", "failed"), sample.value)

    def host(self, name: str, notes: Iterable[str]) -> Host:
        names = dict.fromkeys(driver for driver, _, _ in self.kernels)
        drivers = tuple(self._driver(driver) for driver in names)
        # A failure need not concern a driver.
        ended_badly = self.values.get("provision_exit_code", 0) in {1, 2}
        state = worst(driver.state for driver in drivers)
        is_whole, reason = False, None
        if ended_badly and rank(state) > rank("next-kernel-not-ready"):
            state, is_whole = "failed", True
            reason = "the agent's last run failed; the metrics do not say why"
        elif self.values.get("provision_reboot_required") == 1 and rank(state) > rank("no-status"):
            state, is_whole = "reboot-required", True
            reason = "a newer driver waits for a reboot"
        running = next((kernel for _, kernel, role in self.kernels if role == "running"), None)
        return Host(
            name=shown(name),
            state=state,
            time=unix_time(self.values.get(OBSERVED)),
            running=shown(running) if running else None,
            drivers=drivers,
            reason=reason,
            resolution="On the host: provision status" if is_whole else None,
            notes=tuple(shown(note) for note in list(notes)[:8]),
            is_whole=is_whole,
        )

    def _driver(self, name: str) -> DriverRow:
        rows = tuple(
            _kernel_row(kernel, role, found)
            for (driver, kernel, role), found in self.kernels.items()
            if driver == name
        )
        state = worst(
            "next-kernel-not-ready"
            if row.role == "next" and row.state in {"failed", "missing"}
            else row.state
            for row in rows
        )
        return DriverRow(shown(name), state, rows)


def _kernel_row(kernel: str, role: str, found: Mapping[str, Any]) -> KernelRow:
    failure, is_ready = found.get("failure"), found.get("is_ready")
    state, reason, resolution = ("ready" if is_ready else "pending"), None, None
    if failure is not None:
        why, times = failure
        state = "missing" if why == "missing" else "failed"
        reason = shown(f"{why}, {times:g} times in a row")
        resolution = "On the host: provision status"
    return KernelRow(
        release=shown(kernel),
        role=shown(role),
        state=state,
        is_ready=is_ready,
        version=found.get("version"),
        digest=found.get("digest"),
        reason=reason,
        resolution=resolution,
    )


def hosts_of_samples(
    samples: Iterable[Sample], *, default: str = "?", notes: Iterable[str] = ()
) -> list[Host]:
    """Return the hosts that samples belong to.

    Args:
        samples: The samples, in any order.
        default: Name of the host whose samples have no label ``instance``.
        notes: Remarks for each host.
    """
    hosts = []
    for name, own in by_host(samples, default).items():
        found = _Found()
        for sample in own:
            found.take(sample)
        hosts.append(found.host(name, notes))
    return hosts


def by_host(samples: Iterable[Sample], default: str) -> dict[str, list[Sample]]:
    """Return samples by host: ``instance``, without its port where that is still unique."""
    by_instance: dict[str, list[Sample]] = {}
    for sample in samples:
        by_instance.setdefault(sample.labels.get("instance", default), []).append(sample)
    short = {one: found[1] if (found := _PORT.fullmatch(one)) else one for one in by_instance}
    times = Counter(short.values())
    return {
        (short[one] if times[short[one]] == 1 else one): own for one, own in by_instance.items()
    }


def unix_time(value: float | None) -> int | None:
    """Return a Unix time; None for a value out of range, such as infinity."""
    return int(value) if value is not None and abs(value) < _LARGEST_TIME else None
