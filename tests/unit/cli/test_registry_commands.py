"""The commands about registries, on a registry in memory: what they do, print and refuse."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.cli import job
from provision.cli import registry as commands
from provision.engine.docker_api import Image
from provision.pin import PIN_LABEL
from provision.registry import keys, publish
from provision.registry.artifact_images import facts_of
from provision.registry.keys import load_keys
from provision.registry.names import pin_tag
from provision.registry.registries import tag_of
from provision.run import Completed
from unit.cli.outcome import Outcome
from unit.engine.fake_engine import FakeEngine
from unit.kmod.artifact import make_artifact, make_pin, write
from unit.registry.memory import MemoryRegistry, layer_of, new_key, public_pem
from unit.registry.trusting_host import connected

Call = Callable[..., Outcome]
KEY = new_key()
PIN = make_pin()
ADDRESS = "registry.example/drivers"
NAME = f"{ADDRESS}/demo:{tag_of(PIN).text}"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryRegistry:
    """A registry with one image, which every command talks to."""
    registry = MemoryRegistry()
    make_artifact(tmp_path / "artifact", pin=PIN)
    registry.have_image(PIN, [layer_of(tmp_path / "artifact")], tag_of(PIN).text)
    connect = connected(registry)
    for module in (job, commands):
        monkeypatch.setattr(module, "connect", connect)
    for done in (publish.sign_image, publish.publish):
        monkeypatch.setitem(done.__kwdefaults__ or {}, "connected", connect)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return registry


@pytest.fixture
def signed(registry: MemoryRegistry, host: Path) -> MemoryRegistry:
    """The same, signed, and a host that trusts the key."""
    digest = registry.client(NAME).manifest(tag_of(PIN).text).digest
    registry.sign(digest, facts_of(PIN, 1_790_000_000), KEY)
    write(host / "etc/provision/trust.d/fleet.pub", public_pem(KEY))
    text = f'[registry]\naddress = "{ADDRESS}"\n[trust]\nkeys = "/etc/provision/trust.d"\n'
    write(host / "etc/provision/provision.toml", text.encode())
    return registry


def test_search_lists_what_hosts_look_for(
    call: Call, host: Path, signed: MemoryRegistry, tmp_path: Path
) -> None:
    other = make_pin(version="9.9")
    signed.have_image(other, [layer_of(tmp_path / "artifact")], tag_of(other).text)
    signed.have_manifest({}, "latest")
    words = ("registry", "list", "demo", "--root", host)
    images = call(*words, "--json").document["images"]
    assert [image["version"] for image in images] == ["9.9", "1.2"]
    assert {image["distro"] for image in images} == {"debian12"}
    second, first = call(*words, "--verify", "--json").document["images"]
    assert (first["signed_by"], first["refused"]) == ("fleet.pub", None)
    assert second["refused"] == "it has no signature"
    assert "it has no signature" in call(*words, "--verify").out
    assert call(*words, "--kernel", "6.6", "--json").document["images"] == []
    assert "no image that hosts" in call(*words, "--kernel", "6.6").out


def test_search_has_one_line_for_what_is_refused_twice(
    call: Call, host: Path, signed: MemoryRegistry, tmp_path: Path
) -> None:
    other = make_pin(version="9.9")
    digest = signed.have_image(other, [layer_of(tmp_path / "artifact")], tag_of(other).text)
    facts = facts_of(other, 1_790_000_000)
    signed.sign(digest, facts, new_key())
    signed.sign(digest, replace(facts, architecture="aarch64"), KEY)
    lines = call("registry", "list", "demo", "--root", host, "--verify").out.splitlines()
    (line,) = [line for line in lines if "9.9" in line]
    assert "by none of the keys" in line
    assert "; architecture: x86_64 was asked for" in line


def make_keys(call: Call, tmp_path: Path, *words: object) -> dict[str, Any]:
    (tmp_path / "password").write_text("a password\n")
    given = words or ("--password-file", tmp_path / "password")
    found = call("registry", "key", "--output", tmp_path / "new", *given, "--json")
    assert found.code == 0, found.out
    return found.document


def test_a_key_is_made_once(call: Call, tmp_path: Path) -> None:
    made = make_keys(call, tmp_path)
    assert made["encrypted"] is True
    assert load_keys(Path(made["public"]))
    again = call("registry", "key", "--output", tmp_path / "new", "--no-password", "--json")
    assert again.code == 1
    assert "is there already" in again.document["error"]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "No terminal to ask"),
        (("--no-password", "--password-fd", "9"), "can't be given together"),
        (("--password-fd", "987"), "no password at the descriptor 987"),
    ],
)
def test_a_password_has_to_come_from_somewhere(
    call: Call, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    refused = call("registry", "key", "--output", tmp_path / "new", *words, "--json")
    assert refused.code == 2
    assert said in refused.document["error"]["message"]
    assert list(tmp_path.glob("new*")) == []


def test_a_password_comes_by_a_descriptor(call: Call, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a password\n")
    os.close(writer)
    made = make_keys(call, tmp_path, "--password-fd", reader)
    os.close(reader)
    assert b"ENCRYPTED" in Path(made["private"]).read_bytes()


def test_sign_adds_a_signature(
    call: Call, host: Path, registry: MemoryRegistry, tmp_path: Path
) -> None:
    made = make_keys(call, tmp_path)
    digest = registry.client(NAME).manifest(tag_of(PIN).text).digest
    by_digest = f"{ADDRESS}/demo@{digest}"
    words = ("registry", "sign", by_digest, "--key", made["private"], "--root", host)
    password = ("--password-file", tmp_path / "password")
    document = call(*words, *password, "--json").document
    assert document["reference"] == by_digest
    assert document["facts"]["pin"] == PIN.digest
    assert document["signature"].endswith(".sig")
    assert "serial" in call(*words, *password).out
    (tmp_path / "wrong").write_text("another\n")
    refused = call(*words, "--password-file", tmp_path / "wrong", "--json")
    assert refused.code == 1
    pulled = call(
        "registry", "pull", by_digest, "--root", host, "--public-key", made["public"], "--json"
    ).document
    assert pulled["signed_by"] == "new.pub"


def test_sign_needs_a_key(call: Call, host: Path, registry: MemoryRegistry) -> None:
    refused = call("registry", "sign", NAME, "--root", host, "--json")
    assert refused.code == 1
    assert "sign_key" in refused.document["error"]["resolution"]
    assert registry.asked == []


def test_a_configured_key_takes_the_password_that_is_given(
    call: Call, host: Path, registry: MemoryRegistry, tmp_path: Path
) -> None:
    made = make_keys(call, tmp_path)
    (host / "etc/provision").mkdir(parents=True, exist_ok=True)
    Path(made["private"]).rename(host / "etc/provision/fleet.key")
    toml = '[registry]\nsign_key = "/etc/provision/fleet.key"\n'
    write(host / "etc/provision/provision.toml", toml.encode())
    words = ("registry", "sign", NAME, "--root", host, "--json")
    refused = call(*words)
    assert refused.code == 1
    assert "sign_password_file" in refused.document["error"]["resolution"]
    assert registry.asked == []
    assert call(*words, "--password-file", tmp_path / "password").code == 0
    write(host / "etc/provision/fleet.password", b"a password\n")
    more = toml + 'sign_password_file = "/etc/provision/fleet.password"\n'
    write(host / "etc/provision/provision.toml", more.encode())
    assert call(*words).code == 0


def test_push_signs_what_it_pushed_and_nothing_else(
    call: Call, host: Path, registry: MemoryRegistry, engine: FakeEngine, tmp_path: Path
) -> None:
    made = make_keys(call, tmp_path)
    write(host / "etc/provision/provision.toml", f'[registry]\naddress = "{ADDRESS}"\n'.encode())
    digest = registry.client(NAME).manifest(tag_of(PIN).text).digest
    engine.conversation = [{"aux": {"Digest": digest}}]
    words = (
        "registry",
        "push",
        PIN.image,
        "--root",
        host,
        "--json",
        "--sign",
        "--key",
        made["private"],
    )
    password = ("--password-file", tmp_path / "password")
    document = call(*words, *password).document
    assert (document["reference"], document["digest"]) == (NAME, digest)
    assert document["signed"]["reference"].endswith(f"@{digest}")
    assert document["signed"]["pin_tag"] == pin_tag(PIN.digest)
    search = ("registry", "list", "demo", "--root", host, "--json", "--public-key", made["public"])
    (image,) = call(*search, "--verify").document["images"]
    assert (image["digest"], image["pin"]) == (digest, PIN.digest)
    assert image["serial"] == document["signed"]["facts"]["serial"]
    # Another build of the same Pin is not put in its place.
    refused = call(*words, *password)
    assert refused.code == 1
    assert "is never moved" in refused.document["error"]["message"]
    # The registry shows another image by now.
    del registry.manifests[pin_tag(PIN.digest)]
    other = make_pin(version="6")
    engine.conversation = [
        {"aux": {"Digest": registry.have_image(other, [layer_of(tmp_path / "artifact")])}}
    ]
    refused = call(*words, *password)
    assert refused.code == 1
    assert "it is not the image that was pushed" in refused.document["error"]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("drivers/demo:1",), "no name of an image in a registry"),
        (("demo",), "no name of an image in a registry"),
        (("",), "no name of an image in a registry"),
        ((f"{ADDRESS}/demo:1@sha256:{'0' * 64}",), "has a digest in it"),
        ((NAME, "--key", "/none.key"), "nothing is to be signed"),
    ],
)
def test_nothing_is_pushed_to_an_unintended_place(
    call: Call, host: Path, engine: FakeEngine, words: tuple[str, ...], said: str
) -> None:
    """An engine takes a name without a host for one of a public registry."""
    more = ("--root", host, "--json")
    for command in (("registry", "push", PIN.image, *words), ("build", "demo", "--push", *words)):
        refused = call(*command, *more)
        assert refused.code == 2
        assert said in refused.document["error"]["message"]
    assert engine.calls == []


def test_push_takes_artifact_images_only(call: Call, host: Path, engine: FakeEngine) -> None:
    engine.have(Image("sha256:7", ("busybox:1",), labels={PIN_LABEL: "{}"}))
    refused = call("registry", "push", "busybox:1", "r.example/x:1", "--root", host, "--json")
    assert refused.code == 1
    assert "is not an artifact image" in refused.document["error"]["message"]
    assert engine.calls == []


def test_a_key_in_a_token_signs_by_openssl(
    call: Call,
    host: Path,
    registry: MemoryRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "pin").write_text("1234\n")
    asked: list[tuple[tuple[str, ...], bytes | None]] = []

    def openssl(argv: tuple[str, ...], *, stdin: bytes | None = None, **_: object) -> Completed:
        # It is first asked how it reaches tokens.
        if "-out" in argv:
            asked.append((tuple(argv), stdin))
            Path(argv[argv.index("-out") + 1]).write_bytes(b"signature")
        return Completed(tuple(argv), 0, "", "")

    monkeypatch.setattr(keys, "run", openssl)
    monkeypatch.delenv("KBUILD_SIGN_PIN", raising=False)
    words = ("registry", "sign", NAME, "--root", host, "--key", "pkcs11:token=fleet;object=images")
    found = call(*words, "--password-file", tmp_path / "pin", "--json")
    assert found.code == 0, found.out
    ((argv, stdin),) = asked
    assert stdin == b"1234\n"
    assert "pkcs11:token=fleet;object=images" in argv
    assert not [word for word in argv if "1234" in word]
    tag = found.document["signature"].rsplit(":", 1)[1]
    (layer,) = json.loads(registry.manifests[tag])["layers"]
    (signature,) = layer["annotations"].values()
    assert base64.b64decode(signature) == b"signature"
    with_pin = call(
        "registry", "sign", NAME, "--root", host, "--key", "pkcs11:token=x?pin-value=1", "--json"
    )
    assert with_pin.code == 2
