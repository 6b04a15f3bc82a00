"""Carries plans out in memory, with builds that fail and modules that are in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from provision.agent.model import (
    Action,
    Desired,
    KernelArtifact,
    Mode,
    Observed,
    ObservedDriver,
    Plan,
    plan,
)
from provision.store.state import Failure, KernelState

Target = tuple[str, str]


@dataclass
class Simulation:
    """A host that does what is asked of it."""

    # Its desired state.
    desired: Desired
    # Its observed state.
    observed: Observed
    # Driver and kernel of the builds that fail.
    failing: frozenset[Target] = frozenset()
    # The actions in their order.
    done: list[Action] = field(default_factory=list)

    def apply(self, mode: Mode | None = None) -> Plan:
        """Do what the plan says, planning again after each action; returns the last plan."""
        mode = mode or Mode()
        while True:
            tried = frozenset(action.key for action in self.done)
            left = plan(self.desired, self.observed, mode, tried=tried).actions
            if not left:
                return plan(self.desired, self.observed)
            self.done.append(left[0])
            self._do(left[0])

    def _do(self, action: Action) -> None:
        doing: dict[str, Callable[[Action, ObservedDriver], ObservedDriver]] = {
            "prepare": self._prepare,
            "unload": self._unload,
            "activate": self._activate,
            "load": self._load,
        }
        if action.kind == "retire":
            assert action.driver not in self.desired.drivers
            assert self.observed.drivers[action.driver].loaded == "no"
            left = {n: d for n, d in self.observed.drivers.items() if n != action.driver}
            self.observed = self.observed._replace(drivers=left)
            return
        driver = self.observed.drivers[action.driver]
        changed = doing[action.kind](action, driver)
        drivers = {**self.observed.drivers, action.driver: changed}
        self.observed = self.observed._replace(drivers=drivers)

    def _prepare(self, action: Action, driver: ObservedDriver) -> ObservedDriver:
        artifact = driver.artifacts[action.kernel]
        if (action.driver, action.kernel) in self.failing:
            failure = Failure(
                reason="compile", message="it does not compile", inputs=artifact.inputs, time=0
            )
            changed = artifact._replace(
                known=artifact.known.model_copy(update={"failure": failure, "rejected": ()}),
                in_backoff=True,
            )
            return _with(driver, action.kernel, changed)
        digest = f"{action.driver} {action.kernel} {artifact.inputs}"
        changed = KernelArtifact(
            inputs=artifact.inputs,
            known=KernelState(inputs=artifact.inputs, previous=artifact.digest),
            digest=digest,
            is_whole=True,
            version="1",
        )
        driver = _with(driver, action.kernel, changed)
        is_new = action.kernel == self.observed.kernels.running and digest != artifact.digest
        return driver._replace(loaded="other") if is_new and driver.loaded != "no" else driver

    def _unload(self, action: Action, driver: ObservedDriver) -> ObservedDriver:
        del action
        assert self.observed.is_live
        assert not driver.users, "a module in use was unloaded"
        assert self.desired.config.policy.unload != "never"
        return driver._replace(loaded="no")

    def _activate(self, action: Action, driver: ObservedDriver) -> ObservedDriver:
        artifact = driver.artifacts[action.kernel]
        assert artifact.is_whole, "a damaged artifact was put to use"
        assert driver.loaded != "other", "user space would not match the loaded modules"
        return driver._replace(current=artifact.digest, is_active=True)

    def _load(self, action: Action, driver: ObservedDriver) -> ObservedDriver:
        assert driver.current == driver.artifacts[action.kernel].digest
        assert driver.loaded in {"no", "partly"}
        return driver._replace(loaded="yes")


def unmet(desired: Desired, observed: Observed) -> set[Target]:
    """Return for which drivers and kernels the host is not as it should be."""
    running = observed.kernels.running
    wrong = set()
    for wanted in desired.drivers:
        driver = observed.drivers[wanted]
        for release in observed.kernels.relevant:
            artifact = driver.artifacts[release]
            is_served = (
                driver.current == artifact.digest
                and driver.is_active
                and (driver.loaded == "yes" or not observed.is_live)
            )
            if not (artifact.is_current and (is_served or release != running)):
                wrong.add((wanted, release))
    if desired.is_configured:
        strays = observed.drivers.keys() - desired.drivers.keys()
        wrong |= {(name, running or "") for name in strays}
    return wrong


def _with(driver: ObservedDriver, release: str, artifact: KernelArtifact) -> ObservedDriver:
    return driver._replace(artifacts={**driver.artifacts, release: artifact})
