"""What a plan says, as tables and as properties of any host and any wish."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.agent.model import (
    Desired,
    DesiredDriver,
    KernelArtifact,
    Loaded,
    Mode,
    Observed,
    ObservedDriver,
)
from provision.agent.plan import plan
from provision.host.kernels import Kernels
from provision.store.state import Failure, KernelState
from unit.agent.simulation import Simulation, unmet

RUNNING, NEXT = "6.1.0-47-amd64", "6.1.0-56-amd64"
WANTED = Desired((DesiredDriver("demo"),))
WHOLE = KernelArtifact(
    "inputs", KernelState("inputs"), digest="aaaaaaaaaaaa", is_whole=True, version="1.2"
)
EMPTY = KernelArtifact("inputs")
BROKEN = Failure("compile", "it does not compile", "patch it", "line 1", "inputs", 0, final=True)


def _observed(
    running: KernelArtifact = WHOLE,
    following: KernelArtifact = WHOLE,
    *,
    is_live: bool = True,
    current: str | None = "aaaaaaaaaaaa",
    is_active: bool = True,
    loaded: Loaded = "yes",
    users: tuple[str, ...] = (),
) -> Observed:
    artifacts = {RUNNING: running, NEXT: following}
    driver = ObservedDriver("demo", artifacts, current, is_active, loaded, users=users)
    kernels = Kernels(RUNNING, (NEXT,), (NEXT, RUNNING))
    return Observed(kernels, is_live, {"demo": driver})


def _kinds(observed: Observed, desired: Desired = WANTED, mode: Mode | None = None) -> list[str]:
    return [f"{a.kind} {a.kernel}" for a in plan(desired, observed, mode).actions]


def test_nothing_is_to_be_done_where_all_is_well() -> None:
    found = plan(WANTED, _observed())
    assert (found.actions, found.blocked) == ((), ())


def test_a_host_that_has_nothing_gets_everything_the_running_kernel_first() -> None:
    observed = _observed(EMPTY, EMPTY, current=None, is_active=False, loaded="no")
    kinds = [f"prepare {RUNNING}", f"activate {RUNNING}", f"load {RUNNING}", f"prepare {NEXT}"]
    assert _kinds(observed) == kinds


def test_a_new_kernel_gets_its_artifact_and_nothing_else_is_touched() -> None:
    assert _kinds(_observed(following=EMPTY)) == [f"prepare {NEXT}"]
    assert _kinds(_observed(following=EMPTY), replace(WANTED, prebuild=False)) == []


@pytest.mark.parametrize(
    ("artifact", "reason"),
    [
        (EMPTY, "does not exist"),
        (replace(WHOLE, is_whole=False), "missing"),
        (replace(WHOLE, is_whole=False, damage="demo.ko has 1 bytes, not 2"), "has 1 bytes"),
        (replace(WHOLE, known=KernelState("others")), "changed"),
        (replace(WHOLE, known=KernelState()), "not known"),
    ],
)
def test_an_artifact_is_made_for_a_reason(artifact: KernelArtifact, reason: str) -> None:
    (action,) = plan(WANTED, _observed(following=artifact)).actions
    assert reason in action.reason
    assert NEXT in str(action)


def test_another_version_is_made_while_the_old_one_serves_and_then_switched_to() -> None:
    kinds = ["prepare", "unload", "activate", "load"]
    assert _kinds(_observed(replace(WHOLE, known=KernelState("others")))) == [
        f"{k} {RUNNING}" for k in kinds
    ]


def test_modules_in_use_are_left_alone_and_a_reboot_is_asked_for() -> None:
    users = ("demo is used by ffmpeg",)
    never = replace(WANTED, unload="never")
    for desired, who, why in ((WANTED, users, users[0]), (never, (), "[policy] unload")):
        found = plan(desired, _observed(loaded="other", current="bbbbbbbbbbbb", users=who))
        assert found.actions == ()
        (blocked,) = found.blocked
        assert blocked.obstacle == "reboot-required"
        assert why in blocked.reason


def test_what_serves_comes_before_every_build() -> None:
    observed = _observed(loaded="no")
    other = ObservedDriver("other", {RUNNING: EMPTY, NEXT: EMPTY})
    observed = replace(observed, drivers={"other": other, **observed.drivers})
    desired = Desired((DesiredDriver("other"), DesiredDriver("demo")))
    first = plan(desired, observed).actions[0]
    assert (first.kind, first.driver) == ("load", "demo")


def test_a_build_that_failed_is_not_tried_again_before_its_inputs_change() -> None:
    failed = replace(EMPTY, known=KernelState(failure=BROKEN), holds_off=True)
    found = plan(WANTED, _observed(following=failed))
    assert found.actions == ()
    assert (found.blocked[0].obstacle, found.blocked[0].resolution) == ("failed", "patch it")
    assert _kinds(_observed(following=failed), mode=Mode(retry=True)) == [f"prepare {NEXT}"]
    passing = replace(failed, holds_off=False)
    assert _kinds(_observed(following=passing)) == [f"prepare {NEXT}"]


def test_an_old_artifact_serves_on_when_its_successor_fails() -> None:
    old = replace(WHOLE, known=KernelState("others", failure=BROKEN), holds_off=True)
    found = plan(WANTED, _observed(old, loaded="no"))
    assert [action.kind for action in found.actions] == ["load"]
    assert [blocked.obstacle for blocked in found.blocked] == ["failed"]


def test_a_boot_takes_what_is_there_and_makes_nothing() -> None:
    mode = Mode(may_prepare=False)
    old = replace(WHOLE, known=KernelState("others"))
    assert _kinds(_observed(old, EMPTY, loaded="no", current="b"), mode=mode) == [
        f"activate {RUNNING}",
        f"load {RUNNING}",
    ]
    found = plan(WANTED, _observed(EMPTY, EMPTY, loaded="no", current="b"), mode)
    assert found.actions == ()
    assert [(b.kernel, b.obstacle) for b in found.blocked] == [(RUNNING, "missing")]


def test_versions_move_forward_only_when_asked() -> None:
    kinds = ["prepare", "unload", "activate", "load"]
    every = [*(f"{kind} {RUNNING}" for kind in kinds), f"prepare {NEXT}"]
    assert _kinds(_observed(), mode=Mode(update=True)) == every
    fixed = Desired((DesiredDriver("demo", version="1.2"),))
    assert _kinds(_observed(), fixed, Mode(update=True)) == []


def test_what_was_tried_is_not_tried_again() -> None:
    observed = _observed(EMPTY, current=None, loaded="no")
    tried = frozenset({("prepare", "demo", RUNNING)})
    assert plan(WANTED, observed, Mode(retry=True), tried=tried).actions == ()


def test_a_tree_that_does_not_run_is_not_loaded_into() -> None:
    observed = _observed(EMPTY, EMPTY, is_live=False, current=None, loaded="no")
    kinds = [f"prepare {RUNNING}", f"activate {RUNNING}", f"prepare {NEXT}"]
    assert _kinds(observed) == kinds
    assert _kinds(_observed(is_live=False, loaded="no")) == []


def test_a_vendor_config_that_is_gone_is_written_again() -> None:
    assert _kinds(_observed(is_active=False)) == [f"activate {RUNNING}"]


def test_a_driver_that_is_not_named_any_more_goes() -> None:
    nothing = Desired()
    assert _kinds(_observed(), nothing) == [f"unload {RUNNING}", f"retire {RUNNING}"]
    assert _kinds(_observed(is_live=False, loaded="no"), nothing) == [f"retire {RUNNING}"]
    in_use = plan(nothing, _observed(users=("demo is used by ffmpeg",)))
    assert in_use.actions == ()
    assert [blocked.obstacle for blocked in in_use.blocked] == ["reboot-required"]


def test_a_missing_file_costs_no_driver() -> None:
    assert _kinds(_observed(), Desired(is_configured=False)) == []
    assert _kinds(_observed(), Desired(), Mode(may_prepare=False)) == []


def test_a_root_without_kernels_needs_nothing() -> None:
    driver = ObservedDriver("demo", {})
    found = plan(WANTED, Observed(Kernels(None), is_live=False, drivers={"demo": driver}))
    assert (found.actions, found.blocked) == ((), ())


_NAMES = ("demo", "other")
_failures = st.one_of(
    st.none(),
    st.builds(
        replace,
        st.just(BROKEN),
        inputs=st.sampled_from(["inputs", "others"]),
        final=st.booleans(),
        reason=st.sampled_from(["compile", "rejected", "missing"]),
    ),
)
_artifacts = st.builds(
    KernelArtifact,
    inputs=st.just("inputs"),
    known=st.builds(
        KernelState,
        inputs=st.sampled_from([None, "inputs", "others"]),
        rejected=st.sampled_from([(), ("c",)]),
        failure=_failures,
    ),
    digest=st.sampled_from([None, "a", "b"]),
    is_whole=st.booleans(),
    version=st.sampled_from([None, "1", "1.2"]),
    holds_off=st.booleans(),
).map(lambda artifact: artifact if artifact.digest else replace(artifact, is_whole=False))


@st.composite
def _hosts(draw: st.DrawFn) -> Observed:
    running = draw(st.sampled_from([RUNNING, NEXT, None]))
    pending = tuple(
        r for r in draw(st.sampled_from([(), (NEXT,), (RUNNING, NEXT)])) if r != running
    )
    kernels = Kernels(running, pending)
    is_live = running is not None and draw(st.booleans())
    drivers = {}
    for name in _NAMES:
        artifacts = {release: draw(_artifacts) for release in kernels.relevant}
        loaded: Loaded = draw(st.sampled_from(get_args(Loaded))) if is_live else "no"
        is_used = loaded != "no" and draw(st.booleans())
        drivers[name] = ObservedDriver(
            name,
            artifacts,
            current=draw(st.sampled_from([None, "a", "b"])),
            is_active=draw(st.booleans()),
            loaded=loaded,
            users=("it is used by someone",) if is_used else (),
        )
    return Observed(kernels, is_live, drivers)


_wishes = st.builds(
    Desired,
    drivers=st.lists(st.sampled_from(_NAMES), unique=True).flatmap(
        lambda names: st.tuples(
            *(
                st.builds(DesiredDriver, st.just(n), st.sampled_from(["latest", "1", "1.2"]))
                for n in names
            )
        )
    ),
    is_configured=st.booleans(),
    unload=st.sampled_from(["idle", "never"]),
    prebuild=st.booleans(),
)
_targets = st.frozensets(st.tuples(st.sampled_from(_NAMES), st.sampled_from([RUNNING, NEXT])))


@given(_wishes, _hosts(), _targets)
def test_applying_satisfies_the_wish_or_the_plan_names_why_not(
    desired: Desired, observed: Observed, failing: frozenset[tuple[str, str]]
) -> None:
    host = Simulation(desired, observed, failing)
    after = host.apply()
    assert after.actions == (), "planning again gave something to do"
    named = {(blocked.driver, blocked.kernel) for blocked in after.blocked}
    assert unmet(desired, host.observed) == named


@given(_wishes, _hosts(), _targets, st.booleans(), st.booleans())
def test_no_mode_forces_or_breaks_anything(
    desired: Desired,
    observed: Observed,
    failing: frozenset[tuple[str, str]],
    retry: bool,  # noqa: FBT001 - drawn by hypothesis
    update: bool,  # noqa: FBT001 - the same
) -> None:
    # The simulation itself asserts that nothing in use is unloaded and nothing damaged is used.
    host = Simulation(desired, observed, failing)
    host.apply(Mode(retry=retry, update=update))
    assert len(host.done) == len({action.key for action in host.done})


@given(_wishes, _hosts())
def test_a_boot_makes_no_artifact(desired: Desired, observed: Observed) -> None:
    host = Simulation(desired, observed)
    host.apply(Mode(may_prepare=False))
    assert all(action.kind != "prepare" for action in host.done)
    running = observed.kernels.running
    for wanted in desired.drivers:
        artifact = host.observed.drivers[wanted.name].artifacts.get(running or "")
        driver = host.observed.drivers[wanted.name]
        if artifact is not None and artifact.is_whole and driver.loaded != "other":
            assert driver.current == artifact.digest
