"""Publishes a host's status: status.json, metrics, labels of a Kubernetes node, and the journal.

Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/. The protocol is a datagram of
lines: it needs less code than a library, which every host would have to install.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format

Source: https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide
for the files of which Node Feature Discovery makes labels.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from provision.agent.model import Outcome
from provision.agent.status import ArtifactStatus, Status
from provision.files import in_root, remove_drafts, write_atomic

STATUS = Path("run/provision/status.json")
# The exporter's folder in the packages of Debian and Fedora.
EXPORTER_FOLDERS = (
    Path("var/lib/prometheus/node-exporter"),
    Path("var/lib/node_exporter/textfile_collector"),
)
METRICS = "provision.prom"
# Node Feature Discovery makes this folder on the nodes of a cluster.
FEATURES = Path("etc/kubernetes/node-feature-discovery/features.d")
_LABEL = "feature.node.kubernetes.io/provision"
_LONGEST_LABEL = 63
# Labels of an agent that has stopped go away: it runs once an hour.
_FEATURES_EXPIRE_S = 3 * 3600
_SOCKET = Path("run/systemd/journal/socket")
# A datagram must fit into the socket's buffer (net.core.wmem_default, 208 KiB). Longer texts would
# need a file descriptor, and are in the build's log anyway.
_LONGEST = 32 * 1024
# A hanging journal accepts nothing once its buffer is full.
_LIMIT_S = 1.0


class Priority(IntEnum):
    """How urgent an entry is: syslog(3)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


