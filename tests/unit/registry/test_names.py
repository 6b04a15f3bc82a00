"""Names in registries, and the registry of a host: its settings, credentials and keys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from kit.artifact import KERNEL, make_pin
from kit.driver_pod import TAGS
from kit.memory_registry import (
    MemoryRegistry,
    new_key,
    public_pem,
)
from provision.build.workspace import Settings
from provision.config import RegistryConfig, TrustConfig, TrustRule
from provision.engine.docker_api import names_registry
from provision.errors import ConfigError, NotFoundError, ProvisionError, UntrustedError, UsageError
from provision.registry import (
    HostTag,
    Reference,
    operator_tags,
    parse_reference,
    read_tag,
)
from provision.registry.find import (
    TrustOverride,
    examine,
    facts_of,
    host_reference,
    registry_of,
    tag_of,
)
from provision.registry.signatures import generate_key, load_keys, open_private_key
from unit.registry.trusting_host import (
    ADDRESS,
    DEFAULT,
    KEY,
    OTHER,
    SOUGHT,
    configured,
    connected,
    found,
    have,
)
from unit.registry.trusting_host import registry as registry  # noqa: PLC0414 - a fixture
from unit.registry.trusting_host import settings as settings  # noqa: PLC0414 - a fixture

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("r.example/a:1", ("r.example", "a", "1", None)),
        ("r.example:5000/a/b", ("r.example:5000", "a/b", "latest", None)),
        (f"r.example/a@{DIGEST}", ("r.example", "a", None, DIGEST)),
        (f"127.0.0.1:5000/a:1@{DIGEST}", ("127.0.0.1:5000", "a", "1", DIGEST)),
        ("docker.io/nginx:1", ("docker.io", "library/nginx", "1", None)),
        ("[::1]:5000/a:1", ("[::1]:5000", "a", "1", None)),
    ],
)
def test_a_name_has_parts(text: str, parts: tuple[object, ...]) -> None:
    found = parse_reference(text)
    assert (found.registry, found.repository, found.tag, found.digest) == parts
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nginx",
        "provision/demo:1",
        "localhost/demo:1",
        "r.example/",
        "r.example/A:1",
        "r.example/a:",
        "r.example/a:1:2",
        "r.example/a@sha256:0",
        "r.example/a@",
        "r.example/../a:1",
        "r.example/a//b:1",
        "r.example/a:1 ",
        "https://r.example/a:1",
        "r.example:99999999/a",
        "user@r.example/a:1",
        "r.example/a:" + "x" * 129,
        "r.example/" + "a" * 256,
    ],
)
def test_what_is_no_name_of_a_registrys_image(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1:5000", True),
        ("localhost:5000", True),
        ("[::1]", True),
        ("127.0.0.1.example", False),
        ("localhost.example:80", False),
        ("10.0.0.1:5000", False),
    ],
)
def test_which_host_is_this_machine(host: str, *, is_local: bool) -> None:
    assert Reference(host, "drivers/demo").is_loopback is is_local


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        (HostTag("535.261.03", "open", "6.1.0-49-amd64", "debian:12"), None),
        (HostTag("0.12.7", "dkms", "5.14.0-427.el9.x86_64", "rocky:9.4"), None),
        (HostTag("1.2", "open", "5.15.0-100-generic", "ubuntu:22.04"), None),
        (HostTag("1", "open", "6.4.0-1-default", "opensuse-leap:15.6"), None),
        (HostTag("580.95", "open", "6.8.0-1018-nvidia-64k", "ubuntu:24.04"), None),
        (HostTag("1.2+b~1", "open", "6.1", "debian:12"), "1.2_b_1-open-6.1.debian12"),
        (
            HostTag("580.95", "open", "5.14.0-503.el9.aarch64+64k", "rhel:9.5"),
            "580.95-open-5.14.0-503.el9.aarch64_64k.rhel9.5",
        ),
    ],
)
def test_the_tag_that_hosts_look_for_can_be_read(tag: HostTag, text: str | None) -> None:
    whole = f"{tag.version}-{tag.flavour}-{tag.kernel}.{tag.distro.replace(':', '')}"
    assert tag.text == (text or whole)
    found = read_tag(tag.text)
    assert found is not None
    assert (found.flavour, found.kernel) == (tag.flavour, tag.kernel.replace("+", "_"))
    assert found.distro == tag.distro.replace(":", "")
    assert found.suffix == tag.suffix
    assert read_tag(tag.text, [tag.flavour]) == found


def test_a_flavour_with_a_dash_is_read_where_it_is_known() -> None:
    tag = HostTag("1.2-3", "open-source", "6.1.0-49-amd64", "debian:12")
    found = read_tag(tag.text, ["open-source"])
    assert found is not None
    assert (found.version, found.flavour) == ("1.2-3", "open-source")


def test_what_kmm_signs_is_no_image_of_hosts() -> None:
    """It would be one for a distro that is called 'signed'."""
    tag = "535.261.03-open-6.1.0-49-amd64.debian12"
    assert read_tag(tag, ["open"])
    for flavours in (["open"], []):
        assert read_tag(f"{tag}.signed", flavours) is None


@given(
    st.from_regex(r"[0-9A-Za-z][A-Za-z0-9.+~_-]{0,63}", fullmatch=True),
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True),
    st.from_regex(r"[0-9][A-Za-z0-9._+~-]{0,63}", fullmatch=True),
)
def test_every_tag_is_one_that_registries_take(version: str, flavour: str, kernel: str) -> None:
    text = HostTag(version, flavour, kernel, "debian:12").text
    assert parse_reference(f"r.example/a:{text}").tag == text
    read_tag(text)


def test_tags_that_are_too_long_stay_apart() -> None:
    tags = {HostTag("1" * 64, "o" * 30, "6" * 60 + str(n), "debian:12").text for n in range(3)}
    assert len(tags) == 3


# Keys


def test_a_pair_of_keys_is_made_once(tmp_path: Path) -> None:
    private, public = generate_key(tmp_path / "fleet", b"secret")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert b"ENCRYPTED" in private.read_bytes()
    with pytest.raises(ProvisionError):
        generate_key(tmp_path / "fleet", None)
    signature = open_private_key(private, lambda: b"secret")(b"hello")
    (key,) = load_keys(public)
    assert key.has_signed(b"hello", signature)
    assert not key.has_signed(b"hullo", signature)
    with pytest.raises(ProvisionError):
        open_private_key(private, lambda: b"other")


def test_a_key_without_a_password_asks_for_none(tmp_path: Path) -> None:
    private, public = generate_key(tmp_path / "fleet", None)

    def ask() -> bytes:
        raise AssertionError("was asked")

    (key,) = load_keys(tmp_path)
    assert key.name == public.name
    assert key.has_signed(b"x", open_private_key(private, ask)(b"x"))


def test_all_bad_keys_of_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "good.pub").write_bytes(public_pem(new_key()))
    curve = ec.generate_private_key(ec.SECP384R1())
    edwards = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = edwards.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "p384.pub").write_bytes(public_pem(curve))
    (tmp_path / "ed25519.pem").write_bytes(pem)
    (tmp_path / "text.pub").write_text("hello")
    (tmp_path / "large.pub").write_bytes(b"x" * 70_000)
    generate_key(tmp_path / "private", None)[0].rename(tmp_path / "private.pem")
    (tmp_path / "README").write_text("not looked at")
    (tmp_path / "two.pem").write_bytes(public_pem(new_key()) + public_pem(new_key()))
    # Reading it would never end.
    os.mkfifo(tmp_path / "pipe.pub")
    (tmp_path / "folder.pub").mkdir()
    (tmp_path / "gone.pub").symlink_to("nowhere")
    with pytest.raises(ConfigError) as caught:
        load_keys(tmp_path)
    wrong = [mistake.path for mistake in caught.value.mistakes]
    bad = ["ed25519.pem", "large.pub", "p384.pub", "private.pem", "text.pub", "two.pem"]
    assert sorted(wrong) == sorted([*bad, "pipe.pub", "folder.pub", "gone.pub"])


@pytest.mark.parametrize("name", ["none", "empty"])
def test_no_key_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError):
        load_keys(tmp_path / name)


def test_a_private_key_of_another_kind_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cosign.key"
    file.write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n")
    with pytest.raises(ProvisionError):
        open_private_key(file, lambda: b"")
    with pytest.raises(NotFoundError) as caught:
        open_private_key(tmp_path / "none.key", lambda: b"")
    command = f"provision registry key --output {tmp_path / 'none'}"
    assert command in (caught.value.resolution or "")


@pytest.mark.parametrize("name", [".", "..", "/", "../.."])
def test_a_folder_is_no_name_of_a_key(name: str) -> None:
    with pytest.raises(UsageError):
        generate_key(Path(name), None)


@pytest.mark.parametrize(("version", "kernel", "distro", "own", "branch"), TAGS)
def test_an_operator_finds_a_driver_by_its_own_tags(
    version: str, kernel: str, distro: str, own: str, branch: str
) -> None:
    assert operator_tags(version, kernel, distro) == (own, branch)
    # Hosts look for others.
    assert [read_tag(tag, ("open", "proprietary")) for tag in (own, branch)] == [None, None]


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


# The keys that sign


def test_rules_for_a_registry_or_driver_come_first() -> None:
    trust = TrustConfig(
        keys="/all",
        registries={
            "registry.example": TrustRule(keys="/registry"),
            "registry.example/drivers": TrustRule(keys="/drivers"),
        },
        drivers={"other": TrustRule(insecure=True)},
    )
    rules = {
        ("registry.example/drivers/demo", "demo"): "/drivers",
        ("registry.example/driversx/demo", "demo"): "/registry",
        ("registry.example:5000/demo", "demo"): "/all",
        ("registry.example/drivers/other", "other"): None,
    }
    for (repository, driver), keys in rules.items():
        assert trust.rule(repository, driver).keys == keys


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("name", ["toy", "demo"])
def test_the_rules_of_another_driver_do_not_count(
    registry: MemoryRegistry, tmp_path: Path, name: str
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

    client = connected(registry)(host, parse_reference(f"{ADDRESS}/{name}:tested"))
    with pytest.raises(UntrustedError) as caught:
        examine(host, client, {}, DEFAULT)
    assert ("rules of 'demo'" in caught.value.message) == (name == "toy")
    if name == "toy":
        # Who says so himself decides.
        assert examine(host, client, {}, TrustOverride(insecure=True)).verified is None


@pytest.mark.usefixtures("settings")
def test_a_key_can_be_given(registry: MemoryRegistry, tmp_path: Path) -> None:
    have(registry, tmp_path)
    (tmp_path / "other.pub").write_bytes(public_pem(OTHER))
    (tmp_path / "own.pub").write_bytes(public_pem(KEY))
    host = configured(tmp_path, TrustConfig(insecure=True))
    found(host, registry, trust=TrustOverride(public_key=tmp_path / "own.pub"))
    with pytest.raises(UntrustedError):
        found(host, registry, trust=TrustOverride(public_key=tmp_path / "other.pub"))


def test_settings_of_a_registry_are_no_other_ones(tmp_path: Path) -> None:
    registry = RegistryConfig(address="registry.example/drivers", plain_http=True, ca="/etc/ca.pem")
    host = configured(tmp_path, None, registry)
    own = registry_of(host, parse_reference("registry.example/other:1"))
    assert (own.plain_http, own.ca) == (True, tmp_path / "host/etc/ca.pem")
    for name in ("evil.example/demo:1", "registry.example:5000/demo:1"):
        other = registry_of(host, parse_reference(name))
        assert (other.plain_http, other.ca) == (False, None)


def test_hosts_look_for_what_is_pushed(settings: Settings, tmp_path: Path) -> None:
    pin = make_pin()
    reference = f"{ADDRESS}/demo:1.2-open-{KERNEL}.debian12"
    assert host_reference(settings, pin) == reference
    assert SOUGHT.tag("1.2").text == tag_of(pin).text
    assert {**SOUGHT.facts(), "version": "1.2"}.items() <= facts_of(pin, 0)._asdict().items()
    assert host_reference(configured(tmp_path, None, RegistryConfig()), pin) is None
