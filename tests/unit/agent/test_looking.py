"""What the agent reads of a host, and what it publishes: status.json, metrics, the journal."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kit.artifact import KERNEL, write
from kit.process import wait_for
from provision.agent.actions import shutdown_delayed
from provision.agent.desired import last_desired, load_desired, read_inputs
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
from provision.documents import parse_json
from provision.errors import ConfigError, ProvisionError
from provision.host.kernels import Kernels, wait_for_kernel
from provision.store.state import Failure, KernelState
from unit.agent.host import dpkg_at_work
from unit.agent.well_and_refused import everything

TEXT = b"""
catalogue = ["/srv/drivers"]
[drivers.demo]
version = "535"
flavour = "open"
options = { demo = { devices = 2 } }
[policy]
unload = "never"
keep = 3
"""


def _configure(root: Path, text: bytes = TEXT) -> None:
    write(root / "etc/provision/provision.toml", text)


def test_only_a_file_with_content_may_take_drivers_out_of_use(tmp_path: Path) -> None:
    _configure(tmp_path)
    assert load_desired(tmp_path).catalogue[-1] == tmp_path / "srv/drivers"
    for text, is_configured in ((TEXT, True), (b"# no drivers\n", True), (b"\n", False)):
        _configure(tmp_path, text)
        assert load_desired(tmp_path).is_configured is is_configured


@pytest.mark.parametrize("text", [b"[drivers\n", b"\xff"])
def test_what_was_kept_may_be_anything(text: bytes, tmp_path: Path) -> None:
    write(tmp_path / "var/lib/provision/.provision.toml", text)
    assert last_desired(tmp_path) is None


def test_the_last_settings_outlive_a_mistake(tmp_path: Path) -> None:
    assert last_desired(tmp_path) is None
    assert not load_desired(tmp_path).is_configured
    _configure(tmp_path)
    before = load_desired(tmp_path, keep=True)
    _configure(tmp_path, b"[drivers\n")
    with pytest.raises(ConfigError):
        load_desired(tmp_path)
    assert last_desired(tmp_path) == before


@pytest.fixture
def desired(tmp_path: Path) -> Desired:
    """A host with a catalogue of its own."""
    write(tmp_path / "c/demo/driver.toml", b"schema")
    return Desired(_config(), catalogue=(tmp_path / "c", tmp_path / "d"))


def _config(driver: str = "demo", more: str = "", **setting: object) -> Config:
    text = json.dumps({**tomllib.loads(more), "drivers": {driver: setting}})
    return parse_json(text, Config, name="provision.toml")


def _inputs(root: Path, desired: Desired, config: Config | None = None) -> str:
    desired = desired._replace(config=config or desired.config)
    (driver,) = desired.drivers
    return read_inputs(root, desired).of(driver, KERNEL)


@pytest.mark.parametrize(
    "name",
    [
        "c/demo/driver.toml",
        "c/demo/patches/fix.patch",
        "d/demo/driver.toml",
    ],
)
def test_what_may_change_an_artifact_changes_its_fingerprint(
    name: str, desired: Desired, tmp_path: Path
) -> None:
    before = _inputs(tmp_path, desired)
    assert _inputs(tmp_path, desired) == before
    write(tmp_path / name, b"other")
    assert _inputs(tmp_path, desired) != before


def test_so_do_settings_and_kernels_but_not_the_options_of_modules(
    desired: Desired, tmp_path: Path
) -> None:
    write(tmp_path / "etc/mok.der", b"certificate")
    write(tmp_path / "etc/other.der", b"another")
    signing = '[signing]\nkey = "/k"\ncertificate = "/etc/{}.der"\n'
    configs = [
        _config(),
        _config(version="535"),
        _config(flavour="open"),
        _config("other"),
        _config(more='[distros.debian.base_images]\n12 = "debian:12"\n'),
        _config(more=signing.format("mok")),
        _config(more=signing.format("other")),
    ]
    found = {_inputs(tmp_path, desired, config) for config in configs}
    found.add(read_inputs(tmp_path, desired).of("demo", "6.1.0-56-amd64"))
    assert len(found) == len(configs) + 1
    assert _inputs(tmp_path, desired, _config(options={"demo": {"devices": "2"}})) in found
    mirror = '[distros.debian.archive]\nmirror = "https://mirror.example/debian"\n'
    assert _inputs(tmp_path, desired, _config(more=mirror)) in found


_TREE = """\
[[trees]]
kernels = "*-amd64"
kind = "prepared"
path = "/usr/src/{name}"
"""


@pytest.mark.parametrize(
    ("trees", "name"),
    [
        (_TREE.format(name="a"), "usr/src/a/include/linux/module.h"),
        (_TREE.format(name="{kernel}"), f"usr/src/{KERNEL}/Module.symvers"),
        (_TREE.format(name="a.tar"), "usr/src/a.tar"),
        (_TREE.format(name="a"), f"boot/config-{KERNEL}"),
        (f'{_TREE.format(name="a")}symvers = "/srv/symvers"\n', "srv/symvers"),
        ("", f"lib/modules/{KERNEL}/build/Module.symvers"),
        ("", f"boot/symvers-{KERNEL}.gz"),
    ],
)
def test_a_kernel_that_was_built_again_is_another(
    tmp_path: Path, desired: Desired, trees: str, name: str
) -> None:
    config = _config(more=trees)
    before = _inputs(tmp_path, desired, config)
    write(tmp_path / name, b"0x1\tmodule_layout")
    first = _inputs(tmp_path, desired, config)
    assert first == _inputs(tmp_path, desired, config)
    write(tmp_path / name, b"0x2\tmodule_layout")
    assert len({before, first, _inputs(tmp_path, desired, config)}) == 3


def test_so_is_one_with_another_tree(tmp_path: Path, desired: Desired) -> None:
    trees = [_TREE.format(name=name) for name in ("a", "b")]
    found = {_inputs(tmp_path, desired, _config(more=more)) for more in trees}
    assert len(found) == 2
    # A tree of other kernels is none of this one's inputs.
    other = '[[trees]]\nkernels = "5.*"\nkind = "prepared"\npath = "/x"\n'
    same = {_inputs(tmp_path, desired, _config(more=more)) for more in ("", other)}
    assert len(same) == 1


@pytest.mark.parametrize(
    ("distro", "before", "after", "is_same"),
    [
        ("rocky", "9.4", "9.5", True),
        ("rhel", "8.9", "8.10", True),
        ("rocky", "8.10", "9.0", False),
        ("debian", "12", "13", False),
        ("ubuntu", "22.04", "24.04", False),
        ("opensuse-leap", "15.6", "16.0", False),
        ("flatcar", "4081.2.0", "4081.2.1", False),
        ("of-their-own", "1.0", "1.1", False),
    ],
)
def test_a_point_release_of_the_same_release_changes_no_artifact(
    tmp_path: Path, distro: str, before: str, after: str, *, is_same: bool
) -> None:
    _configure(tmp_path)
    found = []
    for version in (before, after):
        text = f'PRETTY_NAME="{version}"\nID={distro}\nVERSION_ID="{version}"\n'
        write(tmp_path / "etc/os-release", text.encode())
        found.append(read_inputs(tmp_path, load_desired(tmp_path, keep=True)).of("demo", KERNEL))
    assert (found[0] == found[1]) is is_same


@pytest.mark.parametrize("file", ["modules.dep", "kernel/a.ko"])
def test_a_calm_host_is_not_waited_for_and_a_folder_that_stays_incomplete_not_long(
    tmp_path: Path, file: str
) -> None:
    write(tmp_path / f"lib/modules/{KERNEL}" / file, b"")
    slept: list[float] = []
    assert wait_for_kernel(tmp_path, sleep=slept.append)
    assert slept == [] if file == "modules.dep" else 0 < sum(slept) < 10


def test_a_package_manager_at_work_is_waited_for(tmp_path: Path, notes: list[str]) -> None:
    (tmp_path / "lib/modules" / KERNEL).mkdir(parents=True)
    slept: list[float] = []
    with dpkg_at_work(tmp_path) as working:

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if sum(slept) == 40:
                working.close()

        assert wait_for_kernel(tmp_path, sleep=sleep)
    assert sum(slept) >= 42
    assert len(notes) == 1


def test_no_wait_lasts_for_ever(tmp_path: Path, notes: list[str]) -> None:
    slept: list[float] = []
    with dpkg_at_work(tmp_path):
        assert not wait_for_kernel(tmp_path, limit=30, sleep=slept.append)
    assert sum(slept) == 30
    assert "dpkg/lock" in notes[-1]


def test_a_shutdown_is_delayed_where_logind_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    text = f'#!/bin/sh\necho "$*" >"{asked}"\nexec cat\n'
    write(tmp_path / "programs/systemd-inhibit", text.encode())
    (tmp_path / "programs/systemd-inhibit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:{os.environ['PATH']}")
    with shutdown_delayed(tmp_path, "building"):
        assert not asked.exists()
    (tmp_path / "run/systemd/seats").mkdir(parents=True)
    with shutdown_delayed(tmp_path, "building"):
        wait_for("the inhibitor", lambda: asked.exists() and asked.read_text(), within_s=30)
    assert {"--what=shutdown", "--mode=delay", "--why=building"} <= set(asked.read_text().split())


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
    observed = Observed(kernels, is_live=True, drivers={"demo": driver._replace(**changes)})
    return status_of(WANTED, observed, plan(WANTED, observed), time=2000)


def _known(artifact: KernelArtifact, **changes: Any) -> KernelArtifact:  # noqa: ANN401 - any field
    return artifact._replace(known=artifact.known.model_copy(update=changes))


def _failed() -> Status:
    return _status(
        _known(WHOLE._replace(digest=None, is_whole=False, in_backoff=True), failure=BROKEN)
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
    failed = everything()._replace(drivers=())
    assert "nvidia.com/gpu.deploy.operands=false\n" in node_features(failed, ours)


def test_values_are_those_that_kubernetes_takes() -> None:
    # https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
    status = everything()
    kernels = status.kernels._replace(running="6.12.48+deb13-amd64")
    driver = status.drivers[0]._replace(name="d" * 90, version="~2:1.0+" + "x" * 90)
    text = node_features(status._replace(kernels=kernels, drivers=(driver,)), KubernetesConfig())
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
    newer = _known(WHOLE._replace(digest=None, is_whole=False, in_backoff=True), failure=unknown)
    trouble = ProvisionError("it failed", resolution="do this")
    noted = _status(notes=("'state.json' was set aside",))
    for status in (_status(), _failed(), _status(newer), failed_status(trouble, time=1), noted):
        document = json.loads(json.dumps(status.document()))
        jsonschema.validate(document, schema)
        assert document.keys() == schema["properties"].keys()
