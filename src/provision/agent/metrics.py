"""The host's state as metrics, for the textfile collector of Prometheus' node exporter. Pure.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.agent.status import Status


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
    slots = [(driver, slot) for driver in status.drivers for slot in driver.kernels]
    where = {
        (driver.name, slot.release): {
            "driver": driver.name,
            "kernel": slot.release,
            "role": slot.role,
        }
        for driver, slot in slots
    }
    yield _Metric(
        "provision_driver_ready",
        "Whether the driver works with the kernel.",
        tuple((where[d.name, s.release], float(s.is_ready)) for d, s in slots),
    )
    yield _Metric(
        "provision_driver_info",
        "The artifact that the kernel uses.",
        tuple(
            (
                {**where[d.name, s.release], "version": s.version or "", "digest": s.digest or ""},
                1.0,
            )
            for d, s in slots
        ),
    )
    yield _Metric(
        "provision_prepare_seconds",
        "How long it took to have the artifact in the store, by part.",
        tuple(
            ({**where[d.name, s.release], "part": part}, taken)
            for d, s in slots
            for part, taken in s.seconds.items()
        ),
    )
    yield _Metric(
        "provision_prepared_timestamp_seconds",
        "When the artifact was last made or found.",
        tuple((where[d.name, s.release], float(s.prepared)) for d, s in slots if s.prepared),
    )
    yield _Metric(
        "provision_failures",
        "How often in a row the artifact could not be had, or loaded, by reason.",
        tuple(
            ({**where[d.name, s.release], "reason": s.failure.reason}, float(s.failure.attempts))
            for d, s in slots
            if s.failure
        ),
    )
    states = [d.state for d in status.drivers]
    yield _Metric(
        "provision_reboot_required",
        "Whether a newer driver waits for a reboot.",
        (({}, float("reboot-required" in states)),),
    )
    yield _Metric("provision_ready", "Whether all drivers work.", (({}, float(status.is_ready)),))
    yield _Metric(
        "provision_exit_code", "What the last run ended with.", (({}, float(status.exit_code)),)
    )
    yield _Metric(
        "provision_observed_timestamp_seconds",
        "When this was observed.",
        (({}, float(status.time)),),
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
