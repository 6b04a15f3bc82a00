"""The host's state as metrics, for the textfile collector of Prometheus' node exporter. Pure.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from provision.agent.status import SlotStatus, Status


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.samples:
            text = ",".join(f'{name}="{_escaped(label)}"' for name, label in labels.items())
            # Unix times have ten digits; %g would round them.
            yield f"{self.name}{f'{{{text}}}' if text else ''} {value:.12g}"


def metrics_text(status: Status) -> str:
    """Return a host's metrics in the text format."""
    lines = [line for metric in _metrics(status) if metric.samples for line in metric.lines()]
    return "\n".join([*lines, ""])


def _metrics(status: Status) -> Iterator[_Metric]:
    slots = [
        ({"driver": driver.name, "kernel": slot.release, "role": slot.role}, slot)
        for driver in status.drivers
        for slot in driver.kernels
    ]
    yield from _of_slots(slots)
    yield from _of_host(status)


def _of_slots(slots: Iterable[tuple[Mapping[str, str], SlotStatus]]) -> Iterator[_Metric]:
    """Yield what there is to say about each driver and kernel."""
    found = list(slots)
    yield _Metric(
        "provision_driver_ready",
        "Whether the driver works with the kernel.",
        tuple((where, float(slot.is_ready)) for where, slot in found),
    )
    yield _Metric(
        "provision_driver_info",
        "The artifact that the kernel uses.",
        tuple(
            ({**where, "version": slot.version or "", "digest": slot.digest or ""}, 1.0)
            for where, slot in found
        ),
    )
    yield _Metric(
        "provision_prepare_seconds",
        "How long it took to have the artifact in the store, by part.",
        tuple(
            ({**where, "part": part}, taken)
            for where, slot in found
            for part, taken in slot.seconds.items()
        ),
    )
    yield _Metric(
        "provision_last_success_timestamp_seconds",
        "When the artifact was last made or found.",
        tuple((where, float(slot.prepared)) for where, slot in found if slot.prepared),
    )
    yield _Metric(
        "provision_failures",
        "How often in a row the artifact could not be had, or loaded, by reason.",
        tuple(
            ({**where, "reason": slot.failure.reason}, float(slot.failure.attempts))
            for where, slot in found
            if slot.failure
        ),
    )


def _of_host(status: Status) -> Iterator[_Metric]:
    """Yield what there is to say about the host as a whole."""
    waits = any(slot.state == "reboot-required" for d in status.drivers for slot in d.kernels)
    for name, text, value in (
        ("reboot_required", "Whether a newer driver waits for a reboot.", waits),
        ("ready", "Whether all drivers work.", status.is_ready),
        ("exit_code", "What the last run ended with.", status.exit_code),
        ("observed_timestamp_seconds", "When this was observed.", status.time),
    ):
        yield _Metric(f"provision_{name}", text, (({}, float(value)),))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
