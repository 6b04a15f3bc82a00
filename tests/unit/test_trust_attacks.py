"""Attacks on trust: another's word for what was built here, for who signed it, and for when.

Each was possible once. `tests/engine/test_trust_attacks.py` plays those that need an engine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kit.artifact import KERNEL, MODULE, make_artifact, make_pin
from kit.host_tree import DRIVER
from kit.memory_registry import MemoryRegistry, MemoryRepository, public, public_pem
from kit.module_key import module_key
from provision.agent.rollback import rollback
from provision.agent.run import boot
from provision.build.image import (
    DIGEST_LABEL,
    find_built,
    is_built_here,
    record_built,
    remove_records,
    with_own_cache,
)
from provision.build.workspace import Settings
from provision.config import TrustConfig
from provision.engine.docker_api import Image
from provision.errors import NotFoundError, UntrustedError
from provision.export import ArtifactSource
from provision.kmod.module_signatures import is_signed
from provision.manifest import ADMISSION
from provision.registry import parse_reference
from provision.registry.find import TrustOverride, facts_of, tag_of
from provision.registry.publish import publish, sign_image
from provision.registry.repositories import find_digest
from provision.registry.signatures import FileSigner, verify_signature
from provision.store.entries import Admission, distrust, record_admission, unsigned_image
from provision.store.layout import Layout
from provision.store.obtain import store_image, store_pulled
from unit.agent.conftest import host as host  # noqa: PLC0414 - a fixture
from unit.agent.conftest import ready as ready  # noqa: PLC0414 - a fixture
from unit.agent.host import NEWEST, Host
from unit.engine.fake_engine import FakeEngine, using
from unit.registry.trusting_host import (
    ADDRESS,
    DEFAULT,
    KEY,
    OTHER,
    SERIAL,
    configured,
    connected,
    found,
    have,
)
from unit.registry.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.registry.trusting_host import settings as settings  # noqa: PLC0414 - a fixture

PIN = make_pin()
NAME = f"{ADDRESS}/{PIN.driver.name}:{tag_of(PIN).text}"
ONCE = TrustOverride(insecure=True)
SIGNER = FileSigner(KEY, public(KEY))
KEYS = Path("etc/provision/trust.d")
DAY_S = 24 * 3600

# What was built here


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    """An engine with an image that calls itself the artifact of a Pin, by name and by labels."""
    engine = FakeEngine()
    labels = {DIGEST_LABEL: PIN.digest, "provision.pin": PIN.canonical_json()}
    make_artifact(tmp_path / "content", pin=PIN)
    engine.have(Image("sha256:theirs", (PIN.image,), labels=labels), tmp_path / "content")
    return engine


def test_an_image_that_only_says_that_it_was_built_here_is_not_found(
    settings: Settings, engine: FakeEngine
) -> None:
    assert find_built(engine, PIN, settings.state) is None
    record_built(settings.state, "sha256:ours", PIN.image)
    assert find_built(engine, PIN, settings.state) is None
    engine.have(engine.images[PIN.image]._replace(id="sha256:ours", tags=("elsewhere:1",)))
    ours = find_built(engine, PIN, settings.state)
    assert ours is not None
    assert ours.id == "sha256:ours"


def _install(settings: Settings, _engine: FakeEngine) -> None:
    store_image(settings, PIN.image, DEFAULT)


def _sign_pushed(settings: Settings, _engine: FakeEngine) -> None:
    publish(
        settings,
        PIN,
        "sha256:theirs",
        NAME,
        SIGNER,
        connected=connected(MemoryRegistry()),
    )


def _export(settings: Settings, _engine: FakeEngine) -> None:
    ArtifactSource(settings, DEFAULT).unpack(PIN.image, settings.root / "exported")


@pytest.mark.parametrize("use", [_install, _sign_pushed, _export])
def test_an_image_that_was_not_built_here_is_of_no_use(
    settings: Settings, engine: FakeEngine, use: Callable[[Settings, FakeEngine], None]
) -> None:
    with pytest.raises(UntrustedError):
        use(using(settings, engine), engine)
    assert not Layout(settings.root, "demo").folder.exists()
    assert not (settings.root / "image.tar").exists()
    assert not (settings.root / "exported").exists()
    assert [call for call in engine.calls if "push" in call or "tag" in call] == []


def test_with_consent_such_an_image_counts_as_unsigned(
    settings: Settings, engine: FakeEngine
) -> None:
    signing = module_key(settings.root)
    settings = replace(settings, config=settings.config.model_copy(update={"signing": signing}))
    done = store_image(using(settings, engine), PIN.image, ONCE)
    assert unsigned_image(done.entry) == PIN.image
    assert distrust(settings.config, settings.root, "demo", done.entry) is not None
    assert not is_signed(done.entry / MODULE), (
        "the host's key signs only what was built here or is signed"
    )
    # The same Pin, built here: it takes the place of the other.
    engine.have(
        engine.images[PIN.image]._replace(id="sha256:ours"), engine.contents["sha256:theirs"]
    )
    record_built(settings.state, "sha256:ours", PIN.image)
    done = store_image(using(settings, engine), PIN.image, DEFAULT)
    assert unsigned_image(done.entry) is None
    assert is_signed(done.entry / MODULE)


def test_a_record_that_others_may_write_says_nothing(
    settings: Settings, engine: FakeEngine
) -> None:
    record_built(settings.state, "sha256:theirs", PIN.image)
    image = engine.images[PIN.image]
    assert is_built_here(settings.state, image)
    (settings.state / "built").chmod(0o770)
    assert not is_built_here(settings.state, image)


def test_the_engines_cache_of_another_is_of_no_use(tmp_path: Path) -> None:
    files = {"Dockerfile": b"FROM ${BASE_IMAGE} AS tools\nRUN make\nFROM scratch\nCOPY a /a\n"}

    def labels(state: str) -> list[str]:
        text = bytes(with_own_cache(files, tmp_path / state)["Dockerfile"]).decode()
        base, tools, make, scratch, artifact, copy = text.splitlines()
        assert [base, make, scratch, copy] == bytes(files["Dockerfile"]).decode().splitlines()
        return [tools, artifact]

    one, again, other = labels("one"), labels("one"), labels("other")
    assert one[0] == again[0] != other[0]
    assert one[1] != again[1]
    # What others get to see says nothing of what only this user knows.
    assert one[0].partition("=")[2] not in one[1]


def test_records_of_images_that_are_gone_are_collected(
    settings: Settings, engine: FakeEngine
) -> None:
    for image_id in ("sha256:theirs", "sha256:gone", "sha256:young"):
        record_built(settings.state, image_id, PIN.image)
    for path in (settings.state / "built").glob("*[!g]"):
        os.utime(path, (0, 0))
    remove_records(settings.state, engine, days=30)
    left = {path.name for path in (settings.state / "built").iterdir()}
    assert left == {"sha256:theirs", "sha256:young"}


# Who admitted an artifact


def _why(settings: Settings, entry: Path) -> str | None:
    return distrust(settings.config, settings.root, "demo", entry)


def _rotate(settings: Settings) -> None:
    """Replace the only trusted key."""
    (settings.root / KEYS / "fleet.pub").unlink()
    (settings.root / KEYS / "next.pub").write_bytes(public_pem(OTHER))


def test_what_a_key_admitted_is_not_trusted_longer_than_the_key(
    settings: Settings,
    registry: MemoryRegistry,
    tmp_path: Path,
) -> None:
    digest = have(registry, tmp_path)
    entry = store_pulled(settings, found(settings, registry), DEFAULT).entry
    assert _why(settings, entry) is None
    _rotate(settings)
    why = _why(settings, entry)
    assert why is not None
    assert public(KEY).fingerprint in why
    # Once the new key has signed the image, it is made again: the new key vouches for that one.
    registry.sign(digest, facts_of(PIN, SERIAL + 1), OTHER)
    assert store_pulled(settings, found(settings, registry), DEFAULT).origin == "registry"
    assert _why(settings, entry) is None


def _by_public_key(settings: Settings, registry: MemoryRegistry, folder: Path) -> TrustOverride:
    have(registry, folder)
    (folder / "once.pub").write_bytes(public_pem(KEY))
    _rotate(settings)
    return TrustOverride(public_key=folder / "once.pub")


def _insecure(_settings: Settings, registry: MemoryRegistry, folder: Path) -> TrustOverride:
    have(registry, folder, signed=False)
    return ONCE


@pytest.mark.parametrize("allow", [_by_public_key, _insecure])
def test_what_one_command_allowed_is_not_allowed_later(
    settings: Settings,
    registry: MemoryRegistry,
    tmp_path: Path,
    allow: Callable[[Settings, MemoryRegistry, Path], TrustOverride],
) -> None:
    trust = allow(settings, registry, tmp_path)
    entry = store_pulled(settings, found(settings, registry, trust=trust), trust).entry
    assert json.loads((entry / ADMISSION).read_text())["once"] is True
    assert "once" in (_why(settings, entry) or "")


def test_not_before_holds_for_what_is_in_the_store(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    entry = store_pulled(settings, found(settings, registry), DEFAULT).entry
    text = json.dumps({"keys": f"/{KEYS}", "not_before": "2030-01-01"})
    later = configured(tmp_path, TrustConfig.model_validate_json(text))
    assert _why(settings, entry) is None
    assert _why(later, entry) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"image": 1}', "\udc80"])
def test_a_damaged_record_of_who_admitted_an_artifact_is_no_trust(
    settings: Settings, tmp_path: Path, text: str
) -> None:
    (tmp_path / ADMISSION).write_text(text, errors="surrogateescape")
    assert _why(settings, tmp_path) is not None


def test_an_image_does_not_say_itself_who_vouches_for_it(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    content = tmp_path / f"content-{PIN.short_digest}"
    make_artifact(content, pin=PIN)
    record_admission(content, Admission(image="x", repository="x", fingerprint="sha256:0"))
    have(registry, tmp_path)
    entry = store_pulled(settings, found(settings, registry), DEFAULT).entry
    assert json.loads((entry / ADMISSION).read_text())["fingerprint"] == public(KEY).fingerprint


def test_status_says_that_the_key_of_a_driver_in_use_is_gone(ready: Host) -> None:
    keys = f'[drivers.{DRIVER}]\nversion = "1.2"\n[trust]\nkeys = "/{KEYS}"\n'
    ready.configure(keys)
    (ready.root / KEYS).mkdir(parents=True)
    (ready.root / KEYS / "fleet.pub").write_bytes(public_pem(KEY))
    ready.apply()
    entry = ready.layout.current.resolve()
    one = Admission(
        image=NAME, repository=ADDRESS, key="fleet.pub", fingerprint=public(KEY).fingerprint
    )
    record_admission(entry, one)
    assert ready.artifact(may_prepare=False).state == "ready"
    (ready.root / KEYS / "fleet.pub").write_bytes(public_pem(OTHER))
    # A boot says so, and does not take the driver away: a changed key is no defect of it.
    ready.boot()
    artifact = boot(ready.root).status.drivers[0].kernels[0]
    assert ready.layout.current.resolve() == entry
    assert (artifact.state, artifact.is_ready) == ("pending", True)
    assert artifact.distrust is not None
    # An apply makes it again.
    assert ready.kinds()[0] == f"prepare {KERNEL}"


def test_no_rollback_goes_to_what_one_command_had_allowed(ready: Host) -> None:
    trial = ready.layout.current.resolve()
    ready.ask_for(NEWEST)
    ready.apply()
    record_admission(trial, Admission(image=NAME, repository=ADDRESS, once=True))
    with pytest.raises(NotFoundError) as caught:
        rollback(ready.root, ready.desired(), DRIVER)
    assert trial.name in str(caught.value.details)
    assert ready.layout.current.resolve() != trial
    record_admission(trial, None)
    rollback(ready.root, ready.desired(), DRIVER)
    assert ready.layout.current.resolve() == trial


# When something was signed


@pytest.mark.parametrize(
    ("ahead_s", "is_taken"), [(3600, True), (2 * DAY_S, False), (10**15, False)]
)
def test_a_signature_of_the_future_locks_no_host_out(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, ahead_s: int, *, is_taken: bool
) -> None:
    have(registry, tmp_path, serial=int(time.time()) + ahead_s)
    if is_taken:
        assert found(settings, registry)
        return
    with pytest.raises(UntrustedError):
        found(settings, registry)


def test_who_signs_later_has_the_greater_serial_whatever_the_clock_says(
    settings: Settings,
    registry: MemoryRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(registry, tmp_path, signed=False)
    now = int(time.time())

    def sign(state: str, clock: int) -> int:
        monkeypatch.setattr("provision.registry.publish.time.time", lambda: clock)
        builder = replace(settings, state=tmp_path / state)
        signed = sign_image(builder, parse_reference(NAME), SIGNER, connected=connected(registry))
        return signed.facts.serial

    first = sign("one", now)
    assert first == now
    # The clock was set back.
    assert sign("one", now - 600) == first + 1
    # Another builder's clock is behind: it sees what the first one signed.
    assert sign("two", now - 3600) == first + 2
    client = MemoryRepository(registry, parse_reference(NAME))
    digest = find_digest(client, str(client.reference.tag))
    facts = verify_signature(client, str(digest), [public(KEY)], {}).facts
    assert facts is not None
    assert facts.serial == first + 2