def write_journal(
    root: Path, message: str, priority: Priority, fields: Mapping[str, object]
) -> bool:
    """Write an entry to a host's journal.

    Args:
        root: Root of the host.
        message: The text.
        priority: How urgent it is.
        fields: Further fields; names get the prefix ``PROVISION_`` and upper case, fields that are
            None are left out.

    Returns:
        Whether the journal accepted the entry.
    """
    entry = {
        "MESSAGE": message,
        "PRIORITY": int(priority),
        "SYSLOG_IDENTIFIER": "provision",
        **{f"PROVISION_{name.upper()}": value for name, value in fields.items()},
    }
    data = b"".join(_field(name, str(v)) for name, v in entry.items() if v is not None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(_LIMIT_S)
        try:
            channel.sendto(data, str(in_root(root, _SOCKET)))
        except OSError:
            return False
    return True


def _field(name: str, value: str) -> bytes:
    data = value.encode()[:_LONGEST]
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"


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
    artifacts = [
        ({"driver": driver.name, "kernel": artifact.release, "role": artifact.role}, artifact)
        for driver in status.drivers
        for artifact in driver.kernels
    ]
    yield from _of_artifacts(artifacts)
    yield from _of_host(status)


def _of_artifacts(
    found: Sequence[tuple[Mapping[str, str], ArtifactStatus]],
) -> Iterator[_Metric]:
    """Yield the metrics of each driver and kernel."""
    yield _Metric(
        "provision_driver_ready",
        "Whether the driver works with the kernel.",
        tuple((where, float(artifact.is_ready)) for where, artifact in found),
    )
    yield _Metric(
        "provision_driver_info",
        "The artifact that the kernel uses.",
        tuple(
            ({**where, "version": artifact.version or "", "digest": artifact.digest or ""}, 1.0)
            for where, artifact in found
        ),
    )
    yield _Metric(
        "provision_prepare_seconds",
        "How long it took to have the artifact in the store, by part.",
        tuple(
            ({**where, "part": part}, taken)
            for where, artifact in found
            for part, taken in artifact.seconds.items()
        ),
    )
    yield _Metric(
        "provision_last_success_timestamp_seconds",
        "When the artifact was last made or found.",
        tuple((where, float(artifact.prepared)) for where, artifact in found if artifact.prepared),
    )
    yield _Metric(
        "provision_failures",
        "How often in a row the artifact could not be had, or loaded, by reason.",
        tuple(
            ({**where, "reason": artifact.failure.reason}, float(artifact.failure.attempts))
            for where, artifact in found
            if artifact.failure
        ),
    )


def _of_host(status: Status) -> Iterator[_Metric]:
    """Yield the metrics of the host as a whole."""
    waits = any(
        artifact.state == "reboot-required" for d in status.drivers for artifact in d.kernels
    )
    for name, text, value in (
        ("reboot_required", "Whether a newer driver waits for a reboot.", waits),
        ("ready", "Whether all drivers work.", status.is_ready),
        ("exit_code", "What the last run ended with.", status.exit_code),
        ("observed_timestamp_seconds", "When this was observed.", status.time),
    ):
        yield _Metric(f"provision_{name}", text, (({}, float(value)),))


def node_features(status: Status) -> str:
    """Return a host's state as a feature file, whose lines become labels of its node."""
    expiry = datetime.fromtimestamp(status.time + _FEATURES_EXPIRE_S, UTC)
    lines = [
        f"# +expiry-time={expiry:%Y-%m-%dT%H:%M:%SZ}",
        f"{_LABEL}.ready={str(status.is_ready).lower()}",
    ]
    if status.kernels.running:
        lines.append(f"{_LABEL}.kernel={_label_value(status.kernels.running)}")
    for driver in status.drivers:
        # The part after the slash has 63 characters at most.
        name = driver.name[: _LONGEST_LABEL - len("provision-.version")]
        lines.append(f"{_LABEL}-{name}.state={driver.state}")
        if driver.version:
            lines.append(f"{_LABEL}-{name}.version={_label_value(driver.version)}")
    return "\n".join([*lines, ""])


def _label_value(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST_LABEL].strip("._-")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


_BAD = {
    "failed": Priority.ERROR,
    "missing": Priority.WARNING,
    "next-kernel-not-ready": Priority.ERROR,
}


def publish(
    root: Path, status: Status, outcomes: Iterable[Outcome], *, textfile: str | None
) -> list[str]:
    """Publish a host's status; the caller holds the host's lock.

    Args:
        root: Root of the host.
        status: Its status.
        outcomes: The outcomes of the run.
        textfile: File of the metrics; None: a file in the exporter's folder, if it exists.

    Returns:
        The files that could not be written, with reasons; a run does not fail for that.
    """
    problems = []
    before = last_status(root)
    _write_entries(root, status, outcomes, before=before)
    files = {in_root(root, STATUS, follow=False): json.dumps(status.document(), indent=2) + "\n"}
    metrics = _metrics_file(root, textfile)
    if metrics is not None:
        files[metrics] = metrics_text(status)
    features = in_root(root, FEATURES)
    if features.is_dir():
        files[features / "provision"] = node_features(status)
    for path, text in files.items():
        remove_drafts(path)
        try:
            write_atomic(path, text)
        except OSError as error:
            problems.append(f"'{path}' could not be written: {error.strerror or error}")
    return problems


def last_status(root: Path) -> dict[str, Any] | None:
    """Return the document that was written last; None if there is no readable one."""
    try:
        document = json.loads(in_root(root, STATUS).read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _metrics_file(root: Path, textfile: str | None) -> Path | None:
    if textfile is not None:
        return in_root(root, textfile, follow=False)
    folders = (in_root(root, folder) for folder in EXPORTER_FOLDERS)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    return None if folder is None else folder / METRICS


def _write_entries(
    root: Path, status: Status, outcomes: Iterable[Outcome], *, before: dict[str, Any] | None
) -> None:
    for outcome in outcomes:
        action, error = outcome.action, outcome.error
        write_journal(
            root,
            f"{action}: {outcome.result}",
            Priority.ERROR if error else Priority.INFO,
            {
                "action": action.kind,
                "driver": action.driver,
                "kernel": action.kernel,
                "seconds": f"{outcome.seconds:.3f}",
                "details": error.details if error else None,
                "resolution": error.resolution if error else None,
            },
        )
    for name, note in _new_notes(status, before):
        write_journal(root, f"{name}: {note}", Priority.WARNING, {"driver": name})
    if status.error is not None and (before or {}).get("error") != asdict(status.error):
        trouble = status.error
        fields = {"details": trouble.details, "resolution": trouble.resolution}
        write_journal(root, trouble.message, Priority.ERROR, fields)
    if before is None or before.get("state") != status.state:
        priority = _BAD.get(status.state, Priority.INFO)
        for name, artifact in _worst_artifacts(status):
            write_journal(
                root,
                f"{name} for {artifact.release} is {artifact.state}: {artifact.reason}",
                priority,
                {"driver": name, "kernel": artifact.release, "state": artifact.state},
            )
        write_journal(root, f"The host is {status.state}", priority, {"state": status.state})


def _new_notes(status: Status, before: dict[str, Any] | None) -> Iterable[tuple[str, str]]:
    """Return the notes of drivers that the previous status did not have."""
    drivers = (before or {}).get("drivers", ())
    known = {(d["name"], note) for d in drivers for note in d.get("notes", ())}
    found = ((driver.name, note) for driver in status.drivers for note in driver.notes)
    return (one for one in found if one not in known)


def _worst_artifacts(status: Status) -> Iterable[tuple[str, ArtifactStatus]]:
    return (
        (driver.name, artifact)
        for driver in status.drivers
        for artifact in driver.kernels
        if artifact.state != "ready"
    )
