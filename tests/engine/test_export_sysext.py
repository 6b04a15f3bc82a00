"""System extensions by the real programs, and what the command says where it can't make one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.artifact import KERNEL, make_artifact, make_pin
from kit.probe import need_programs
from kit.process import run
from kit.product import Provision
from provision.kmod.loader import write_loader
from provision.store.layout import Layout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a driver in its store that no catalogue knows."""
    need_programs("mksquashfs", "unsquashfs")
    layout = Layout(tmp_path / "host", "demo")
    make_artifact(layout.entry(make_pin().short_digest))
    layout.current.symlink_to(make_pin().short_digest)
    write_loader(layout.current.resolve(), {}, root=layout.root)
    return tmp_path / "host"


def _export(root: Path, output: Path, *words: str | Path) -> dict[str, Any]:
    target = ("export", "sysext", "demo", "--kernel", KERNEL, "--root", root, "--output", output)
    found: dict[str, Any] = Provision().json(*target, *words)
    return found


def test_the_same_artifact_gives_the_same_extension(root: Path, tmp_path: Path) -> None:
    made = _export(root, tmp_path / "a")
    assert made["sha256"] == _export(root, tmp_path / "b")["sha256"]
    assert made["kernels"] == [KERNEL]
    image = Path(made["file"])
    assert image == tmp_path / "a/provision-demo.raw"
    run(["unsquashfs", "-quiet", "-no-progress", "-dest", tmp_path / "tree", image])
    release = tmp_path / "tree/usr/lib/extension-release.d/extension-release.provision-demo"
    assert release.read_text().splitlines()[0] == "ID=_any"
    script = tmp_path / "tree/usr/lib/provision/demo/kernels" / KERNEL / "load"
    refused = run(["/bin/sh", script, "load"], check=False)
    assert (refused.returncode, f"for the kernel {KERNEL}" in refused.stderr) == (3, True)
