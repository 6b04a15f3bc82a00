"""Where the packages of a Pin come from: the solver, the archive's lists, or an older image."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kit.files import write
from kit.probe import is_root, need
from provision.build.base_image import base_request, ensure_distro_base
from provision.build.image import DIGEST_LABEL, build_image
from provision.build.package_store import PackageStore
from provision.build.resolve import resolve_pin
from provision.build.workspace import Settings
from provision.config import ArchiveConfig, DistroConfig
from provision.distros import find_distro
from provision.engine.docker_api import Image
from provision.errors import ProvisionError, UnreachableError
from unit.build.debian_host import KERNEL, REQUEST
from unit.build.debian_host import engine as engine  # noqa: PLC0414 - a fixture
from unit.build.debian_host import settings as settings  # noqa: PLC0414 - a fixture
from unit.engine.fake_engine import FakeEngine, recorded, using
from unit.fake_archive import MIRROR, AptEngine, stanza


def _sources(files: Mapping[str, bytes]) -> list[str]:
    """The repositories that apt is given."""
    return [text.decode() for name, text in sorted(files.items()) if name.startswith("sources/")]


def test_apt_is_asked_only_about_drivers_that_are_packaged(
    settings: Settings, engine: AptEngine
) -> None:
    resolve_pin(using(settings, engine), replace(REQUEST, driver="onload", force=True))
    assert engine.asked == []
    resolve_pin(using(settings, engine), REQUEST)
    assert engine.asked == [("v4l2loopback-dkms", "v4l2loopback-utils")]
    one, other = map(_sources, engine.solved)
    assert one == other


def test_what_apt_answered_is_kept_for_some_minutes(settings: Settings, engine: AptEngine) -> None:
    index = engine.asked
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
    settings: Settings, engine: AptEngine, notes: list[str]
) -> None:
    before = resolve_pin(using(settings, engine), REQUEST)
    engine.trouble = UnreachableError("no route")
    _age_answers(settings, 24 * 3600)
    again = resolve_pin(using(settings, engine), REQUEST)
    assert again.pin == before.pin
    assert any("Its last answer is used" in note for note in notes)
    _age_answers(settings, 8 * 24 * 3600)
    with pytest.raises(UnreachableError):
        resolve_pin(using(settings, engine), REQUEST)


def _age_answers(settings: Settings, seconds: float) -> None:
    for path in (settings.state / "packages/answers").iterdir():
        before = time.time() - seconds
        os.utime(path, (before, before))


def test_what_cannot_change_the_result_goes_beside_the_pin(
    settings: Settings, engine: AptEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A build has no network, so it gets no proxy either: its password would stay in an image.
    monkeypatch.setenv("https_proxy", "http://me:hush@proxy:3128")
    names = ("v4l2loopback-dkms", "v4l2loopback-utils")
    engine.texts = {("bookworm", "main"): "\n".join(stanza(name, "0.12.7-2") for name in names)}
    store = PackageStore(settings.state)
    for name in names:
        # What the stanza has the checksum of.
        content = f"{name}0.12.7-2".encode()
        store.add(io.BytesIO(content), sha256=hashlib.sha256(content).hexdigest(), name=name)
    resolved = resolve_pin(using(settings, engine), REQUEST)
    engine.conversation = recorded("built")
    final = [message["aux"]["ID"] for message in recorded("built") if "aux" in message][-1]
    engine.result = Image(final, labels={DIGEST_LABEL: resolved.pin.digest})
    for given, jobs in ((None, "3"), (1, "1")):
        again = build_image(using(settings, engine), resolved, jobs=given, rebuild=given == 1)
        assert again.built
        assert engine.build_args[-1]["JOBS"] == jobs
    assert "hush" not in str(engine.build_args)


def test_the_solver_gets_the_archives_own_suites_and_the_drivers_tools(
    settings: Settings, engine: AptEngine
) -> None:
    resolve_pin(using(settings, engine).with_network("bridge"), REQUEST)
    (files,) = engine.solved
    for suite, text in zip(("bookworm", "bookworm-security"), _sources(files), strict=True):
        assert f"Suites: {suite}\n" in text
        mirror = f"{MIRROR}-security" if "security" in suite else MIRROR
        assert f"URIs: {mirror}\n" in text
    asked = f"set -- linux-headers-{KERNEL} kmod make patch python3 xz-utils\n"
    assert asked in files["script.sh"].decode()
    resolve_pin(using(settings, engine), replace(REQUEST, refresh=True))
    assert {request.network for request in engine.requests} == {"bridge", "host"}


def test_an_archive_of_ones_own_goes_to_the_solver_and_the_base_with_its_keys(
    settings: Settings, engine: AptEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(is_root(), "root", "a program that makes a base image gets namespaces of its own")
    copies = 'for word; do case $word in --keyring=*) cp "${word#*=}" "%s"; esac; done'
    program = f"#!/bin/sh\n{copies}\nexit 1\n"
    write(tmp_path / "bin/debootstrap", program % (tmp_path / "keyring"), 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    plain = resolve_pin(using(settings, engine), REQUEST)
    (settings.root / "etc/site.gpg").write_bytes(b"\x99site")
    archive = ArchiveConfig(
        mirror=MIRROR,
        security_mirror=f"{MIRROR}-security",
        keyring="/etc/site.gpg",
        snapshot=True,
    )
    distros = {"debian": DistroConfig(archive=archive)}
    settings = replace(settings, config=settings.config.model_copy(update={"distros": distros}))
    resolved = resolve_pin(using(settings, engine), REQUEST)
    assert resolved.pin.digest == plain.pin.digest, "what is installed is the same"
    before, after = engine.solved
    assert b"\x99site" not in before.values()
    assert b"\x99site" in after.values()
    assert all("Check-Valid-Until: no" in text for text in _sources(after))
    with pytest.raises(ProvisionError):
        ensure_distro_base(
            using(settings, FakeEngine), base_request(settings, find_distro("debian:12"))
        )
    assert (tmp_path / "keyring").read_bytes() == b"\x99site"
