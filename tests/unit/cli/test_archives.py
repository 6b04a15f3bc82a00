"""Archives of artifact images, through the commands: made, signed, refused, installed."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provision.build.artifact_image import DIGEST_LABEL
from provision.engine.docker_api import Image
from provision.pin import PIN_LABEL
from provision.pipeline.registries import tag_of
from provision.registry.image_layout import REF_NAME
from unit.cli.outcome import Outcome
from unit.engine.fake_engine import FakeEngine
from unit.kmod.artifact import make_artifact, make_pin, write
from unit.registry.media import docker_archive, tar_of
from unit.registry.memory import layer_of

Call = Callable[..., Outcome]
PIN = make_pin()
TRUST = '[trust]\nkeys = "/etc/provision/trust.d"\n'


class SavingEngine(FakeEngine):
    """An engine whose image can be saved."""

    saved = b""

    def save(self, image_id: str) -> Iterator[bytes]:
        self.calls.append(f"save {image_id}")
        yield from (self.saved[at : at + 1000] for at in range(0, len(self.saved), 1000))


@pytest.fixture
def layer(tmp_path: Path) -> bytes:
    make_artifact(tmp_path / "artifact", pin=PIN)
    return layer_of(tmp_path / "artifact")


@pytest.fixture
def engine(layer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SavingEngine:
    engine = SavingEngine()
    engine.saved = tar_of(docker_archive(PIN, layer))
    labels = {DIGEST_LABEL: PIN.digest, PIN_LABEL: PIN.canonical_json()}
    engine.have(Image("sha256:1", (PIN.image,), labels=labels, size=7), tmp_path / "artifact")
    monkeypatch.setattr("provision.cli.job.open_engine", lambda _settings: engine)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return engine


@pytest.fixture
def key(call: Call, host: Path, tmp_path: Path) -> Path:
    """A private key, whose public half counts on the host."""
    made = call("key", "generate", "--output", tmp_path / "fleet", "--no-password", "--json")
    write(host / "etc/provision/trust.d/fleet.pub", Path(made.document["public"]).read_bytes())
    write(host / "etc/provision/provision.toml", TRUST.encode())
    return Path(made.document["private"])


@pytest.fixture
def archive(call: Call, engine: SavingEngine, host: Path, key: Path, tmp_path: Path) -> Path:
    """A signed archive, as 'push --output' writes it."""
    path = tmp_path / "driver.tar"
    words = ("push", PIN.image, "--output", path, "--sign", "--key", key, "--root", host)
    document = call(*words, "--json").document
    assert document["signed"]["facts"]["pin"] == PIN.digest
    assert engine.calls == ["save sha256:1"]
    return path


def test_a_signed_archive_is_installed(call: Call, host: Path, archive: Path) -> None:
    assert call("verify", archive, "--root", host, "--json").document["digest"] == PIN.digest
    words = ("install", archive, "--root", host, "--json")
    planned = call(*words, "--dry-run").document
    assert [change["kind"] for change in planned["changes"]] == ["unpack"]
    assert call(*words).document["changed"] is True
    assert (host / "var/lib/provision/demo/current").is_symlink()
    assert call(*words).document["changed"] is False
    assert not (host / "var/lib/provision/demo" / PIN.short_digest / "unsigned").exists()


def test_an_archive_is_a_layout_that_others_read(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        index = json.load(opened.extractfile("index.json") or io.BytesIO())
        assert opened.extractfile("oci-layout") is not None
    names = {one["annotations"][REF_NAME] for one in index["manifests"]}
    assert tag_of(PIN).text in names
    assert len([name for name in names if name.endswith(".sig")]) == 1


def test_pull_takes_an_archive_too(call: Call, host: Path, archive: Path) -> None:
    document = call("pull", archive, "--root", host, "--json").document
    assert (document["signed_by"], document["changed"]) == ("fleet.pub", True)


@pytest.mark.parametrize("command", ["install", "pull", "verify"])
def test_an_unsigned_archive_needs_leave(
    call: Call, engine: SavingEngine, host: Path, key: Path, tmp_path: Path, command: str
) -> None:
    assert engine
    assert key
    path = tmp_path / "driver.tar"
    assert call("push", PIN.image, "--output", path, "--root", host).code == 0
    words = (command, path, "--root", host, "--json")
    refused = call(*words)
    assert refused.code == 1
    assert "no signature of it counts here" in refused.document["error"]["message"]
    assert not (host / "var/lib/provision/demo" / PIN.short_digest).exists()
    assert call(*words, "--insecure").code == 0


def test_a_key_that_does_not_count_is_refused(
    call: Call, host: Path, archive: Path, tmp_path: Path
) -> None:
    made = call("key", "generate", "--output", tmp_path / "other", "--no-password", "--json")
    other = Path(made.document["public"])
    refused = call("install", archive, "--root", host, "--public-key", other, "--json")
    assert refused.code == 1
    assert "by none of the keys" in refused.document["error"]["details"]


def test_without_a_word_of_trust_no_file_is_taken(call: Call, host: Path, archive: Path) -> None:
    (host / "etc/provision/provision.toml").unlink()
    refused = call("install", archive, "--root", host, "--json")
    assert refused.code == 1
    assert "[trust] keys" in refused.document["error"]["resolution"]


def test_a_file_that_is_no_archive_of_images_is_refused(
    call: Call, host: Path, tmp_path: Path
) -> None:
    assert call("install", tmp_path / "none.tar", "--root", host, "--json").code == 3
    path = tmp_path / "foreign.tar"
    path.write_bytes(tar_of({"notes.txt": b"x"}))
    refused = call("install", path, "--root", host, "--json")
    assert refused.code == 1
    assert "skopeo" in refused.document["error"]["resolution"]


def test_both_targets_of_a_push_are_one_too_many(call: Call, host: Path, tmp_path: Path) -> None:
    words = ("push", PIN.image, "r.example/x:1", "--output", tmp_path / "x.tar", "--root", host)
    assert call(*words, "--json").code == 2
