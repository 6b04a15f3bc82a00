"""What becomes of a host whose registry has something: taken, refused, or built in its place."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kit.artifact import KERNEL, make_pin
from provision.agent import actions
from provision.agent.status import metrics_text
from provision.build.diagnosis import BuildError, SourceError
from provision.build.request import DriverRequest
from provision.errors import NotFoundError
from provision.pin import Pin
from provision.registry.find import SearchOptions, TrustOverride
from provision.registry.signatures import UntrustedError
from provision.store.artifact_lookup import DowngradeError, MissingArtifactError
from provision.store.obtain import Stored
from provision.store.state import load_state, update_state
from unit.agent.host import NEWEST, OLDER, Host


class Registry:
    """What a registry has for every kernel, in place of the real way to find it.

    Attributes:
        pin: Of its image; None: it has none.
        error: Why it is refused.
        wanted: What was asked for, and what was allowed.
    """

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pin: Pin | None = make_pin(version=NEWEST)
        self.error: Exception | None = None
        self.wanted: list[tuple[DriverRequest, TrustOverride]] = []
        self.host = host
        monkeypatch.setattr(actions, "look_for", self.look_for)
        monkeypatch.setattr(actions, "store_pulled", self.obtain)

    def look_for(self, _settings: object, wanted: DriverRequest, lookup: SearchOptions) -> Any:  # noqa: ANN401
        self.wanted.append((wanted, lookup.consent))
        if self.error is not None:
            raise self.error
        return self.pin and SimpleNamespace(pin=self.pin)

    def obtain(self, settings: object, trusted: Any, _consent: object, **more: bool) -> Stored:  # noqa: ANN401
        resolved = SimpleNamespace(pin=trusted.pin)
        return replace(self.host.obtain(settings, resolved, **more), origin="registry")


@pytest.fixture
def registry(host: Host, monkeypatch: pytest.MonkeyPatch) -> Registry:
    return Registry(host, monkeypatch)


def test_what_a_registry_has_is_not_resolved_and_not_built(host: Host, registry: Registry) -> None:
    result = host.apply()
    assert result.status.state == "ready"
    assert "(from: registry)" in result.outcomes[0].result
    assert host.wanted == []
    ((wanted, consent),) = registry.wanted
    assert (wanted.kernel, consent.allow_downgrade) == (KERNEL, False)


@pytest.mark.parametrize("error", [UntrustedError, DowngradeError])
def test_what_is_refused_is_said_everywhere_and_nothing_is_built(
    host: Host, registry: Registry, error: type[UntrustedError]
) -> None:
    registry.error = error(
        "it has no signature from a trusted key", resolution="sign it", details="why"
    )
    result = host.apply()
    assert (result.status.state, result.status.exit_code) == ("failed", 1)
    assert host.wanted == []
    artifact = host.artifact(KERNEL)
    assert (artifact.state, artifact.reason, artifact.resolution) == (
        "failed",
        "it has no signature from a trusted key",
        "sign it",
    )
    failure = load_state(host.layout).of(KERNEL).failure
    assert failure is not None
    assert (failure.reason, failure.details) == ("untrusted", "why")
    assert 'reason="untrusted"} 1' in metrics_text(result.status)
    assert not host.layout.current.exists()
    # It is asked for again, because what is there may be signed by then.
    registry.error = None
    assert host.apply().status.state == "ready"


def test_a_host_that_never_builds_says_what_is_missing(host: Host, registry: Registry) -> None:
    registry.error = MissingArtifactError("No registry has demo", resolution="push it")
    result = host.apply()
    assert (result.status.state, result.status.exit_code) == ("missing", 3)
    # Not the same as missing headers: anyone who builds can do something about this.
    assert 'reason="no-artifact"} 1' in metrics_text(result.status)
    registry.error = NotFoundError("no such kernel")
    result = host.apply()
    assert (result.status.state, result.status.exit_code) == ("missing", 3)
    assert 'reason="missing"}' in metrics_text(result.status)
    assert host.wanted == []


def test_a_refused_update_costs_nothing(ready: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(ready, monkeypatch)
    registry.error = UntrustedError("refused")
    result = ready.apply(update=True)
    assert result.outcomes[0].error is not None
    assert result.status.is_ready


def test_what_was_rolled_back_from_is_not_taken_from_a_registry(
    ready: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(ready, monkeypatch)
    digest = ready.layout.linked(ready.layout.current)
    assert digest is not None
    state = load_state(ready.layout)
    registry.pin = make_pin(version=NEWEST)
    rejected = state.of(KERNEL).model_copy(
        update={"rejected": (registry.pin.short_digest,), "inputs": None}
    )
    update_state(ready.layout, lambda s: s.updated(KERNEL, rejected))
    result = ready.apply()
    failures = [one.failure for one in result.outcomes if one.failure]
    assert [failure.reason for failure in failures] == ["rejected"]
    assert ready.layout.linked(ready.layout.current) == digest


def test_the_newest_of_a_registry_is_left_alone(
    ready: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(ready, monkeypatch)
    registry.pin = make_pin(version=OLDER)
    result = ready.apply(update=True)
    assert [one.result for one in result.outcomes] == [f"{OLDER} is the newest"]
    assert len(registry.wanted) == 1


def test_an_older_version_of_a_registry_replaces_nothing_unasked(
    ready: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been signed later, or what serves was built here, which has no serial."""
    registry = Registry(ready, monkeypatch)
    digest = ready.layout.linked(ready.layout.current)
    registry.pin = make_pin(version="0.9")
    update_state(
        ready.layout,
        lambda s: s.updated(KERNEL, s.of(KERNEL).model_copy(update={"inputs": "others"})),
    )
    result = ready.apply()
    assert "which is older" in str(result.outcomes[0].error)
    assert ready.layout.linked(ready.layout.current) == digest
    result = ready.apply(allow_downgrade=True, retry=True)
    assert result.outcomes[0].error is None
    assert ready.layout.linked(ready.layout.current) != digest


@pytest.mark.parametrize(
    ("address", "build", "is_final"),
    [(True, "fallback", False), (True, "always", True), (False, "fallback", True)],
)
def test_what_does_not_compile_here_is_looked_for_again(
    host: Host, registry: Registry, build: str, *, address: bool, is_final: bool
) -> None:
    registry.pin = None
    text = f'[drivers.demo]\n[policy]\nbuild = "{build}"\n'
    host.configure(text + ('[registry]\naddress = "r.example/d"\n' if address else ""))
    message = SourceError("demo.c", 1, "no")
    host.broken[KERNEL] = BuildError(
        "it does not compile",
        source_errors=[message],
        resolution="patch it",
        details="no",
    )
    assert host.apply().status.state == "failed"
    failure = load_state(host.layout).of(KERNEL).failure
    assert failure is not None
    assert (failure.reason, failure.final) == ("compile", is_final)
    # Not by each run, as a compiler takes its time.
    assert failure.holds(now=failure.time + 60)
    assert failure.holds(now=failure.time + 7 * 3600) is is_final
