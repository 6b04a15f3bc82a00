"""Runs of the agent on a host that is all in a folder: what it does, remembers and leaves alone."""

from __future__ import annotations

import json
from typing import Any

from kit.artifact import KERNEL, write, write_manifest
from kit.host_tree import DRIVER, NEXT
from provision.agent.run import plan_host
from provision.manifest import Container, load_manifest
from provision.store.obtain import Stored
from unit.agent.host import NEWEST, OLDER, Host
from unit.recipes import RECIPE


def test_a_new_kernel_is_prepared_before_it_runs(ready: Host) -> None:
    ready.add_kernel(NEXT)
    assert ready.kinds() == [f"prepare {NEXT}"]
    # The version stays, although there is a newer one by now.
    assert ready.wanted[-1].prefer == OLDER
    assert ready.current() == OLDER


def test_no_version_moves_back_unasked(ready: Host) -> None:
    ready.apply(update=True)
    ready.newest = OLDER
    assert ready.kinds(update=True) == [f"prepare {KERNEL}"]
    assert f"{NEWEST} stays: the offered version is older ({OLDER})" in ready.notes[-1]
    assert ready.current() == NEWEST
    assert ready.artifact().state == "ready"


def test_a_vendor_file_that_is_gone_is_written_again(ready: Host) -> None:
    ready.layout.vendor_config.unlink()
    assert ready.kinds() == [f"activate {KERNEL}"]
    assert ready.layout.vendor_config.exists()


def test_a_driver_that_no_container_asks_for_has_no_vendor_file_and_lacks_none(
    ready: Host,
) -> None:
    entry = ready.layout.entry(ready.layout.current.readlink().name)
    manifest = load_manifest(entry)
    write_manifest(entry, manifest, container=Container())
    ready.layout.vendor_config.unlink()
    assert ready.kinds() == []
    assert ready.artifact().state == "ready"


def test_what_is_installed_is_shown_whatever_the_settings_name(ready: Host) -> None:
    for settings in ("", "[drivers.other]\n"):
        ready.configure(settings)
        _observed, _plan, status = plan_host(ready.root, ready.desired())
        (one,) = status.unnamed
        assert (one.driver, one.kernel, one.version) == (DRIVER, KERNEL, OLDER)


def test_a_version_that_is_offered_no_more_is_not_replaced_by_an_older_one(
    ready: Host,
) -> None:
    ready.apply(update=True)
    # Something changed that artifacts are made from, and the chosen version is gone.
    write(ready.root / f"srv/{DRIVER}/patches/fix.patch", b"+")
    ready.configure(f'catalogue = ["/srv"]\n[drivers.{DRIVER}]\n')
    ready.newest = OLDER
    ready.is_gone = True
    artifact = ready.artifact()
    assert ready.current() == NEWEST
    assert artifact.state == "failed"
    assert f"would be replaced by {OLDER}" in (artifact.reason or "")
    # A kernel that has nothing yet gets what there is.
    ready.add_kernel(NEXT)
    assert f"prepare {NEXT}" in ready.kinds()
    assert f"{OLDER} is in the store" in "".join(ready.notes)


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
