"""The commands of the agent on a host that is all in a folder."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from provision.agent.reconcile import look_at
from provision.build import package_store
from provision.build.diagnosis import BuildError, BuildFailure, SourceError
from provision.build.package_store import PackageStore
from provision.cli import display
from provision.cli.commands import apply
from provision.cli.display import watch
from provision.distros.debian import default_cache
from provision.errors import ProvisionError
from provision.manifest import HostNeeds
from provision.matrix.cells import Cell, Column, Row
from provision.matrix.results import Results, matrix_folder, result_of
from unit.agent.host import DRIVER, NEXT, Host, make_host
from unit.cli.outcome import Outcome
from unit.kmod.artifact import KERNEL, write
from unit.recipes import RECIPE

Call = Callable[..., Outcome]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return make_host(tmp_path / "host", monkeypatch)


def _broken() -> ProvisionError:
    return BuildError(
        "it does not compile",
        BuildFailure(source_errors=[SourceError("demo.c", 1, "no")]),
        resolution="patch it",
        details="demo.c:1: error: no",
    )


def test_a_plan_says_what_and_why(host: Host, call: Call) -> None:
    lines = call("plan", "--root", host.root).out.splitlines()
    assert lines[0] == f"1. make the artifact of {DRIVER} for {KERNEL}: it does not exist yet"
    # A driver that no catalogue has.
    assert lines[1].startswith("   It is not available: ")
    assert lines[2].startswith("   What to do: ")
    assert len(lines) == 5
    document = call("plan", "--root", host.root, "--json").document
    assert [action["kind"] for action in document["actions"]] == ["prepare", "activate", "load"]
    assert document["kernels"]["running"] == KERNEL
    (artifact,) = document["artifacts"]
    assert (artifact["driver"], artifact["kernel"]) == (DRIVER, KERNEL)
    assert artifact["source"] == "missing"
    assert call("apply", "--dry-run", "--root", host.root, "--json").document == document
    assert not host.layout.folder.exists()


def test_a_plan_says_what_the_matrix_knows_of_the_next_kernels(host: Host, call: Call) -> None:
    recipe = RECIPE.replace('name = "made-up"', f'name = "{DRIVER}"')
    write(host.root / f"drivers/{DRIVER}/driver.toml", recipe.encode())
    write(host.root / f"drivers/{DRIVER}/patches/fix.patch", b"--- a\n+++ b\n")
    host.configure(f'catalogue = ["/drivers"]\n[drivers.{DRIVER}]\n')
    write(host.root / "etc/os-release", b"ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n")
    results = Results(matrix_folder(host.root))
    places = [("2.0", "plain", KERNEL), ("2.0", "plain", NEXT), ("2.0", "other", "6.1.0-60-amd64")]
    for version, flavour, kernel in places:
        cell = Cell(Row(DRIVER, version, flavour), Column("debian:12", kernel))
        results.write(result_of(cell, "failed", message="it does not compile", reason="compile"))
    said = [line for line in call("plan", "--root", host.root).out.splitlines() if "matrix" in line]
    assert said == [
        f"The matrix says: {DRIVER} 2.0 failed on {kernel}: it does not compile"
        for kernel in (KERNEL, NEXT)
    ]
    # What has its artifact needs no warning.
    call("apply", "--root", host.root)
    document = call("plan", "--root", host.root, "--json").document
    assert [one["kernel"] for one in document["matrix"]] == [NEXT]
    host.configure(f'catalogue = ["/drivers"]\n[drivers.{DRIVER}]\nversion = "1.2"\n')
    assert call("plan", "--root", host.root, "--json").document["matrix"] == []


def test_garbage_collection_takes_results_that_are_older_than_a_year(
    host: Host, call: Call
) -> None:
    call("apply", "--root", host.root)
    results = Results(matrix_folder(host.root))
    cell = Cell(Row(DRIVER, "2.0", "open"), Column("debian:12", NEXT))
    results.write(result_of(cell, "built").model_copy(update={"finished": 1}))
    assert call("gc", "--dry-run", "--root", host.root, "--json").document["matrix"] == [str(cell)]
    assert "older than a year" in call("gc", "--root", host.root).out
    assert results.read(cell) is None
    assert call("gc", "--root", host.root, "--json").document["matrix"] == []


def test_an_apply_says_how_the_host_is_then(host: Host, call: Call) -> None:
    done = call("apply", "--root", host.root)
    assert (done.code, done.out) == (0, f"{DRIVER} for {KERNEL}: ready, 2.0\n")
    assert "make the artifact" in done.err
    again = call("apply", "--root", host.root)
    assert (again.code, again.out, again.err) == (0, "Nothing to do.\n", "")
    document = call("apply", "--root", host.root, "--json").document
    assert (document["changed"], document["actions"]) == (False, [])
    assert "error" not in document
    assert call("plan", "--root", host.root).out == "Nothing to do.\n"


def test_a_failure_is_reported_with_its_reason_and_cure(host: Host, call: Call) -> None:
    call("apply", "--root", host.root)
    host.add_kernel(NEXT)
    host.broken[NEXT] = _broken()
    done = call("apply", "--root", host.root)
    assert done.code == 1
    assert "demo.c:1: error: no" in done.out
    assert "What to do: patch it" in done.out
    document = call("apply", "--root", host.root, "--json").document
    assert document["error"]["exit_code"] == 1
    assert "demo.c:1" in document["error"]["details"]
    assert document["status"]["state"] == "next-kernel-not-ready"
    blocked = call("plan", "--root", host.root).out
    assert f"Not now: {DRIVER} for {NEXT}: it does not compile" in blocked
    assert "What to do: patch it" in blocked


@pytest.mark.parametrize(
    ("is_unit", "line"), [(True, f"<3>{DRIVER} for "), (False, f"{DRIVER} for ")]
)
def test_the_journal_of_a_unit_keeps_failures_as_errors(
    host: Host, tmp_path: Path, *, is_unit: bool, line: str
) -> None:
    host.configure(f"[drivers.{DRIVER}]\n")
    with (tmp_path / "output").open("w+") as output:
        place = os.fstat(output.fileno())
        journal = f"{place.st_dev}:{place.st_ino}" if is_unit else "8:1"
        argv = [sys.executable, "-m", "provision", "apply", "--root", str(host.root)]
        environment = {**os.environ, "JOURNAL_STREAM": journal, "DOCKER_HOST": "unix:///nowhere"}
        done = subprocess.run(argv, stdout=output, env=environment, check=False)
        output.seek(0)
        assert done.returncode == 3
        assert output.read().startswith(line)


def test_a_status_is_a_table_for_people(host: Host, call: Call) -> None:
    call("apply", "--root", host.root)
    done = call("status", "--root", host.root)
    assert done.code == 0
    assert "This host is ready" in done.out
    assert "loaded" in done.out
    assert call("status", "--check", "--root", host.root).code == 0
    host.add_kernel(NEXT)
    # No one should reboot into a kernel that nothing has been made for yet.
    assert call("status", "--check", "--root", host.root).code == 1
    host.broken[NEXT] = _broken()
    call("apply", "--root", host.root)
    done = call("status", "--root", host.root)
    assert done.code == 0
    assert f"next {NEXT}" in done.out
    assert "demo.c:1: error: no" in done.out
    assert call("status", "--check", "--root", host.root).code == 1
    document = call("status", "--root", host.root, "--json").document
    assert document["drivers"][0]["kernels"][1]["failure"]["reason"] == "compile"
    assert call("status", "--check", "--json", "--root", host.root).code == 1


def test_a_status_is_shown_again_and_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(force_terminal=True, width=120, record=True)
    monkeypatch.setattr(display, "_console", lambda: console)
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(lambda: look_at(host.root, host.desired())[1], seconds=2, sleep=sleep)
    assert sleeps == [2, 2, 2]
    assert "pending" in console.export_text()


@pytest.mark.parametrize("text", [None, "", "# none\n"])
def test_a_host_where_nothing_is_configured_is_not_ready(
    host: Host, call: Call, text: str | None
) -> None:
    host.configure(text or "")
    if text is None:
        (host.root / "etc/provision/provision.toml").unlink()
    for words in (("status",), ("status", "--check"), ("plan",), ("doctor",)):
        done = call(*words, "--root", host.root)
        assert done.code == 3
        assert "othing is configured" in done.out
        assert call(*words, "--root", host.root, "--json").code == 3
    # The units run it, and there is nothing to do.
    done = call("apply", "--root", host.root)
    assert (done.code, "Nothing is configured" in done.out) == (0, True)
    document = call("status", "--root", host.root, "--json").document
    assert (document["state"], document["is_ready"]) == ("not-configured", False)


def test_a_driver_that_waits_to_be_taken_out_of_use_is_no_empty_host(
    host: Host, call: Call
) -> None:
    call("apply", "--root", host.root)
    host.configure("# none\n")
    assert call("status", "--root", host.root, "--json").document["state"] == "pending"
    call("apply", "--root", host.root)
    assert call("status", "--root", host.root).code == 3


def test_another_installation_is_shown_by_plan_and_apply(host: Host, call: Call) -> None:
    write(host.root / f"lib/modules/{KERNEL}/updates/dkms/{DRIVER}.ko", b"")
    for command in ("plan", "apply"):
        (other,) = call(command, "--root", host.root, "--json").document["others"]
        assert (other["driver"], "updates/dkms" in other["message"]) == (DRIVER, True)
        assert "To return" in other["resolution"]
    # A host that is settled is left alone; the doctor goes on about it.
    assert call("apply", "--root", host.root).out == "Nothing to do.\n"
    assert "other-installations" in call("doctor", "--root", host.root).out


def test_a_rollback_goes_back(host: Host, call: Call) -> None:
    host.newest = "1.2"
    call("apply", "--root", host.root)
    host.configure(f'[drivers.{DRIVER}]\nversion = "2.0"\n')
    call("apply", "--root", host.root)
    dry = call("rollback", DRIVER, "--dry-run", "--root", host.root)
    assert "would go back" in dry.out
    document = call("rollback", DRIVER, "--dry-run", "--root", host.root, "--json").document
    assert document["from"] != document["to"]
    done = call("rollback", DRIVER, "--root", host.root)
    assert (done.code, host.current()) == (0, "1.2")
    other = call("rollback", "other", "--root", host.root)
    assert other.code == 3
    document = call("rollback", DRIVER, "--root", host.root, "--json").document
    assert document["error"]["exit_code"] == 3


def test_gc_says_what_it_removes(host: Host, call: Call) -> None:
    call("apply", "--root", host.root)
    assert call("gc", "--root", host.root).out == "Nothing to remove.\n"
    host.configure("[policy]\nkeep = 0\n")
    call("apply", "--root", host.root)
    assert "would remove" in call("gc", "--dry-run", "--root", host.root).out
    done = call("gc", "--root", host.root)
    assert f"removed {DRIVER}" in done.out
    assert call("gc", "--root", host.root, "--json").document == {
        "artifacts": [],
        "images": [],
        "packages": [],
        "matrix": [],
        "dry_run": False,
    }


def test_the_timers_run_makes_room(host: Host, call: Call) -> None:
    call("apply", "--root", host.root)
    host.configure("[policy]\nkeep = 0\n")
    call("apply", "--timer", "--root", host.root)
    assert [path.name for path in host.layout.folder.glob("[0-9a-f]*")] == []


def test_the_timers_run_makes_room_in_the_package_store_too(
    host: Host, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackageStore(default_cache())
    path = store.add(io.BytesIO(b"deb"), sha256=hashlib.sha256(b"deb").hexdigest(), name="a.deb")
    call("apply", "--timer", "--root", host.root)
    assert path.exists()
    monkeypatch.setattr(package_store, "_last_use", lambda _status: 0.0)
    call("apply", "--root", host.root)
    assert path.exists()
    call("apply", "--timer", "--root", host.root)
    assert not path.exists()


@pytest.mark.parametrize(("policy", "moves"), [("never", False), ("timer", True)])
def test_the_timer_moves_versions_forward_where_the_policy_allows(
    policy: str, host: Host, call: Call, *, moves: bool
) -> None:
    host.newest = "1.2"
    host.configure(f'[drivers.{DRIVER}]\n[policy]\nupdate = "{policy}"\n')
    call("apply", "--root", host.root)
    host.newest = "2.0"
    call("apply", "--timer", "--root", host.root)
    assert host.current() == ("2.0" if moves else "1.2")


def test_a_boot_that_finds_nothing_is_no_failure(host: Host, call: Call) -> None:
    done = call("apply", "--boot", "--root", host.root)
    assert done.code == 0
    assert "pending" in done.out
    call("apply", "--root", host.root)
    host.reboot()
    host.kernel.refused[DRIVER] = ("Invalid argument", "demo: no")
    assert call("apply", "--boot", "--root", host.root).code == 1


def test_a_boot_that_finds_a_conflicting_module_in_use_asks_for_another_reboot(
    host: Host, call: Call
) -> None:
    host.needs = HostNeeds(conflicts=("nouveau",))
    call("apply", "--root", host.root)
    host.reboot()
    host.kernel.references["nouveau"] = 1
    host.kernel.have("nouveau")
    assert call("apply", "--boot", "--root", host.root).code == 4


def test_mistakes_in_the_configuration_are_all_named(host: Host, call: Call) -> None:
    host.configure('[policy]\nunload = "force"\nkeep = -1\n')
    for words in (("apply",), ("plan",), ("status",), ("gc",), ("apply", "--boot")):
        document = call(*words, "--root", host.root, "--json")
        assert document.code == 2
        assert len(document.document["error"]["mistakes"]) == 2


def test_a_kernel_is_waited_for_when_asked(
    host: Host, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Path] = []

    def wait_for_kernel(root: Path, **_more: object) -> bool:
        waited.append(root)
        return True

    monkeypatch.setattr(apply, "wait_for_kernel", wait_for_kernel)
    call("apply", "--root", host.root)
    assert waited == []
    assert call("apply", "--wait-kernel", "--root", host.root).out == "Nothing to do.\n"
    assert waited == [host.root]


def test_a_kernel_that_comes_during_a_run_is_prepared_by_it(
    host: Host, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = [False, True]

    def wait_for_kernel(root: Path, **_more: object) -> bool:
        if len(calm) == 1:
            host.add_kernel(NEXT)
        return root == host.root

    monkeypatch.setattr(apply, "wait_for_kernel", wait_for_kernel)
    monkeypatch.setattr(apply, "is_calm", lambda _root: calm.pop(0))
    document = call("apply", "--wait-kernel", "--root", host.root, "--json").document
    kinds = [(action["kind"], action["kernel"]) for action in document["actions"]]
    assert kinds[-1] == ("prepare", NEXT)
    assert len(kinds) == 4
    monkeypatch.setattr(apply, "wait_for_kernel", lambda _root, **_more: False)
    monkeypatch.setattr(apply, "is_calm", lambda _root: False)
    assert call("apply", "--wait-kernel", "--root", host.root).out == "Nothing to do.\n"


def test_a_kernel_to_come_is_prepared(host: Host, call: Call, tmp_path: Path) -> None:
    (tmp_path / "usr/lib/modules" / NEXT).mkdir(parents=True)
    done = call("prepare", "--usr", tmp_path / "usr", "--root", host.root, "--json")
    assert (done.code, done.document["coming"], done.document["lacking"]) == (0, [NEXT], [])
    assert (host.layout.kernels / NEXT).is_symlink()
    again = call("prepare", NEXT, "--root", host.root, "--json").document
    assert again["changed"] is False


def test_a_kernel_to_come_that_a_driver_does_not_build_for_fails(host: Host, call: Call) -> None:
    host.broken[NEXT] = _broken()
    done = call("prepare", NEXT, "--root", host.root, "--json")
    assert done.code == 1
    assert done.document["lacking"] == [{"driver": DRIVER, "kernel": NEXT}]
    # The running kernel has its own all the same.
    assert (host.layout.kernels / KERNEL).is_symlink()
    del host.broken[NEXT]
    assert call("prepare", NEXT, "--root", host.root).code == 0


def test_trouble_with_the_running_kernel_is_none_of_the_next_ones(host: Host, call: Call) -> None:
    host.broken[KERNEL] = _broken()
    assert call("prepare", NEXT, "--root", host.root).code == 0
    assert call("apply", "--root", host.root).code == 1


def test_to_prepare_for_nothing_is_wrong_usage(host: Host, call: Call, tmp_path: Path) -> None:
    assert call("prepare", "--root", host.root).code == 2
    done = call("prepare", "--usr", tmp_path, "--root", host.root)
    assert done.code == 2
    assert f"There is no kernel in '{tmp_path}/lib/modules'" in done.err
