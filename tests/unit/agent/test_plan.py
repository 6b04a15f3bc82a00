"""What a plan says of any host and any wish. Plans of whole hosts: test_apply."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from provision.agent.model import (
    Desired,
    KernelArtifact,
    Loaded,
    Mode,
    Observed,
    ObservedDriver,
    plan,
)
from provision.config import Config, DriverConfig, PolicyConfig
from provision.host.kernels import Kernels
from provision.store.state import Failure, KernelState
from unit.agent.simulation import Simulation, unmet

RUNNING, NEXT = "6.1.0-47-amd64", "6.1.0-56-amd64"
WANTED = Desired(Config(drivers={"demo": DriverConfig()}))
WHOLE = KernelArtifact(
    "inputs", KernelState(inputs="inputs"), digest="aaaaaaaaaaaa", is_whole=True, version="1.2"
)
EMPTY = KernelArtifact("inputs")


def _observed(
    running: KernelArtifact = WHOLE,
    following: KernelArtifact = WHOLE,
    *,
    is_live: bool = True,
    current: str | None = "aaaaaaaaaaaa",
    loaded: Loaded = "yes",
) -> Observed:
    artifacts = {RUNNING: running, NEXT: following}
    driver = ObservedDriver("demo", artifacts, current, is_active=True, loaded=loaded)
    kernels = Kernels(RUNNING, (NEXT,), (NEXT, RUNNING))
    return Observed(kernels, is_live, {"demo": driver})


def test_what_serves_comes_before_every_build() -> None:
    observed = _observed(loaded="no")
    other = ObservedDriver("other", {RUNNING: EMPTY, NEXT: EMPTY})
    observed = observed._replace(drivers={"other": other, **observed.drivers})
    desired = Desired(Config(drivers={"other": DriverConfig(), "demo": DriverConfig()}))
    first = plan(desired, observed).actions[0]
    assert (first.kind, first.driver) == ("load", "demo")


def test_where_nothing_is_made_beforehand_a_kernel_that_is_named_is_made_ready_alone() -> None:
    named = "6.1.0-60-amd64"
    driver = ObservedDriver("demo", {RUNNING: WHOLE, NEXT: EMPTY, named: EMPTY}, loaded="no")
    observed = Observed(Kernels(RUNNING, (NEXT, named)), is_live=False, drivers={"demo": driver})
    policy = PolicyConfig(prebuild=False)
    desired = Desired(Config(drivers={"demo": DriverConfig()}, policy=policy))
    found = plan(desired, observed, Mode(extra_kernels=(named,)))
    assert [one.kernel for one in found.actions if one.kind == "prepare"] == [named]
    assert [one.kernel for one in found.blocked] == [NEXT]


_NAMES = ("demo", "other")
_failures = st.one_of(
    st.none(),
    st.builds(
        Failure,
        message=st.just("it does not compile"),
        time=st.just(0),
        inputs=st.sampled_from(["inputs", "others"]),
        final=st.booleans(),
        reason=st.sampled_from(["compile", "rejected", "missing"]),
    ),
)
_artifacts = st.builds(
    lambda **given: KernelArtifact(**given),  # noqa: PLW0108 - hypothesis draws all fields of a tuple
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
    in_backoff=st.booleans(),
).map(lambda artifact: artifact if artifact.digest else artifact._replace(is_whole=False))


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
    lambda config, *, is_configured: Desired(config, is_configured),
    st.builds(
        Config,
        drivers=st.dictionaries(
            st.sampled_from(_NAMES),
            st.builds(DriverConfig, version=st.sampled_from(["latest", "1", "1.2"])),
        ),
        policy=st.builds(
            PolicyConfig, unload=st.sampled_from(["idle", "never"]), prebuild=st.booleans()
        ),
    ),
    is_configured=st.booleans(),
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
        artifact = host.observed.drivers[wanted].artifacts.get(running or "")
        driver = host.observed.drivers[wanted]
        if artifact is not None and artifact.is_whole and driver.loaded != "other":
            assert driver.current == artifact.digest
