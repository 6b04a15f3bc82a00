"""What a host takes from registries: by whose signature, by which name, and how old it may be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from provision.catalogue import Catalogue
from provision.catalogue.upstream import BranchFacts, Upstream
from provision.config import Config, PolicyConfig, RegistryConfig, TrustConfig, TrustRule
from provision.engine.docker_api import names_registry
from provision.errors import ConfigError, NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.kmod.verify import verify_artifact
from provision.pin import Pin
from provision.pipeline import drafts, pulling, registries
from provision.pipeline.artifact_lookup import look_for
from provision.pipeline.driver_request import DriverRequest
from provision.pipeline.pulling import DowngradeError, obtain_pulled, store_pulled, verify_pulled
from provision.pipeline.registries import Consent, connect, examine, host_reference, tag_of
from provision.pipeline.registry_search import ArtifactQuery, Lookup, seek
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress
from provision.registry.artifact_images import Trusted, facts_of
from provision.registry.attached_signatures import signature_tag
from provision.registry.client import Client
from provision.registry.image_signature import UntrustedError
from provision.registry.names import Reference, parse_reference
from provision.registry.tokens import DeniedError
from provision.sources.market import VersionRequest
from provision.store.entries import newest_serial, note_serial, remove, unsigned_reference
from provision.store.layout import Layout
from provision.store.locks import changing
from unit.kmod.artifact import KERNEL, VERMAGIC, make_artifact, make_module, make_pin
from unit.registry.memory import (
    Answer,
    Asked,
    MemoryRegistry,
    digest_of,
    layer_of,
    new_key,
    public_pem,
)

ADDRESS = "registry.example/drivers"
KEY, OTHER = new_key(), new_key()
SERIAL = 1_790_000_000
SOUGHT = ArtifactQuery("demo", VersionRequest(), "open", KERNEL, "debian:12", "x86_64")
DEFAULT = Consent()


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A host that trusts one key."""
    keys = tmp_path / "host/etc/provision/trust.d"
    keys.mkdir(parents=True)
    (keys / "fleet.pub").write_bytes(public_pem(KEY))
    (tmp_path / "host/etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    return configured(tmp_path)


def configured(
    tmp_path: Path, trust: TrustConfig | None = None, registry: RegistryConfig | None = None
) -> Settings:
    config = Config(
        registry=registry or RegistryConfig(address=ADDRESS),
        trust=trust or TrustConfig(keys="/etc/provision/trust.d"),
    )
    return Settings(tmp_path / "host", config, Catalogue([]), tmp_path / "state")


def have(
    registry: MemoryRegistry,
    folder: Path,
    pin: Pin | None = None,
    *,
    serial: int = SERIAL,
    tag: str | None = None,
    signed: bool = True,
) -> str:
    """Have the artifact of a Pin in the registry, as 'provision build --push --sign' leaves it."""
    pin = pin or make_pin()
    content = folder / f"content-{pin.short_digest}"
    if not content.exists():
        vermagic = VERMAGIC.replace(KERNEL, pin.kernel.release)
        make_artifact(content, pin=pin, module=make_module(vermagic))
    digest = registry.have_image(pin, [layer_of(content)], tag or tag_of(pin).text)
    if signed:
        registry.sign(digest, facts_of(pin, serial), KEY)
    registry.asked.clear()
    return digest


def connected(registry: MemoryRegistry) -> Callable[[Settings, Reference], Client]:
    def connect_to(settings: Settings, reference: Reference) -> Client:
        client = connect(settings, reference)
        client.transport.session = registry.session()
        client.transport.sleep = registry.slept.append
        client.transport.credentials = lambda: None
        return client

    return connect_to


def found(
    settings: Settings,
    registry: MemoryRegistry,
    sought: ArtifactQuery = SOUGHT,
    consent: Consent = DEFAULT,
) -> Trusted:
    trusted = seek(settings, sought, Lookup(consent, connected=connected(registry)))
    assert trusted is not None
    return trusted


@pytest.mark.parametrize(
    ("reference", "is_registry"),
    [
        ("provision/demo:1", False),
        ("demo:1", False),
        ("debian", False),
        ("sha256:" + "0" * 64, False),
        ("localhost/provision/demo:1", False),
        ("docker.io/provision/demo:1", True),
        ("localhost:5000/demo", True),
        ("127.0.0.1:5000/demo@sha256:" + "0" * 64, True),
        ("registry.example/a/b:1", True),
    ],
)
def test_a_name_with_a_host_is_a_registrys(reference: str, *, is_registry: bool) -> None:
    assert names_registry(reference) is is_registry


# From a registry into the store


def test_what_is_signed_gets_into_the_store(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    trusted = found(settings, registry)
    obtained = obtain_pulled(settings, trusted, DEFAULT)
    assert obtained.origin == "registry"
    assert verify_artifact(obtained.entry).findings == ()
    assert unsigned_reference(obtained.entry) is None
    # What is there is not pulled again.
    registry.asked.clear()
    assert obtain_pulled(settings, trusted, DEFAULT).origin == "store"
    assert registry.asked == []
    assert obtain_pulled(settings, trusted, DEFAULT, replace=True).origin == "registry"


def test_a_damaged_entry_is_pulled_again(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    trusted = found(settings, registry)
    entry = store_pulled(settings, trusted, DEFAULT).stored.entry
    (entry / f"lib/modules/{KERNEL}/demo.ko").write_bytes(b"broken")
    assert store_pulled(settings, trusted, DEFAULT).stored.added
    assert verify_artifact(entry).findings == ()


def test_an_entry_that_is_collected_at_once_is_no_failure_of_the_pull(
    settings: Settings,
    registry: MemoryRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing says that it is needed until it is linked; who links it looks, and pulls again."""
    have(registry, tmp_path)

    @contextmanager
    def changing_and_collecting(layout: Layout, progress: Progress) -> Iterator[None]:
        with changing(layout, progress):
            yield
        remove(layout, make_pin().short_digest)

    monkeypatch.setattr(pulling, "changing", changing_and_collecting)
    pulled = store_pulled(settings, found(settings, registry), DEFAULT)
    assert (pulled.stored.manifest.pin, pulled.stored.added) == (make_pin(), True)
    assert not pulled.stored.entry.exists()


def test_what_is_unsigned_is_marked_where_it_is_allowed(
    registry: MemoryRegistry, tmp_path: Path, settings: Settings
) -> None:
    have(registry, tmp_path, signed=False)
    with pytest.raises(UntrustedError):
        found(settings, registry)
    open_host = configured(tmp_path, TrustConfig(insecure=True))
    for host, consent in ((open_host, DEFAULT), (settings, Consent(insecure=True))):
        trusted = found(host, registry, consent=consent)
        entry = store_pulled(host, trusted, consent).stored.entry
        assert unsigned_reference(entry) == str(trusted.image.reference)
    # Once it is signed, it is pulled again, and the mark goes.
    have(registry, tmp_path)
    assert store_pulled(settings, found(settings, registry), DEFAULT).stored.added
    assert unsigned_reference(entry) is None


def test_the_hosts_key_signs_nothing_that_is_unsigned(
    registry: MemoryRegistry, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[Path] = []
    monkeypatch.setattr(drafts, "sign_for_host", lambda entry, *_1, **_2: signed.append(entry))
    have(registry, tmp_path, signed=False)
    consent = Consent(insecure=True)
    store_pulled(settings, found(settings, registry, consent=consent), consent)
    assert signed == []
    # Nor is it pulled again for the lack of a signature that it does not get.
    monkeypatch.setattr(pulling, "is_signed_for_host", lambda *_, **_more: False)
    assert not store_pulled(
        settings, found(settings, registry, consent=consent), consent
    ).stored.added
    have(registry, tmp_path)
    store_pulled(settings, found(settings, registry), DEFAULT)
    assert len(signed) == 1


def test_a_damaged_artifact_leaves_nothing(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    content = tmp_path / f"content-{pin.short_digest}"
    make_artifact(content, pin=pin)
    (content / f"lib/modules/{KERNEL}/demo.ko").write_bytes(b"another module")
    have(registry, tmp_path)
    trusted = found(settings, registry)
    with pytest.raises(ProvisionError, match=r"The image 'registry\.example"):
        store_pulled(settings, trusted, DEFAULT)
    layout = Layout(settings.root, "demo")
    assert [path.name for path in layout.folder.iterdir() if path.name != ".lock"] == []
    assert newest_serial(layout, f"debian:12 {KERNEL} x86_64") == 0
    report = verify_pulled(settings, trusted)
    assert report.findings


def test_an_artifact_of_another_pin_than_is_signed_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    """The label that is signed for is one Pin's, and the manifest inside another's."""
    pin = make_pin()
    make_artifact(tmp_path / f"content-{pin.short_digest}", pin=make_pin(version="9"))
    have(registry, tmp_path)
    with pytest.raises(ProvisionError):
        store_pulled(settings, found(settings, registry), DEFAULT)
    assert not Layout(settings.root, "demo").entry(pin.short_digest).exists()


def test_a_signed_image_that_calls_itself_unsigned_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    content = tmp_path / f"content-{pin.short_digest}"
    make_artifact(content, pin=pin)
    (content / "unsigned").write_text("registry.example/drivers/demo:1\n")
    have(registry, tmp_path, pin)
    with pytest.raises(ProvisionError, match="the mark of an unsigned artifact"):
        store_pulled(settings, found(settings, registry), DEFAULT)
    assert not Layout(settings.root, "demo").entry(pin.short_digest).exists()


# Replay


def test_an_older_artifact_is_refused_unless_it_is_allowed(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    old, new = make_pin(version="1.2"), make_pin(version="1.3")
    have(registry, tmp_path, old, serial=SERIAL)
    before = found(settings, registry)
    have(registry, tmp_path, new, serial=SERIAL + 60)
    store_pulled(settings, found(settings, registry), DEFAULT)
    with pytest.raises(DowngradeError, match="was signed before the artifact of demo") as caught:
        store_pulled(settings, before, DEFAULT)
    assert "--allow-downgrade" in (caught.value.resolution or "")
    assert not Layout(settings.root, "demo").entry(old.short_digest).exists()
    store_pulled(settings, before, Consent(allow_downgrade=True))
    # Who went back on purpose may do so again, without being asked.
    store_pulled(settings, before, DEFAULT, must_replace=True)


def test_a_slower_pull_does_not_forget_the_newer_one(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(registry, tmp_path, serial=SERIAL)
    trusted = found(settings, registry)
    store_pulled(settings, trusted, DEFAULT)
    layout, target = Layout(settings.root, "demo"), f"debian:12 {KERNEL} x86_64"

    def meanwhile(*_: object, **__: object) -> bool:
        # While an entry is looked at, another command takes a newer artifact.
        note_serial(layout, target, SERIAL + 60)
        return True

    monkeypatch.setattr(pulling, "is_signed_for_host", meanwhile)
    with pytest.raises(DowngradeError):
        store_pulled(settings, trusted, DEFAULT)
    assert newest_serial(layout, target) == SERIAL + 60


def test_what_is_for_another_kernel_is_no_downgrade(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    other = make_pin(kernel="6.1.0-99-amd64")
    have(registry, tmp_path, serial=SERIAL + 60)
    store_pulled(settings, found(settings, registry), DEFAULT)
    have(registry, tmp_path, other, serial=SERIAL)
    sought = replace(SOUGHT, kernel="6.1.0-99-amd64")
    store_pulled(settings, found(settings, registry, sought), DEFAULT)


def test_serials_outlive_the_entries(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path, serial=SERIAL)
    before = found(settings, registry)
    have(registry, tmp_path, serial=SERIAL + 60)
    shutil.rmtree(store_pulled(settings, found(settings, registry), DEFAULT).stored.entry)
    with pytest.raises(DowngradeError):
        store_pulled(settings, before, DEFAULT)


@pytest.mark.parametrize("text", ["", "[]", '{"x": "1"}', '{"x": true}', "[" * 100_000])
def test_serials_that_can_not_be_read_stop_pulls(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, text: str
) -> None:
    have(registry, tmp_path)
    layout = Layout(settings.root, "demo")
    layout.folder.mkdir(parents=True)
    layout.serials.write_text(text)
    with pytest.raises(ProvisionError, match="can't be read") as caught:
        store_pulled(settings, found(settings, registry), DEFAULT)
    assert "mv " in (caught.value.resolution or "")


def test_a_fresh_host_can_refuse_old_signatures(
    registry: MemoryRegistry, tmp_path: Path, settings: Settings
) -> None:
    have(registry, tmp_path)
    for day, is_good in (("2026-01-01", True), ("2030-01-01", False)):
        text = json.dumps({"keys": "/etc/provision/trust.d", "not_before": day})
        host = configured(tmp_path, TrustConfig.model_validate_json(text))
        if is_good:
            found(host, registry)
            continue
        with pytest.raises(UntrustedError) as caught:
            found(host, registry)
        assert "not_before" in (caught.value.details or "")
    del settings


# Whose signatures count


def test_rules_for_a_registry_or_driver_come_first(tmp_path: Path) -> None:
    trust = TrustConfig(
        keys="/all",
        registries={
            "registry.example": TrustRule(keys="/registry"),
            "registry.example/drivers": TrustRule(keys="/drivers"),
        },
        drivers={"other": TrustRule(insecure=True)},
    )
    del tmp_path
    rules = {
        ("registry.example/drivers/demo", "demo"): "/drivers",
        ("registry.example/driversx/demo", "demo"): "/registry",
        ("registry.example:5000/demo", "demo"): "/all",
        ("registry.example/drivers/other", "other"): None,
    }
    for (repository, driver), keys in rules.items():
        assert trust.rule(repository, driver).keys == keys


@pytest.mark.parametrize("name", ["toy", "demo"])
def test_the_rules_of_another_driver_do_not_count(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, name: str
) -> None:
    """By its repository's name, the image is of a driver that everybody may sign for."""
    have(registry, tmp_path, tag="tested", signed=False)
    (tmp_path / "host/etc/provision/trust.d/demo.pub").write_bytes(public_pem(OTHER))
    trust = TrustConfig(
        keys="/etc/provision/trust.d",
        drivers={"toy": TrustRule(insecure=True), "demo": TrustRule(keys="/etc/demo.pub")},
    )
    host = configured(tmp_path, trust)
    (tmp_path / "host/etc/demo.pub").write_bytes(public_pem(OTHER))

    def alike(asked: Asked) -> Answer | None:
        return registry.answer(replace(asked, url=asked.url.replace("drivers/toy", "drivers/demo")))

    registry.handlers.append(alike)
    client = connected(registry)(host, parse_reference(f"{ADDRESS}/{name}:tested"))
    with pytest.raises(UntrustedError) as caught:
        examine(host, client, {}, DEFAULT)
    assert ("rules of 'demo'" in caught.value.message) == (name == "toy")
    if name == "toy":
        # Who says so himself decides.
        assert examine(host, client, {}, Consent(insecure=True)).verified is None
    del settings


def test_a_registry_without_keys_is_an_error(registry: MemoryRegistry, tmp_path: Path) -> None:
    have(registry, tmp_path)
    host = configured(tmp_path, TrustConfig())
    with pytest.raises(ProvisionError, match="does not say whose signatures count") as caught:
        found(host, registry)
    for way in ("[trust] keys", 'build = "always"', "insecure = true"):
        assert way in (caught.value.resolution or "")
    assert registry.asked == []


def test_keys_that_are_missing_are_an_error(registry: MemoryRegistry, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    with pytest.raises(ConfigError):
        found(configured(tmp_path, TrustConfig(keys="/none")), registry)
    assert registry.asked == []


def test_a_key_can_be_given(registry: MemoryRegistry, tmp_path: Path, settings: Settings) -> None:
    have(registry, tmp_path)
    (tmp_path / "other.pub").write_bytes(public_pem(OTHER))
    (tmp_path / "own.pub").write_bytes(public_pem(KEY))
    host = configured(tmp_path, TrustConfig(insecure=True))
    found(host, registry, consent=Consent(public_key=tmp_path / "own.pub"))
    with pytest.raises(UntrustedError):
        found(host, registry, consent=Consent(public_key=tmp_path / "other.pub"))
    del settings


# Which image


def test_the_newest_version_is_taken_or_one_of_a_branch(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    for version in ("1.9", "1.10", "2.0~rc1"):
        have(registry, tmp_path, make_pin(version=version))
    # Of others, or none at all.
    for tag in ("latest", "9-open-6.1.0-1-amd64.debian12", f"_-open-{KERNEL}.debian12"):
        registry.have_manifest({}, tag)

    def taken(wanted: str | None, prefer: str | None = None) -> str:
        sought = replace(SOUGHT, version=VersionRequest(wanted, prefer=prefer))
        return found(settings, registry, sought).image.pin.driver.version

    assert taken(None) == "2.0~rc1"
    assert taken("1") == "1.10"
    assert taken("1.9") == "1.9"
    assert taken(None, "1.9") == "1.9"
    assert taken("1", "1.8") == "1.10"
    with pytest.raises(AssertionError):
        taken("3")


def test_a_name_that_is_known_needs_no_list(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    registry.asked.clear()
    found(settings, registry, replace(SOUGHT, version=VersionRequest("1.2")))
    assert not any("tags/list" in asked.url for asked in registry.asked)
    # One that finds no catalogue, and those for manifest, signatures, payload and configuration.
    assert len(registry.asked) == 5


@pytest.mark.parametrize(
    "sought",
    [
        replace(SOUGHT, kernel="6.1.0-1-amd64"),
        replace(SOUGHT, flavour="closed"),
        replace(SOUGHT, distro="debian:13"),
        replace(SOUGHT, version=VersionRequest("1.3")),
    ],
)
def test_a_tag_that_leads_to_another_image_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, sought: ArtifactQuery
) -> None:
    """Everything is signed, and only the name lies: who may push can do that."""
    have(registry, tmp_path, tag=sought.tag(sought.version.name or "1.2").text)
    with pytest.raises(UntrustedError):
        found(settings, registry, sought)
    with pytest.raises(UntrustedError):
        found(settings, registry, sought, Consent(insecure=True))
    reference = parse_reference(f"{ADDRESS}/demo:{sought.tag(sought.version.name or '1.2').text}")
    with pytest.raises(UntrustedError):
        examine(settings, connected(registry)(settings, reference), {}, DEFAULT)


def test_a_name_of_ones_own_may_be_any(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path, tag="tested")
    reference = parse_reference(f"{ADDRESS}/demo:tested")
    trusted = examine(settings, connected(registry)(settings, reference), {}, DEFAULT)
    assert trusted.image.pin == make_pin()


def test_an_image_for_another_machine_is_refused(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    pin = make_pin()
    kernel = pin.kernel.model_copy(update={"architecture": "aarch64"})
    have(registry, tmp_path, pin.model_copy(update={"kernel": kernel}), tag="tested")
    reference = parse_reference(f"{ADDRESS}/demo:tested")
    for consent in (DEFAULT, Consent(insecure=True)):
        with pytest.raises(UntrustedError, match=r"refused"):
            examine(settings, connected(registry)(settings, reference), {}, consent)


# Several registries


def test_mirrors_are_asked_first_and_stand_in(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path)
    mirrors = ("mirror.example/drivers", "other.example/drivers")
    host = configured(tmp_path, None, RegistryConfig(address=ADDRESS, mirrors=mirrors))
    notes: list[str] = []
    trusted = seek(
        host,
        SOUGHT,
        Lookup(
            DEFAULT,
            connected=connected(registry),
            progress=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
        ),
    )
    assert trusted is not None
    assert trusted.image.reference.registry == "registry.example"
    assert [note.split(" ", 1)[0] for note in notes] == list(mirrors)
    del settings


@pytest.mark.parametrize("status", [401, 403, 418])
def test_a_mirror_in_trouble_does_not_keep_hosts_from_the_registry(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, status: int
) -> None:
    have(registry, tmp_path)
    host = configured(tmp_path, None, RegistryConfig(address=ADDRESS, mirrors=("m.example/d",)))

    def mirror(asked: Asked) -> Answer | None:
        return Answer(status) if asked.host == "m.example" else None

    registry.handlers.append(mirror)
    assert found(host, registry).image.reference.registry == "registry.example"
    del settings


def test_a_mirror_that_lags_behind_does_not_keep_hosts_from_the_registry(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    have(registry, tmp_path, serial=SERIAL + 60)
    host = configured(tmp_path, None, RegistryConfig(address=ADDRESS, mirrors=("m.example/d",)))
    registries: list[str] = []

    def accept(trusted: Trusted) -> None:
        registries.append(trusted.image.reference.registry)
        if len(registries) == 1:
            raise DowngradeError("older")

    def alike(asked: Asked) -> Answer | None:
        if asked.host != "m.example":
            return None
        path = asked.url.replace("m.example/v2/d/", "registry.example/v2/drivers/")
        return registry.answer(replace(asked, url=path))

    registry.handlers.append(alike)
    trusted = seek(host, SOUGHT, Lookup(DEFAULT, accept=accept, connected=connected(registry)))
    assert trusted is not None
    assert registries == ["m.example", "registry.example"]
    del settings


@pytest.mark.parametrize(
    ("status", "error"), [(401, DeniedError), (403, DeniedError), (503, UnreachableError)]
)
def test_a_registry_that_does_not_answer_is_built_for_or_named(
    settings: Settings, registry: MemoryRegistry, status: int, error: type[ProvisionError]
) -> None:
    """Many registries answer 401 or 403 for what is not there."""
    registry.handlers.append(lambda _: Answer(status))
    wanted = DriverRequest("demo", kernel=KERNEL)
    host = with_recipe(settings, "fallback")
    assert look_for(host, wanted, Lookup(DEFAULT, connected=connected(registry))) is None
    with pytest.raises(error):
        look_for(
            with_recipe(settings, "never"), wanted, Lookup(DEFAULT, connected=connected(registry))
        )


def test_what_no_registry_has_is_none(settings: Settings, registry: MemoryRegistry) -> None:
    assert seek(settings, SOUGHT, Lookup(DEFAULT, connected=connected(registry))) is None


def test_settings_of_a_registry_are_no_other_ones(tmp_path: Path) -> None:
    registry = RegistryConfig(
        address="registry.example/drivers", plain_http=True, token_hosts=("auth.example",)
    )
    host = configured(tmp_path, None, registry)
    own = connect(host, parse_reference("registry.example/other:1")).transport
    assert own.base == "http://registry.example"
    assert own.access.token_hosts == ("auth.example",)
    for name in ("evil.example/demo:1", "registry.example:5000/demo:1"):
        other = connect(host, parse_reference(name)).transport
        assert other.base.startswith("https://")
        assert other.access.token_hosts == ()


def with_recipe(settings: Settings, build: str) -> Settings:
    branches = {"1": BranchFacts(maturity="lts"), "2": BranchFacts(maturity="production")}
    recipe = SimpleNamespace(default_flavour="open", upstream=Upstream(branches=branches))
    catalogue = SimpleNamespace(entry=lambda _name: SimpleNamespace(recipe=recipe))
    policy = settings.config.policy.model_copy(update={"build": build})
    config = settings.config.model_copy(update={"policy": policy, "kernel_distro": "debian:12"})
    return replace(settings, config=config, catalogue=cast("Catalogue", catalogue))


@pytest.mark.parametrize("build", ["never", "fallback", "always"])
def test_the_policy_says_whether_a_host_builds(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path, build: str
) -> None:
    host = with_recipe(settings, build)
    wanted = DriverRequest("demo", kernel=KERNEL)

    def look() -> Trusted | None:
        return look_for(host, wanted, Lookup(DEFAULT, connected=connected(registry)))

    if build == "never":
        with pytest.raises(NotFoundError, match=r'\[policy\] build = "never"'):
            look()
    else:
        assert look() is None
    have(registry, tmp_path)
    trusted = look()
    assert (trusted is None) == (build == "always")
    registry.manifests.pop(signature_tag(digest_of(registry.manifests[tag_of(make_pin()).text])))
    if build == "always":
        assert look() is None
    else:
        # Nothing is built in place of what was put there.
        with pytest.raises(UntrustedError):
            look()


def test_a_kind_of_branch_is_looked_for_by_its_branches(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    for version in ("1.9", "1.10", "2.4", "3.1"):
        have(registry, tmp_path, make_pin(version=version))
    host = with_recipe(settings, "never")
    wishes = {"lts": "1.10", "production": "2.4", "latest": "3.1", "1": "1.10", None: "3.1"}
    for wish, version in wishes.items():
        wanted = DriverRequest("demo", kernel=KERNEL, version=wish)
        trusted = look_for(host, wanted, Lookup(DEFAULT, connected=connected(registry)))
        assert trusted is not None
        assert trusted.image.pin.driver.version == version


def test_an_old_image_is_refused_before_it_is_chosen(
    settings: Settings, registry: MemoryRegistry, tmp_path: Path
) -> None:
    host, wanted = with_recipe(settings, "never"), DriverRequest("demo", kernel=KERNEL)
    layout = Layout(settings.root, "demo")
    layout.folder.mkdir(parents=True)
    note_serial(layout, f"debian:12 {KERNEL} x86_64", SERIAL + 1)
    have(registry, tmp_path)
    with pytest.raises(DowngradeError):
        look_for(host, wanted, Lookup(DEFAULT, connected=connected(registry)))
    allowed = Consent(allow_downgrade=True)
    assert look_for(host, wanted, Lookup(allowed, connected=connected(registry))) is not None


def test_hosts_look_for_what_is_pushed(settings: Settings, tmp_path: Path) -> None:
    pin = make_pin()
    reference = f"{ADDRESS}/demo:1.2-open-{KERNEL}.debian12"
    assert host_reference(settings, pin) == reference
    assert SOUGHT.tag("1.2").text == tag_of(pin).text
    assert {**SOUGHT.facts(), "version": "1.2"}.items() <= asdict(facts_of(pin, 0)).items()
    assert host_reference(configured(tmp_path, None, RegistryConfig()), pin) is None


def test_a_helper_that_is_missing_is_no_missing_image(
    settings: Settings, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be said that no registry has the driver, and the builder would be notified."""

    def refuse(*_given: object) -> None:
        raise NotFoundError("no 'docker-credential-x'", resolution="Install it")

    def connect_to(settings: Settings, reference: Reference) -> Client:
        client = connect(settings, reference)
        client.transport.session = registry.session()
        return client

    monkeypatch.setattr(registries, "find_credentials", refuse)
    registry.handlers.append(
        lambda _asked: Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
    )
    policy = PolicyConfig(build="never")
    host = replace(settings, config=settings.config.model_copy(update={"policy": policy}))
    with pytest.raises(DeniedError, match="docker-credential-x"):
        seek(host, SOUGHT, Lookup(DEFAULT, connected=connect_to))
