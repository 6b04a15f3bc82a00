"""Claims on what is built: one builder has it, whatever the clocks say and anyone who dies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from provision.errors import ProvisionError
from provision.registry.claims import ClaimedError, Claims, Pace, claim_tag
from provision.registry.names import read_tag
from unit.registry.memory import Answer, Asked, MemoryRegistry

NAME = "1.2-open-6.1.0-47-amd64.debian12"
TAG = claim_tag(NAME)
PACE = Pace(settle=2.0, renew=3600.0, expire=90.0)


class Clock:
    """Seconds of one machine, which pass when it waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


def builder(registry: MemoryRegistry, pace: Pace = PACE) -> Claims:
    clock = Clock()
    return Claims(registry.client(), pace, clock, clock.sleep)


def claim(registry: MemoryRegistry) -> dict[str, str]:
    said: dict[str, str] = json.loads(registry.manifests[TAG])["annotations"]
    return {key.removeprefix("provision.claim."): value for key, value in said.items()}


@contextmanager
def crashed(registry: MemoryRegistry, one: Claims) -> Iterator[None]:
    """What a builder leaves that is gone while it holds its claim."""
    with one.held(NAME):
        left = registry.manifests[TAG]
    registry.manifests[TAG] = left
    yield


@pytest.mark.parametrize("deletes", [True, False])
def test_one_has_it_and_then_another(registry: MemoryRegistry, *, deletes: bool) -> None:
    registry.deletes = deletes
    one, two = builder(registry), builder(registry)
    with one.held(NAME):
        assert claim(registry)["name"] == NAME
        with pytest.raises(ClaimedError) as refused, two.held(NAME):
            pytest.fail("both have it")
        assert refused.value.host == claim(registry)["host"]
        with two.held("another"):
            pass
    assert (TAG in registry.manifests) is not deletes
    with two.held(NAME):
        assert claim(registry)["holder"] == two.holder


def test_of_two_who_see_no_claim_the_last_who_writes_has_it(registry: MemoryRegistry) -> None:
    """Both look before either writes; whichever is overwritten finds that out."""
    one, two = builder(registry), builder(registry)
    real = one.sleep

    def meanwhile(seconds: float) -> None:
        real(seconds)
        # Two had looked too, and writes after one did.
        two.write(TAG, NAME, "held")

    one.sleep = meanwhile
    with pytest.raises(ClaimedError), one.held(NAME):
        pytest.fail("it was overwritten")
    assert claim(registry)["holder"] == two.holder


def test_who_was_slow_waits_for_a_renewal(registry: MemoryRegistry) -> None:
    one = builder(registry, replace(PACE, renew=20.0))
    waited: list[float] = []
    clock = one.clock
    assert isinstance(clock, Clock)
    real = one.write

    def slow(tag: str, name: str, state: str) -> str:
        clock.now += 1.5
        return real(tag, name, state)

    one.write = slow  # type: ignore[method-assign] # a write that takes long
    one.sleep = waited.append
    with one.held(NAME):
        assert waited == [40.0]


def test_a_crashed_builders_claim_expires_by_the_registrys_clock(
    registry: MemoryRegistry,
) -> None:
    with crashed(registry, builder(registry)):
        assert registry.date
        registry.date += PACE.expire
        with pytest.raises(ClaimedError), builder(registry).held(NAME):
            pytest.fail("too early")
        registry.date += 2
        with builder(registry).held(NAME):
            pass


def test_without_a_clock_of_the_registry_it_expires_by_ones_own(registry: MemoryRegistry) -> None:
    registry.date = None
    with crashed(registry, builder(registry)):
        two = builder(registry)
        clock = two.clock
        assert isinstance(clock, Clock)
        for _ in range(2):
            with pytest.raises(ClaimedError), two.held(NAME):
                pytest.fail("too early")
            clock.now += PACE.expire / 2 + 1
        with two.held(NAME):
            pass


def test_a_registry_whose_clock_goes_back_does_not_keep_a_claim_for_ever(
    registry: MemoryRegistry,
) -> None:
    with crashed(registry, builder(registry)):
        assert registry.date
        registry.date -= 1e7
        two = builder(registry)
        clock = two.clock
        assert isinstance(clock, Clock)
        with pytest.raises(ClaimedError), two.held(NAME):
            pytest.fail("too early")
        clock.now += PACE.expire + 1
        with two.held(NAME):
            pass


def test_a_claim_is_renewed_while_it_is_held(registry: MemoryRegistry) -> None:
    one = builder(registry, Pace(settle=0.0, renew=0.01, expire=90.0))
    seen = set()
    renewed = threading.Event()

    def look(asked: Asked) -> Answer | None:
        if asked.method == "PUT" and asked.path.endswith(TAG):
            seen.add(asked.body)
            if len(seen) > 2:
                renewed.set()
        return None

    registry.handlers.append(look)
    with one.held(NAME):
        assert renewed.wait(30)
    assert TAG not in registry.manifests


def test_a_foreign_tag_is_not_a_claim(registry: MemoryRegistry) -> None:
    registry.have_manifest(
        {
            "schemaVersion": 2,
            "config": {"mediaType": "x", "digest": "sha256:" + "0" * 64, "size": 2},
            "layers": [],
            "annotations": {"provision.claim.renewed": "never", "provision.claim.state": "?"},
        },
        TAG,
    )
    with builder(registry).held(NAME):
        assert claim(registry)["state"] == "held"


def test_a_registry_that_keeps_tags_is_named_with_a_cure(registry: MemoryRegistry) -> None:
    def immutable(asked: Asked) -> Answer | None:
        return Answer(412) if asked.method == "PUT" and "/manifests/" in asked.path else None

    registry.handlers.append(immutable)
    with pytest.raises(ProvisionError) as refused, builder(registry).held(NAME):
        pytest.fail("it was refused")
    assert "claims = false" in str(refused.value.resolution)


def test_a_registry_that_is_gone_in_the_end_keeps_nothing_from_being_done(
    registry: MemoryRegistry,
) -> None:
    with builder(registry).held(NAME):
        registry.handlers.append(lambda _: Answer(500))
    registry.handlers.clear()
    assert TAG in registry.manifests, "it expires"


def test_hosts_do_not_take_claims_for_artifacts() -> None:
    assert read_tag(TAG) is None
    assert not TAG.endswith("-open-6.1.0-47-amd64.debian12")
