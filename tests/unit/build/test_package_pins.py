"""Where the packages of a Pin come from: the solver, the archive's lists, or an older image."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.build import bootstrap, session
from provision.build.base_image import base_request
from provision.build.bootstrap import ensure_distro_base
from provision.build.image import DIGEST_LABEL, build_image
from provision.build.provenance import record_built
from provision.build.request import BuildSettings
from provision.build.resolve import resolve_pin
from provision.build.solve import SolveRequest
from provision.build.workspace import Settings
from provision.config import ArchiveConfig, DistroConfig
from provision.distros import find_distro
from provision.engine.docker_api import Engine, Image
from provision.errors import NotFoundError, ProvisionError, UnreachableError
from provision.pin import PIN_LABEL, BasePin, Pin
from unit.build.debian_host import BASE_IMAGE, KERNEL, REQUEST
from unit.build.debian_host import engine as engine  # noqa: PLC0414 - a fixture
from unit.build.debian_host import index as index  # noqa: PLC0414 - a fixture
from unit.build.debian_host import settings as settings  # noqa: PLC0414 - a fixture
from unit.build.debian_host import solved as solved  # noqa: PLC0414 - a fixture
from unit.engine.fake_engine import FakeEngine, recorded, using


def test_apt_is_asked_only_about_drivers_that_are_packaged(
    settings: Settings,
    engine: FakeEngine,
    index: list[tuple[str, ...]],
    solved: list[SolveRequest],
) -> None:
    resolve_pin(using(settings, engine), replace(REQUEST, driver="onload", force=True))
    assert index == []
    resolve_pin(using(settings, engine), REQUEST)
    assert index == [("v4l2loopback-dkms", "v4l2loopback-utils")]
    assert solved[0].repositories == solved[1].repositories


def test_what_apt_answered_is_kept_for_some_minutes(
    settings: Settings, engine: FakeEngine, index: list[tuple[str, ...]]
) -> None:
    for _ in range(2):
        resolve_pin(using(settings, engine), REQUEST)
    assert len(index) == 1
    resolve_pin(using(settings, engine), replace(REQUEST, refresh=True))
    assert len(index) == 2
    _age_answers(settings, 16 * 60)
    # The archive has not changed: that it says the same is kept as well.
    for _ in range(2):
        resolve_pin(using(settings, engine), REQUEST)
    assert len(index) == 3


def test_an_archive_out_of_reach_answers_as_it_did_lately(
    settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    before = resolve_pin(using(settings, engine), REQUEST)
    monkeypatch.setattr(
        "provision.build.session.SolvingSession._run", _failing(UnreachableError("no route"))
    )
    _age_answers(settings, 24 * 3600)
    again = resolve_pin(using(settings, engine), REQUEST)
    assert again.pin == before.pin
    assert any("Its last answer is used" in note for note in notes)
    _age_answers(settings, 8 * 24 * 3600)
    with pytest.raises(UnreachableError):
        resolve_pin(using(settings, engine), REQUEST)


def _failing(error: ProvisionError) -> Callable[..., Any]:
    def fail(*_given: object, **_more: object) -> Any:  # noqa: ANN401 - nothing comes back
        raise error

    return fail


def _age_answers(settings: Settings, seconds: float) -> None:
    for path in (settings.state / "packages/answers").iterdir():
        before = time.time() - seconds
        os.utime(path, (before, before))


def test_what_cannot_change_the_result_goes_beside_the_pin(
    settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A build has no network, so it gets no proxy either: its password would stay in an image.
    monkeypatch.setenv("https_proxy", "http://me:hush@proxy:3128")
    resolved = resolve_pin(using(settings, engine), REQUEST)
    engine.conversation = recorded("built")
    final = [message["aux"]["ID"] for message in recorded("built") if "aux" in message][-1]
    engine.result = Image(final, labels={DIGEST_LABEL: resolved.pin.digest})
    for how, jobs in ((BuildSettings(), "3"), (BuildSettings(jobs=1, rebuild=True), "1")):
        assert build_image(using(settings, engine), resolved, how).built
        assert engine.build_args[-1]["JOBS"] == jobs
    assert "hush" not in str(engine.build_args)


def test_the_solver_gets_the_archives_own_suites_and_the_drivers_tools(
    settings: Settings, engine: FakeEngine, solved: list[SolveRequest]
) -> None:
    resolve_pin(using(settings, engine).with_network("bridge"), REQUEST)
    (asked,) = solved
    assert {one.id for one in asked.repositories} == {"bookworm", "bookworm-security"}
    assert {one.urls for one in asked.repositories} == {
        ("http://mirror.example/debian",),
        ("http://mirror.example/debian-security",),
    }
    assert asked.tools == ("kmod", "make", "patch", "python3", "xz-utils")
    assert (asked.kernel, asked.network) == (KERNEL, "bridge")
    resolve_pin(using(settings, engine), REQUEST)
    assert solved[-1].network == "host"


def test_an_archive_of_ones_own_goes_to_the_solver_and_the_base_with_its_keys(
    settings: Settings,
    engine: FakeEngine,
    solved: list[SolveRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyrings: list[bytes] = []

    def make_apt_base(
        _engine: Engine, _asked: object, _mirror: str, keyring: Path, **_more: object
    ) -> BasePin:
        keyrings.append(keyring.read_bytes())
        return BasePin(image="debian:bookworm", digest=BASE_IMAGE.id)

    monkeypatch.setattr(bootstrap, "make_apt_base", make_apt_base)
    plain = resolve_pin(using(settings, engine), REQUEST)
    (settings.root / "etc/site.gpg").write_bytes(b"\x99site")
    archive = ArchiveConfig(
        mirror="http://mirror.example/debian",
        security_mirror="http://mirror.example/debian-security",
        keyring="/etc/site.gpg",
        snapshot=True,
    )
    distros = {"debian": DistroConfig(archive=archive)}
    settings = replace(settings, config=settings.config.model_copy(update={"distros": distros}))
    resolved = resolve_pin(using(settings, engine), REQUEST)
    wanted = base_request(settings, find_distro("debian:12"))
    ensure_distro_base(using(settings, FakeEngine), wanted)
    assert [dict(one.keys) for one in solved[0].repositories] == [{}] * 2
    assert all(dict(one.keys) == {"site.gpg": b"\x99site"} for one in solved[1].repositories)
    assert all(one.is_snapshot for one in solved[1].repositories)
    assert keyrings == [b"\x99site"]
    assert resolved.pin.digest == plain.pin.digest, "what is installed is the same"


@pytest.fixture
def made(
    settings: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Pin]:
    """Resolve where nothing can be solved for, with an image of these names and labels here."""
    pin = resolve_pin(using(settings, engine), REQUEST).pin

    def resolved(*tags: str, label: str = "", update: bool = False, is_own: bool = True) -> Pin:
        labels = {PIN_LABEL: label or pin.canonical_json()}
        engine.images = {name: i for name, i in engine.images.items() if PIN_LABEL not in i.labels}
        image = Image(f"sha256:{'12'[is_own] * 64}", tags or (pin.image,), labels=labels)
        engine.have(image)
        if is_own:
            record_built(settings.state, image.id, pin.image)
        wanted = replace(REQUEST, refresh=update)
        found = resolve_pin(using(settings, engine), wanted).pin
        assert found == pin
        return found

    monkeypatch.setattr(session, "solve", _failing(NotFoundError("no base image to solve in")))
    return resolved


def test_the_packages_of_an_image_that_was_made_before_are_taken(
    made: Callable[..., Pin],
) -> None:
    assert made().closure
    assert made("localhost/provision/v4l2loopback:1")
    assert made("registry.example:5000/v4l2loopback:1")


@pytest.mark.parametrize("change", ["", '"0.12.7"', '"6.1.0-47-amd64"', '"closure"'])
def test_an_image_of_another_decision_or_with_a_damaged_label_does_not_count(
    made: Callable[..., Pin], change: str
) -> None:
    pin = made()
    text = pin.canonical_json()
    label = text.replace(change, f'{change[:-1]}x"') if change else "{"
    assert label != text
    with pytest.raises(NotFoundError):
        made(label=label)


@pytest.mark.parametrize("how", [{"is_own": False}, {"update": True}])
def test_an_image_of_others_or_before_an_update_says_nothing_about_packages(
    made: Callable[..., Pin], how: dict[str, bool]
) -> None:
    assert made()
    with pytest.raises(NotFoundError):
        made(**how)
