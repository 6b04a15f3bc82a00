"""`[check]` of a recipe: a driver that loads and does not work goes, with its user space."""

from __future__ import annotations

import json

import pytest

from kit.artifact import KERNEL
from kit.host_tree import DRIVER
from provision.agent.run import boot
from provision.manifest import Check
from provision.store.state import CHECK, load_state
from unit.agent.host import NEWEST, OLDER, Host

# A check that looks at what the test says, where it lies on the host.
_LOOKS = 'cat "{root}/srv/works" && [ "$(cat "{root}/srv/works")" = yes ]'
# Which sees that the modules are there when it runs.
_SEES_MODULES = f'grep -q "^{DRIVER} " "{{root}}/proc/modules"'
_HANGS = "sleep 60"


@pytest.fixture
def checked(host: Host) -> Host:
    """A host whose driver checks itself, and works in the older version."""
    host.check = Check(command=("democtl", "--check"), seconds=1)
    newest, host.newest = host.newest, OLDER
    host.scripts = {OLDER: _SEES_MODULES.format(root=host.root)}
    host.apply()
    host.newest = newest
    return host


def _upgrade(host: Host, script: str) -> None:
    host.scripts[NEWEST] = script.format(root=host.root)
    host.ask_for(NEWEST)


def _reboot(host: Host) -> None:
    """The boot id is that of this machine: what passed before, passed in another boot."""
    state = json.loads(host.layout.state.read_text())
    for kernel in state["kernels"].values():
        kernel["checked"] = dict.fromkeys(kernel["checked"], "another")
    host.layout.state.write_text(json.dumps(state))
    host.boot(KERNEL)


def test_it_runs_after_loading_once_a_boot(checked: Host) -> None:
    assert checked.artifact().state == "ready"
    assert checked.kinds() == []
    _reboot(checked)
    result = boot(checked.root)
    assert [one.action.kind for one in result.outcomes] == ["load", "check"]
    assert result.status.state == "ready"
    assert checked.kinds() == []


@pytest.mark.parametrize(
    ("script", "at_boot"), [("echo no such card; exit 1", True), (_HANGS, False)]
)
def test_what_fails_goes_back_with_its_user_space(
    checked: Host,
    script: str,
    at_boot: bool,  # noqa: FBT001 - a row
) -> None:
    _upgrade(checked, script)
    if at_boot:
        # It is in use, and the next boot loads the new one.
        checked.use()
        checked.apply()
        _reboot(checked)
        result = boot(checked.root)
    else:
        result = checked.apply()
    assert result.outcomes[-1].error is None
    assert checked.current() == OLDER
    assert checked.loaded() == {DRIVER}
    failed = next(one for one in result.outcomes if one.error is not None)
    assert failed.action.kind == "check"
    artifact = checked.artifact()
    assert artifact.is_ready
    assert artifact.version == OLDER
    assert len(artifact.rejected) == 1
    assert artifact.failure is not None
    assert artifact.failure.reason == CHECK
    if script != _HANGS:
        assert "no such card" in (artifact.failure.details or "")
    # Neither a run nor a boot tries it again.
    assert checked.kinds() == []
    _reboot(checked)
    kinds = [one.action.kind for one in boot(checked.root).outcomes]
    assert kinds == ["load", "check"]
    assert checked.current() == OLDER


def test_in_use_it_goes_back_at_the_next_boot(checked: Host) -> None:
    checked.write("srv/works", "no")
    # The check itself opens the device.
    opens = f"sed -i 's/^{DRIVER} 16384 0 -/{DRIVER} 16384 1 -/' '{{root}}/proc/modules'"
    _upgrade(checked, f"{opens}; exit 1")
    checked.apply()
    assert checked.current() == NEWEST
    _reboot(checked)
    boot(checked.root)
    assert checked.current() == OLDER
    assert checked.artifact().is_ready


def test_without_another_artifact_it_stays_and_is_not_ready_until_it_passes(host: Host) -> None:
    host.check = Check(command=("democtl",), seconds=1)
    host.scripts[NEWEST] = _LOOKS.format(root=host.root)
    host.write("srv/works", "not yet")
    artifact = host.artifact()
    assert (artifact.state, artifact.is_ready) == ("failed", False)
    assert artifact.failure is not None
    assert artifact.failure.reason == CHECK
    assert "not yet" in (artifact.failure.details or "")
    assert host.loaded() == {DRIVER}
    host.write("srv/works", "yes")
    assert host.kinds() == [f"check {KERNEL}"]
    assert host.artifact().state == "ready"


def test_what_has_passed_here_is_not_rejected_when_a_card_breaks(checked: Host) -> None:
    checked.write("srv/works", "yes")
    _upgrade(checked, _LOOKS)
    assert checked.artifact().version == NEWEST
    _reboot(checked)
    checked.write("srv/works", "no")
    boot(checked.root)
    assert checked.current() == NEWEST
    artifact = checked.artifact()
    assert (artifact.state, artifact.is_ready, artifact.rejected) == ("failed", False, ())


def test_a_host_without_the_card_and_an_artifact_without_the_program_do_not_fail(
    checked: Host,
) -> None:
    checked.check = Check(command=("another-program",))
    _upgrade(checked, "exit 1")
    result = checked.apply()
    # That is said, and nothing has passed.
    assert "check" not in [one.action.kind for one in result.outcomes]
    assert "another-program" in " ".join(result.status.drivers[0].notes)
    assert result.status.state == "ready"
    checked.want(vendor="1234", version="3.0")
    checked.configure(f'catalogue = ["/srv/drivers"]\n[drivers.{DRIVER}]\nversion = "3.0"\n')
    checked.check = Check(command=("democtl",))
    checked.scripts["3.0"] = "exit 1"
    assert checked.artifact().state == "ready"
    assert load_state(checked.layout).of(KERNEL).load_failure is None
