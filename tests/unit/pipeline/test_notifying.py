"""Who is notified of a missing artifact: one address, once, and never at the cost of a run."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import requests

from provision.catalogue import Catalogue
from provision.config import Config, PolicyConfig, RegistryConfig, TrustConfig
from provision.documents import load_toml
from provision.errors import ConfigError, NotFoundError
from provision.pipeline import artifact_lookup, notifying
from provision.pipeline.artifact_lookup import MissingArtifactError, may_be_in_store, stored_for
from provision.pipeline.driver_request import DriverRequest
from provision.pipeline.notifying import look_for_or_notify, notify
from provision.pipeline.registries import Consent
from provision.pipeline.registry_search import ArtifactQuery, Lookup
from provision.pipeline.workspace import Settings
from provision.progress import Event, Note
from provision.registry.tokens import DeniedError
from provision.sources.market import VersionRequest
from provision.store.entries import mark_unsigned
from unit.kmod.artifact import KERNEL, make_artifact, make_pin, write
from unit.pipeline.trusting_host import connected
from unit.registry.memory import Answer, MemoryRegistry

URL = "https://builder.example/missing"
SOUGHT = ArtifactQuery("demo", VersionRequest(), "open", KERNEL, "debian:12", "x86_64")
NO_LOOPBACK = "http://127.0.0.1.x.example/"
DAY = 86_400
TOKEN_FILE = "/etc/provision/notify.token"  # noqa: S105 - the name of a file


@dataclass
class Receiver:
    """Stands in for the library's session."""

    status: int = 204
    error: Exception | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    trust_env: bool = True

    def __call__(self) -> requests.Session:
        return cast("requests.Session", self)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def post(self, url: str, **given: object) -> requests.Response:
        self.asked.append({"url": url, "trust_env": self.trust_env, **given})
        if self.error is not None:
            raise self.error
        response = requests.Response()
        response.status_code = self.status
        response.raw = io.BytesIO()
        return response


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    registry = RegistryConfig(address="registry.example/drivers", notify=URL)
    config = Config(registry=registry, policy=PolicyConfig(build="never"))
    (tmp_path / "state").mkdir()
    return Settings(tmp_path / "host", config, Catalogue([]), tmp_path / "state")


def with_registry(settings: Settings, **changes: object) -> Settings:
    registry = settings.config.registry.model_copy(update=changes)
    return replace(settings, config=settings.config.model_copy(update={"registry": registry}))


def test_what_is_missing_is_notified_once_a_day(settings: Settings) -> None:
    receiver, now = Receiver(), [1_790_000_000.0]
    again = {"session": receiver, "now": lambda: now[0]}
    assert notify(settings, SOUGHT, **again)  # type: ignore[arg-type] # by name
    (asked,) = receiver.asked
    assert json.loads(asked["data"]) == {
        "schema": 1,
        "event": "missing",
        "registry": "registry.example/drivers",
        "driver": "demo",
        "version": None,
        "flavour": "open",
        "kernel": KERNEL,
        "distro": "debian:12",
        "architecture": "x86_64",
    }
    assert (asked["url"], asked["allow_redirects"], asked["stream"]) == (URL, False, True)
    assert max(asked["timeout"]) <= 5
    assert "Authorization" not in asked["headers"]
    assert not notify(settings, SOUGHT, **again)  # type: ignore[arg-type] # by name
    assert notify(settings, replace(SOUGHT, kernel="6.6"), **again)  # type: ignore[arg-type] # by name
    now[0] += DAY
    assert notify(settings, SOUGHT, **again)  # type: ignore[arg-type] # by name
    assert len(receiver.asked) == 3


@pytest.mark.parametrize(
    "receiver",
    [
        Receiver(status=500),
        Receiver(status=302),
        Receiver(error=requests.ConnectionError("refused")),
        Receiver(error=OSError("no file of certificates")),
    ],
)
def test_a_failed_notice_is_repeated_once_and_fails_no_run(
    settings: Settings, receiver: Receiver
) -> None:
    notes: list[Event] = []
    for _ in range(4):
        assert not notify(settings, SOUGHT, session=receiver, progress=notes.append)
    assert len(receiver.asked) == 2
    assert any(isinstance(note, Note) and "was not notified" in note.text for note in notes)


def test_without_an_address_nothing_is_asked(settings: Settings) -> None:
    receiver = Receiver()
    assert not notify(with_registry(settings, notify=None), SOUGHT, session=receiver)
    assert receiver.asked == []


def test_a_token_comes_from_a_file(settings: Settings) -> None:
    receiver = Receiver()
    host = with_registry(settings, notify_token_file=TOKEN_FILE)
    assert not notify(host, SOUGHT, session=receiver)
    for bad in (b"", b"a\x00b\n", b"x" * 5000, "né".encode()):
        write(settings.root / "etc/provision/notify.token", bad)
        (settings.state / "notified.json").unlink()
        assert not notify(host, SOUGHT, session=receiver)
    assert receiver.asked == []
    write(settings.root / "etc/provision/notify.token", b"secret\nmore\n")
    (settings.state / "notified.json").unlink()
    assert notify(host, SOUGHT, session=receiver)
    assert receiver.asked[0]["headers"]["Authorization"] == "Bearer secret"
    assert "secret" not in (settings.state / "notified.json").read_text()


