"""Publishes a host's status: status.json, metrics, and labels of a Kubernetes node.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format

Source: https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide
for the files of which Node Feature Discovery makes labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from provision.agent.status import Status
from provision.config import Config, KubernetesConfig
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


def publish(root: Path, status: Status, config: Config) -> list[str]:
    """Publish a host's status; the caller holds the host's lock.

    Returns:
        The files that could not be written, with reasons; a run does not fail for that.
    """
    problems = []
    files = {in_root(root, STATUS, follow=False): json.dumps(status.document(), indent=2) + "\n"}
    folders = (in_root(root, folder) for folder in EXPORTER_FOLDERS)
    folder = next(filter(Path.is_dir, folders), None)
    if config.metrics.textfile is not None:
        files[in_root(root, config.metrics.textfile, follow=False)] = metrics_text(status)
    elif folder is not None:
        files[folder / METRICS] = metrics_text(status)
    features = in_root(root, FEATURES)
    if features.is_dir():
        files[features / "provision"] = node_features(status, config.kubernetes)
    for path, text in files.items():
        remove_drafts(path)
        try:
            write_atomic(path, text)
        except OSError as error:
            problems.append(f"'{path}' could not be written: {error.strerror or error}")
    return problems


Sample = tuple[Mapping[str, str], float]


def metrics_text(status: Status) -> str:
    """Return a host's metrics in the text format."""
    lines = []
    for name, said, samples in _metrics(status):
        shown = [f"provision_{name}{_labels(labels)} {value:.12g}" for labels, value in samples]
        if shown:
            head = (f"# HELP provision_{name} {said}", f"# TYPE provision_{name} gauge")
            lines += [*head, *shown]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
    text = ",".join(f'{name}="{label.translate(escapes)}"' for name, label in labels.items())
    return f"{{{text}}}" if text else ""


def _metrics(status: Status) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    """Yield the name, the description and the samples of each metric."""
    found = [
        ({"driver": driver.name, "kernel": artifact.release, "role": artifact.role}, artifact)
        for driver in status.drivers
        for artifact in driver.kernels
    ]
    yield (
        "driver_ready",
        "Whether the driver works with the kernel.",
        ((where, artifact.is_ready) for where, artifact in found),
    )
    yield (
        "driver_info",
        "The artifact that the kernel uses.",
        (
            ({**where, "version": artifact.version or "", "digest": artifact.digest or ""}, 1)
            for where, artifact in found
        ),
    )
    yield (
        "prepare_seconds",
        "How long it took to have the artifact in the store, by part.",
        (
            ({**where, "part": part}, taken)
            for where, artifact in found
            for part, taken in artifact.seconds.items()
        ),
    )
    yield (
        "last_success_timestamp_seconds",
        "When the artifact was last made or found.",
        ((where, artifact.prepared) for where, artifact in found if artifact.prepared),
    )
    yield (
        "failures",
        "How often in a row the artifact could not be had, or loaded, by reason.",
        (
            ({**where, "reason": artifact.failure.reason}, artifact.failure.attempts)
            for where, artifact in found
            if artifact.failure
        ),
    )
    waits = any(artifact.state == "reboot-required" for _where, artifact in found)
    yield "reboot_required", "Whether a newer driver waits for a reboot.", [({}, waits)]
    yield "ready", "Whether all drivers work.", [({}, status.is_ready)]
    yield "exit_code", "What the last run ended with.", [({}, status.exit_code)]
    yield "observed_timestamp_seconds", "When this was observed.", [({}, status.time)]


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
