"""Publishes a host's status: status.json, metrics, and labels of a Kubernetes node.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format

Source: https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide
for the files of which Node Feature Discovery makes labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from provision.agent.status import ArtifactStatus, Status
from provision.config import KubernetesConfig
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
_LONGEST_LABEL = 63
# Labels of an agent that has stopped go away: it runs once an hour.
_FEATURES_EXPIRE_S = 3 * 3600


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


def node_features(status: Status, kubernetes: KubernetesConfig) -> str:
    """Return a host's state as a feature file, whose lines become labels of its node."""
    label = kubernetes.labels
    expiry = datetime.fromtimestamp(status.time + _FEATURES_EXPIRE_S, UTC)
    lines = [
        f"# +expiry-time={expiry:%Y-%m-%dT%H:%M:%SZ}",
        f"{label}.ready={str(status.is_ready).lower()}",
    ]
    if status.kernels.running:
        lines.append(f"{label}.kernel={_label_value(status.kernels.running)}")
    for driver in status.drivers:
        # The part after the slash has 63 characters at most.
        own = label.rpartition("/")[2]
        name = driver.name[: _LONGEST_LABEL - len(f"{own}-.version")]
        lines.append(f"{label}-{name}.state={driver.state}")
        if driver.version:
            lines.append(f"{label}-{name}.version={_label_value(driver.version)}")
    ready = {driver.name for driver in status.drivers if driver.is_ready}
    lines += [f"{gate}=false" for gate, name in kubernetes.gates.items() if name not in ready]
    return "\n".join([*lines, ""])


def _label_value(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST_LABEL].strip("._-")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def publish(
    root: Path,
    status: Status,
    *,
    textfile: str | None,
    kubernetes: KubernetesConfig | None = None,
) -> list[str]:
    """Publish a host's status; the caller holds the host's lock.

    Args:
        textfile: File of the metrics; None: a file in the exporter's folder, if it exists.
        kubernetes: The labels of a cluster's node; None: the usual ones.

    Returns:
        The files that could not be written, with reasons; a run does not fail for that.
    """
    problems = []
    files = {in_root(root, STATUS, follow=False): json.dumps(status.document(), indent=2) + "\n"}
    metrics = _metrics_file(root, textfile)
    if metrics is not None:
        files[metrics] = metrics_text(status)
    features = in_root(root, FEATURES)
    if features.is_dir():
        files[features / "provision"] = node_features(status, kubernetes or KubernetesConfig())
    for path, text in files.items():
        remove_drafts(path)
        try:
            write_atomic(path, text)
        except OSError as error:
            problems.append(f"'{path}' could not be written: {error.strerror or error}")
    return problems


def _metrics_file(root: Path, textfile: str | None) -> Path | None:
    if textfile is not None:
        return in_root(root, textfile, follow=False)
    folders = (in_root(root, folder) for folder in EXPORTER_FOLDERS)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    return None if folder is None else folder / METRICS