def test_loopback_is_asked_without_a_proxy(settings: Settings) -> None:
    receiver = Receiver()
    host = with_registry(settings, notify="http://127.0.0.1:8000/missing")
    assert notify(host, SOUGHT, session=receiver)
    assert receiver.asked[0]["trust_env"] is False


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "[" * 100_000, '{"a": {"since": "x"}}'])
def test_a_damaged_note_is_forgotten(settings: Settings, text: str) -> None:
    (settings.state / "notified.json").write_text(text)
    assert notify(settings, SOUGHT, session=Receiver())


def test_what_is_remembered_is_bounded(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "_MOST_KEYS", 3)
    for number in range(6):
        notify(settings, replace(SOUGHT, kernel=f"6.{number}"), session=Receiver())
    assert len(json.loads((settings.state / "notified.json").read_text())) == 3


def test_a_state_that_can_not_be_written_fails_no_run(settings: Settings) -> None:
    settings.state.rmdir()
    settings.state.write_text("a file")
    receiver = Receiver()
    assert not notify(settings, SOUGHT, session=receiver)
    assert receiver.asked == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('notify = "https://x.example/"', "needs an 'address'"),
        ('address = "r.example"\nnotify = "ftp://x.example/"', "notify"),
        ('address = "r.example"\nnotify = "https://user:word@x.example/"', "notify"),
        ('address = "r.example"\nnotify_token_file = "/t"', "needs a 'notify'"),
        (
            'address = "r.example"\nnotify = "http://x.example/"\nnotify_token_file = "/t"',
            "anyone on the way",
        ),
        (
            f'address = "r.example"\nnotify = "{NO_LOOPBACK}"\nnotify_token_file = "/t"',
            "anyone on the way",
        ),
    ],
)
def test_settings_that_make_no_sense_are_named(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "provision.toml"
    path.write_text(f"[registry]\n{lines}\n")
    with pytest.raises(ConfigError) as caught:
        load_toml(path, Config)
    assert said in f"{caught.value.message} {caught.value.details}"


def test_who_builds_is_notified_and_the_error_stays(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified: list[ArtifactQuery] = []
    monkeypatch.setattr(notifying, "notify", lambda _s, sought, **_: notified.append(sought))
    missing = MissingArtifactError("missing")

    def look_for(*_given: object, **_more: object) -> None:
        raise missing

    monkeypatch.setattr(notifying, "look_for", look_for)
    wanted = DriverRequest("demo", kernel=KERNEL)
    # No registry was asked: none is set.
    with pytest.raises(MissingArtifactError):
        look_for_or_notify(settings, wanted, Lookup(Consent()))
    assert notified == []
    missing.sought = SOUGHT
    with pytest.raises(MissingArtifactError):
        look_for_or_notify(settings, wanted, Lookup(Consent()))
    assert notified == [SOUGHT]
    # What is built here instead is announced as well.
    monkeypatch.setattr(notifying, "look_for", lambda *_given, **_more: None)
    monkeypatch.setattr(notifying, "artifact_query", lambda *_given: SOUGHT)
    assert look_for_or_notify(settings, wanted, Lookup(Consent())) is None
    assert notified == [SOUGHT, SOUGHT]


@pytest.mark.parametrize(("status", "is_notified"), [(404, True), (401, False), (503, False)])
def test_a_registry_that_can_not_be_asked_lacks_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, status: int, *, is_notified: bool
) -> None:
    """Else an hour without it would have each host report what is there."""
    notified: list[ArtifactQuery] = []
    monkeypatch.setattr(notifying, "notify", lambda _s, sought, **_: notified.append(sought))
    for module in (notifying, artifact_lookup):
        monkeypatch.setattr(module, "artifact_query", lambda *_given, **_more: SOUGHT)
    config = settings.config.model_copy(
        update={"policy": PolicyConfig(), "trust": TrustConfig(insecure=True)}
    )
    registry = MemoryRegistry()
    registry.handlers.append(lambda _asked: Answer(status))
    host = replace(settings, config=config)
    wanted = DriverRequest("demo", kernel=KERNEL)
    assert (
        look_for_or_notify(host, wanted, Lookup(Consent(), connected=connected(registry))) is None
    )
    assert notified == ([SOUGHT] if is_notified else [])


# Where no registry answers


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


@pytest.mark.parametrize("insecure", [True, False])
def test_what_came_unsigned_does_not_serve_in_place_of_a_registry(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *, insecure: bool
) -> None:
    monkeypatch.setattr(artifact_lookup, "artifact_query", lambda *_: SOUGHT)
    entry = settings.root / "var/lib/provision/demo" / make_pin().short_digest
    make_artifact(entry, pin=make_pin())
    mark_unsigned(entry, "registry.example/try:1")
    trust = TrustConfig(insecure=True) if insecure else TrustConfig(keys="/etc/keys")
    host = replace(settings, config=settings.config.model_copy(update={"trust": trust}))
    assert stored_for(host, DriverRequest("demo")) == (entry if insecure else None)


def test_only_who_never_builds_makes_do_with_the_store(settings: Settings) -> None:
    assert may_be_in_store(settings, DeniedError("no"))
    assert not may_be_in_store(settings, NotFoundError("no"))
    fallback = settings.config.model_copy(update={"policy": PolicyConfig()})
    assert not may_be_in_store(replace(settings, config=fallback), DeniedError("no"))
