"""Files and input that can't be trusted or read: one clear line from the engine, or a start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.bundles import Bundle
from kit.engine import Engine
from kit.files import write
from kit.hosts import Containers, Host
from kit.probe import can_mount, need, need_programs
from kit.process import Completed, run
from kit.product import DECORATOR, RUNTIME, write_runtime_config

# Breaks the file at a path, whose content was right.
Break = Callable[[Path], object]

_FILE = "/opt/gpu/file"
_SHOW = ("sh", "-c", f"cat {_FILE} 2>/dev/null; true")
_NOBODY = 65534


def _vendor(flag: str) -> dict[str, Any]:
    inventory = {"run": {"miscellaneous": [_FILE]}}
    return {"activation_flag": flag, "driver_feature": ["run"], "inventory": inventory}


@pytest.fixture
def gpu(host: Host) -> Host:
    """A host with one vendor that has one file."""
    write(host.root / _FILE.lstrip("/"), "from the host\n")
    host.write_vendor("gpu", _vendor("OCI_GPU"))
    return host


def _own(uid: int, gid: int, mode: int) -> Break:
    def change(path: Path) -> None:
        os.chown(path, uid, gid)
        path.chmod(mode)

    return change


def _fill(path: Path) -> None:
    # The flag comes first, as it is looked for in what is read of the file.
    with path.open("r+b") as file:
        file.truncate(100 << 20)


def _insert(text: bytes) -> Break:
    """`text` before the last brace of a JSON object."""
    return lambda path: path.write_bytes(path.read_bytes().rstrip()[:-1] + text + b"}")


def _replace_by(make: Break) -> Break:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


_FIFO = _replace_by(os.mkfifo)
_FOLDER = _replace_by(os.mkdir)
# What else makes a file a mistake: hooks/tests/corpus, and `host/rootfs.rs`.
_BROKEN_VENDORS = [
    pytest.param(_own(_NOBODY, 0, 0o644), "not owned by root", id="owned by no one"),
    pytest.param(_insert(b',"version":"\xfc"'), "not valid UTF-8", id="not UTF-8"),
    pytest.param(_insert(b',"x":' + b"[" * 100_000), "not valid JSON", id="deeply nested"),
    pytest.param(_insert(b","), "not valid JSON", id="cut"),
]


@pytest.mark.parametrize(("damage", "reason"), _BROKEN_VENDORS)
def test_a_vendor_file_that_is_broken_stops_only_who_asks_for_it(
    containers: Containers, gpu: Host, damage: Break, reason: str
) -> None:
    path = gpu.write_vendor("broken", _vendor("OCI_BROKEN"))
    damage(path)
    fine = containers.docker(*_SHOW, flags=("--env=OCI_GPU=",))
    assert fine.stdout == "from the host\n"
    refused = containers.docker("true", flags=("--env=OCI_BROKEN=",), check=False)
    assert refused.returncode != 0
    line = _only_line(refused, "oci-decorator")
    assert str(path) in line
    assert reason in line
    # It may be a long way to the message, and the container's own words never get there.
    assert len(line) < 1000


@pytest.mark.parametrize("damage", [_FIFO, _FOLDER], ids=["fifo", "folder"])
def test_a_vendor_file_without_any_text_is_reported_by_check(
    containers: Containers, gpu: Host, damage: Break
) -> None:
    path = gpu.write_vendor("broken", _vendor("OCI_BROKEN"))
    damage(path)
    assert containers.docker(*_SHOW, flags=("--env=OCI_GPU=",)).stdout == "from the host\n"
    report = run([DECORATOR, "check", "--root", gpu.root], check=False)
    assert report.returncode == 2
    assert f"{path}: not a regular file" in report.output


@contextmanager
def _damaged(config: Path, damage: Break) -> Iterator[None]:
    damage(config)
    try:
        yield
    finally:
        if config.is_dir():
            config.rmdir()
        config.unlink(missing_ok=True)


def _append(text: bytes) -> Break:
    return lambda path: path.write_bytes(path.read_bytes() + b"\n" + text + b"\n")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(_own(_NOBODY, 0, 0o644), "not owned by root", id="owned by no one"),
        pytest.param(_fill, "larger than 1048576 bytes", id="of 100 MB"),
        pytest.param(_append(b'log-file = "\xfc"'), "not valid UTF-8", id="not UTF-8"),
        pytest.param(_append(b"x=[" * 9000), "not valid TOML", id="deeply nested"),
    ],
)
def test_broken_settings_stop_only_who_asks(
    engine: Engine, containers: Containers, gpu: Host, damage: Break, reason: str
) -> None:
    running = containers.docker("sleep", "infinity", flags=("--detach",)).stdout.strip()
    with _damaged(gpu.config, damage):
        refused = containers.docker("true", flags=("--env=OCI_GPU=",), check=False)
        containers.docker("true")
        assert engine.docker("exec", running, "echo", "alive").stdout == "alive\n"
        engine.docker("rm", "--force", running)
    assert refused.returncode != 0
    line = _only_line(refused, "oci-decorator")
    assert str(gpu.config) in line
    assert reason in line


def _only_line(refused: Completed, word: str) -> str:
    """The one line of the engine's message that has our word."""
    lines = [line for line in refused.stderr.splitlines() if word in line]
    assert len(lines) == 1, refused.stderr
    return lines[0]


@pytest.fixture
def bundle(gpu: Host, fresh_root: Path, tmp_path: Path) -> Bundle:
    """A bundle that shows the file; the shim starts runc."""
    need_programs("runc")
    write_runtime_config(gpu.config, gpu.config_dir, root=gpu.root, runtime="runc")
    bundle = Bundle(tmp_path / "bundle")
    bundle.write(*_SHOW, root=fresh_root)
    return bundle


@pytest.fixture
def read_only(bundle: Bundle) -> Iterator[Bundle]:
    """That bundle, in a folder that is mounted read-only."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    bundle.state.mkdir()
    run(["mount", "--bind", bundle.folder, bundle.folder])
    run(["mount", "--bind", bundle.state, bundle.state])
    run(["mount", "-o", "remount,bind,ro", bundle.folder])
    yield bundle
    run(["umount", "--lazy", bundle.state, bundle.folder])


@pytest.mark.parametrize("flag", ["OCI_GPU=none", "OCI_GPU=all"])
def test_a_read_only_bundle_stops_only_who_asks(
    bundle: Bundle, gpu: Host, flag: str, request: pytest.FixtureRequest
) -> None:
    spec = bundle.spec()
    spec["process"]["env"].append(flag)
    bundle.config.write_text(json.dumps(spec))
    request.getfixturevalue("read_only")
    env = {"OCI_DECORATOR_CONFIG": str(gpu.config)}
    done = bundle.start(RUNTIME, env=env, low_level="runc", check=False)
    if flag == "OCI_GPU=none":
        assert (done.returncode, done.stdout) == (0, "")
    else:
        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1
        assert "must be writable" in done.stderr
