"""The shim in front of runc and crun, without an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.engine import Engine
from kit.files import write
from kit.hosts import IMAGE, Host
from kit.podman import without_hybrid_cgroups
from kit.probe import can_run_crun, need, need_programs
from kit.process import Completed, run
from kit.product import RUNTIME, write_runtime_config


@pytest.fixture
def bundle(engine: Engine, tmp_path: Path) -> Path:
    """An OCI bundle of the base image; its process lists /opt/probe."""
    folder = tmp_path / "bundle"
    engine.unpack(IMAGE, folder / "rootfs")
    run(["runc", "spec"], cwd=folder)
    spec = json.loads((folder / "config.json").read_text())
    spec["process"] |= {"terminal": False, "args": ["cat", "/opt/probe/file"]}
    # What the shim doesn't know has to stay as it is.
    spec["annotations"] = {"org.example.unknown": "kept"}
    (folder / "config.json").write_text(json.dumps(spec))
    return folder


@pytest.fixture
def probe(host: Host) -> Host:
    """A host with one vendor that has one file."""
    write(host.root / "opt/probe/file", "from the host\n")
    host.write_vendor(
        "probe",
        {
            "version": "1",
            "log_level": "LOG_INFO",
            "activation_flag": "OCI_PROBE",
            "driver_feature": ["file"],
            "inventory": {"file": {"miscellaneous": ["/opt/probe/file"]}},
        },
    )
    return host


def _start(runtime: str, host: Host, bundle: Path) -> Completed:
    write_runtime_config(host.config, host.config_dir, root=host.root, runtime=runtime)
    state = bundle / "state"
    argv: list[str | Path] = [
        RUNTIME,
        "--root",
        state,
        "run",
        "--bundle",
        bundle,
        f"probe-{runtime}",
    ]
    wrapped = without_hybrid_cgroups(argv) if runtime == "crun" else argv
    return run(wrapped, env={"OCI_DECORATOR_CONFIG": str(host.config)}, check=False)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_the_shim_edits_the_bundle_and_hands_over(runtime: str, bundle: Path, probe: Host) -> None:
    need_programs(runtime)
    need(runtime != "crun" or can_run_crun(), "cgroups that crun accepts", "use a newer machine")
    plain = _start(runtime, probe, bundle)
    assert plain.returncode != 0
    spec = json.loads((bundle / "config.json").read_text())
    spec["process"]["env"].append("OCI_PROBE=all")
    (bundle / "config.json").write_text(json.dumps(spec))

    done = _start(runtime, probe, bundle)
    assert (done.returncode, done.stdout) == (0, "from the host\n"), done.output
    edited = json.loads((bundle / "config.json").read_text())
    assert edited["annotations"] == {"org.example.unknown": "kept"}
    once = (bundle / "config.json").read_bytes()
    assert _start(runtime, probe, bundle).returncode == 0
    assert (bundle / "config.json").read_bytes() == once
