"""What the agent publishes: status.json, metrics, the journal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from provision.agent.model import (
    Desired,
    KernelArtifact,
    Observed,
    ObservedDriver,
    plan,
)
from provision.agent.status import (
    Status,
    failed_status,
    metrics_text,
    node_features,
    publish,
    status_of,
)
from provision.config import Config, DriverConfig, KubernetesConfig, MetricsConfig
from provision.errors import ProvisionError
from provision.host.kernels import Kernels
from provision.store.state import Failure, KernelState
from unit.agent.well_and_refused import everything

RUNNING, NEXT = "6.1.0-47-amd64", "6.1.0-56-amd64"
WANTED = Desired(Config(drivers={"demo": DriverConfig(version="latest")}))
WHOLE = KernelArtifact(
    "i",
    KernelState(inputs="i", prepared=1000, seconds={"total": 12.5}),
    digest="aaaaaaaaaaaa",
    is_whole=True,
    version="1.2",
)
BROKEN = Failure(
    reason="compile",
    message='it "fails"',
    resolution="patch",
    details="a\nb",
    inputs="i",
    time=900,
    attempts=2,
    final=True,
)
SCHEMA = Path(__file__).parents[3] / "docs/reference/status.schema.json"


def _status(following: KernelArtifact = WHOLE, **changes: Any) -> Status:  # noqa: ANN401 - any field
    driver = ObservedDriver(
        "demo",
        {RUNNING: WHOLE, NEXT: following},
        current="aaaaaaaaaaaa",
        is_active=True,
        loaded="yes",
        serves=True,
    )
    kernels = Kernels(RUNNING, (NEXT,), (NEXT, RUNNING))
    observed = Observed(kernels, is_live=True, drivers={"demo": replace(driver, **changes)})
    return status_of(WANTED, observed, plan(WANTED, observed), time=2000)


def _known(artifact: KernelArtifact, **changes: Any) -> KernelArtifact:  # noqa: ANN401 - any field
    return replace(artifact, known=artifact.known.model_copy(update=changes))


def _failed() -> Status:
    return _status(
        _known(replace(WHOLE, digest=None, is_whole=False, in_backoff=True), failure=BROKEN)
    )


def test_a_failure_with_other_inputs_is_past() -> None:
    old = _known(WHOLE, failure=BROKEN.model_copy(update={"inputs": "before"}))
    assert _status(old).state == "ready"


def test_metrics_have_what_is_watched() -> None:
    where = f'driver="demo",kernel="{RUNNING}",role="running"'
    text = metrics_text(_status())
    assert f"provision_driver_ready{{{where}}} 1\n" in text
    assert f'provision_driver_info{{{where},version="1.2",digest="aaaaaaaaaaaa"}} 1\n' in text
    assert f'provision_prepare_seconds{{{where},part="total"}} 12.5\n' in text
    assert f"provision_last_success_timestamp_seconds{{{where}}} 1000\n" in text
    assert "provision_observed_timestamp_seconds 2000\n" in text
    assert "provision_failures" not in text
    for line in text.splitlines():
        assert line.startswith(("# HELP provision_", "# TYPE provision_", "provision_"))
    failed = metrics_text(_failed())
    assert f'kernel="{NEXT}",role="next",reason="compile"}} 2\n' in failed
    assert f'provision_driver_ready{{driver="demo",kernel="{NEXT}",role="next"}} 0\n' in failed
    assert "\nprovision_reboot_required 0\n" in text
    # Those for the next kernel need none.
    waiting = metrics_text(_status(loaded="other", users=("demo is used by x",), current="b"))
    assert "\nprovision_reboot_required 1\n" in waiting


def test_big_numbers_are_written_in_full() -> None:
    where = f'driver="demo",kernel="{NEXT}",role="next"'
    text = metrics_text(_status(_known(WHOLE, prepared=1795192167)))
    assert f"provision_last_success_timestamp_seconds{{{where}}} 1795192167\n" in text


def test_metrics_go_where_the_exporter_looks_or_where_settings_say(tmp_path: Path) -> None:
    publish(tmp_path, _status(), Config())
    assert [p.name for p in tmp_path.rglob("*.prom")] == []
    folder = tmp_path / "var/lib/prometheus/node-exporter"
    folder.mkdir(parents=True)
    (folder / ".provision.prom.killed").touch()
    publish(tmp_path, _status(), Config())
    assert [path.name for path in folder.iterdir()] == ["provision.prom"]
    metrics = MetricsConfig(textfile="/srv/metrics/here.prom")
    publish(tmp_path, _status(), Config(metrics=metrics))
    assert (tmp_path / "srv/metrics/here.prom").is_file()


def test_a_node_of_a_cluster_gets_a_feature_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc/kubernetes/node-feature-discovery/features.d"
    folder.mkdir(parents=True)
    publish(tmp_path, everything(time=1_790_000_000), Config())
    lines = (folder / "provision").read_text().splitlines()
    # Times of the feature file are RFC 3339; the labels of an agent that has stopped expire.
    assert lines[0] == "# +expiry-time=2026-09-21T17:13:20Z"
    labels = dict(line.split("=") for line in lines[1:])
    name = "feature.node.kubernetes.io/provision"
    assert labels == {
        f"{name}.ready": "true",
        f"{name}.kernel": "6.1.0-47-amd64",
        f"{name}-nvidia.state": "ready",
        f"{name}-nvidia.version": "535.1",
    }


def test_labels_are_an_admins_and_a_gate_is_there_until_the_driver_works() -> None:
    ours = KubernetesConfig(
        labels="gpu.example.org/node",
        gates={"nvidia.com/gpu.deploy.operands": "nvidia", "example.org/nic": "onload"},
    )
    text = node_features(everything(), ours)
    assert "gpu.example.org/node.ready=true\n" in text
    assert "gpu.example.org/node-nvidia.state=ready\n" in text
    # The one works, and the other is not on this host.
    assert "nvidia.com/gpu.deploy.operands" not in text
    assert "example.org/nic=false\n" in text
    failed = replace(everything(), drivers=())
    assert "nvidia.com/gpu.deploy.operands=false\n" in node_features(failed, ours)


def test_values_are_those_that_kubernetes_takes() -> None:
    # https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
    status = everything()
    kernels = replace(status.kernels, running="6.12.48+deb13-amd64")
    driver = replace(status.drivers[0], name="d" * 90, version="~2:1.0+" + "x" * 90)
    text = node_features(replace(status, kernels=kernels, drivers=(driver,)), KubernetesConfig())
    for line in text.splitlines()[1:]:
        label, value = line.split("=")
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", label.split("/")[1])
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)


def test_what_cannot_be_written_is_said_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    (problem,) = publish(tmp_path, _status(), Config())
    assert "status.json" in problem
    assert not (tmp_path / "run/provision").exists()


def test_the_document_is_what_its_schema_says() -> None:
    schema = json.loads(SCHEMA.read_text())
    unknown = BROKEN.model_copy(update={"of a newer version": 1})
    newer = _known(replace(WHOLE, digest=None, is_whole=False, in_backoff=True), failure=unknown)
    trouble = ProvisionError("it failed", resolution="do this")
    noted = _status(notes=("'state.json' was set aside",))
    for status in (_status(), _failed(), _status(newer), failed_status(trouble, time=1), noted):
        document = json.loads(json.dumps(status.document()))
        jsonschema.validate(document, schema)
        assert document.keys() == schema["properties"].keys()
