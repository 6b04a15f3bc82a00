"""Runs of the agent on a host that is all in a folder: what it does, remembers and leaves alone."""

from __future__ import annotations

import json
from typing import Any

from kit.artifact import write, write_manifest
from kit.host_tree import DRIVER
from provision.manifest import Container, load_manifest
from provision.store.obtain import Stored
from unit.agent.host import Host
from unit.recipes import RECIPE


def test_a_driver_that_no_container_asks_for_has_no_vendor_file_and_lacks_none(
    ready: Host,
) -> None:
    entry = ready.layout.entry(ready.layout.current.readlink().name)
    manifest = load_manifest(entry)
    write_manifest(entry, manifest, container=Container())
    ready.layout.vendor_config.unlink()
    assert ready.kinds() == []
    assert ready.artifact().state == "ready"


def test_what_killed_runs_left_behind_goes(ready: Host) -> None:
    folder = ready.layout.folder
    for name in (
        ".partial-aaaaaaaaaaaa/x",
        ".removed-bbbbbbbbbbbb/x",
        "kernels/.tmp",
        ".state.json.x",
    ):
        write(folder / name, b"")
    (folder / ".current.1").symlink_to("nowhere")
    assert ready.kinds() == []
    names = [path.name for path in (*folder.iterdir(), *ready.layout.kernels.iterdir())]
    assert [name for name in names if name.startswith(".")] == [".lock"]
    assert ".partial-aaaaaaaaaaaa" in "".join(ready.notes)


def test_others_can_read_what_goes_on_while_it_does(host: Host) -> None:
    seen: list[dict[str, Any]] = []

    def build(*given: Any, **more: Any) -> Stored:  # noqa: ANN401 - handed on
        seen.append(json.loads((host.root / "run/provision/status.json").read_text()))
        return host.build(*given, **more)

    host.builds = build
    recipe = RECIPE.replace('name = "made-up"', f'name = "{DRIVER}"')
    write(host.root / f"drivers/{DRIVER}/driver.toml", recipe.encode())
    write(host.root / f"drivers/{DRIVER}/patches/fix.patch", b"--- a\n+++ b\n")
    host.configure(f'catalogue = ["/drivers"]\n[drivers.{DRIVER}]\n')
    host.apply()
    assert seen[0]["state"] == "pending"
    assert seen[0]["planned"][0].startswith(f"make the artifact of {DRIVER}")
