"""Which entry of the store serves a host that no registry answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.artifact import KERNEL, make_artifact, make_pin
from provision.build.request import DriverRequest, VersionRequest
from provision.build.workspace import Settings
from provision.catalogue import Catalogue
from provision.config import Config, PolicyConfig, RegistryConfig, TrustConfig, TrustRule
from provision.errors import NotFoundError
from provision.registry.find import ArtifactQuery
from provision.registry.skopeo import DeniedError
from provision.store import artifact_lookup
from provision.store.admission import Admission, record_admission
from provision.store.artifact_lookup import may_be_in_store, stored_for

SOUGHT = ArtifactQuery("demo", VersionRequest(), "open", KERNEL, "debian:12", "x86_64")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    registry = RegistryConfig(address="registry.example/drivers")
    config = Config(registry=registry, policy=PolicyConfig(build="never"))
    (tmp_path / "state").mkdir()
    return Settings(tmp_path / "host", config, Catalogue([]), tmp_path / "state")


def test_the_store_serves_where_no_registry_answers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, kernel in (("1.2", KERNEL), ("1.10", KERNEL), ("2.0", "6.6")):
        pin = make_pin(version=version, kernel=kernel)
        entry = settings.root / "var/lib/provision/demo" / pin.short_digest
        make_artifact(entry, pin=pin)
    broken = settings.root / "var/lib/provision/demo" / ("0" * 12)
    (broken / "driver").mkdir(parents=True)
    (broken / "driver/manifest.json").write_text("{")

    def entry_of(version: str | None, prefer: str | None = None, flavour: str = "open") -> str:
        sought = replace(SOUGHT, version=VersionRequest(version, prefer=prefer), flavour=flavour)
        monkeypatch.setattr(artifact_lookup, "artifact_query", lambda *_: sought)
        found = stored_for(settings, DriverRequest("demo"))
        return "" if found is None else found.name

    newest, older = (make_pin(version=v).short_digest for v in ("1.10", "1.2"))
    assert entry_of(None) == entry_of("1") == entry_of("1.10") == newest
    assert entry_of(None, "1.2") == entry_of("1.2") == older
    assert entry_of("2") == entry_of("2.0") == entry_of(None, flavour="closed") == ""


@pytest.mark.parametrize(
    ("trust", "serves"),
    [
        (TrustConfig(insecure=True), True),
        (TrustConfig(keys="/etc/keys"), False),
        (TrustConfig(keys="/etc/keys", drivers={"demo": TrustRule(insecure=True)}), True),
        (TrustConfig(insecure=True, drivers={"demo": TrustRule(keys="/etc/keys")}), False),
    ],
)
@pytest.mark.parametrize(
    "registry",
    [RegistryConfig(address="registry.example/drivers"), RegistryConfig(folders=("/srv/drivers",))],
)
def test_what_came_unsigned_does_not_serve_in_place_of_a_registry(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    registry: RegistryConfig,
    trust: TrustConfig,
    *,
    serves: bool,
) -> None:
    monkeypatch.setattr(artifact_lookup, "artifact_query", lambda *_: SOUGHT)
    entry = settings.root / "var/lib/provision/demo" / make_pin().short_digest
    make_artifact(entry, pin=make_pin())
    record_admission(
        entry, Admission(image="registry.example/try:1", repository="registry.example/try")
    )
    config = settings.config.model_copy(update={"trust": trust, "registry": registry})
    host = replace(settings, config=config)
    assert stored_for(host, DriverRequest("demo")) == (entry if serves else None)


def test_only_who_never_builds_makes_do_with_the_store(settings: Settings) -> None:
    assert may_be_in_store(settings, DeniedError("no"))
    assert not may_be_in_store(settings, NotFoundError("no"))
    fallback = settings.config.model_copy(update={"policy": PolicyConfig()})
    assert not may_be_in_store(replace(settings, config=fallback), DeniedError("no"))
