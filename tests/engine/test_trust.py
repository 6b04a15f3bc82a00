"""Signed images between a real registry, cosign and hosts: both read what the other one writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from kit.foreign import foreign_program
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.module_key import TOKEN_KEY, fill_token
from kit.probe import need_programs
from kit.process import Completed, run
from kit.signed_registry import NO_ENGINE, PASSWORD, Fleet
from provision.errors import ProvisionError
from provision.registry import OCI_MANIFEST
from provision.registry.signatures import generate_key, load_keys, open_signer

_INSECURE = ("--insecure-ignore-tlog", "--allow-insecure-registry")
_PIN = "4711"


def test_a_host_without_an_engine_pulls_what_is_signed(fleet: Fleet, tmp_path: Path) -> None:
    host = fleet.host(tmp_path / "host", "fleet.pub")
    document = NO_ENGINE.json("apply", "--root", host.root)
    assert "(from: registry)" in document["actions"][0]["result"]
    digest12 = fleet.built["digest"].removeprefix("sha256:")[:12]
    assert host.current(SMALL_DRIVER) == digest12
    status = NO_ENGINE.json("status", "--root", host.root)
    assert host.slot(status, SMALL_DRIVER, OLD_KERNEL)["unsigned"] is None
    assert NO_ENGINE.json("apply", "--root", host.root)["changed"] is False


def test_cosign_reads_ours_and_we_read_cosigns(fleet: Fleet, cosign: Path, tmp_path: Path) -> None:
    public = fleet.folder / "fleet.pub"
    annotation = ("-a", f"driver={SMALL_DRIVER}")
    run([cosign, "verify", "--key", public, *_INSECURE, *annotation, fleet.name])
    environment = {"COSIGNPASSWORD": PASSWORD, "HOME": str(tmp_path)}
    prefix = fleet.folder / "cosign"
    words = ("generate-key-pair", "--output-key-prefix", prefix)
    run([cosign, *words], env=environment)
    facts = {**fleet.built["signed"]["facts"]}
    said = [word for name, value in facts.items() for word in ("-a", f"{name}={value}")]
    how = ("--tlog-upload=false", "--allow-insecure-registry", "-y", *said)
    run([cosign, "sign", "--key", f"{prefix}.key", *how, fleet.name], env=environment)
    host = fleet.host(tmp_path / "host", "cosign.pub")
    pulled = NO_ENGINE.json("registry", "pull", fleet.name, "--root", host.root)
    assert pulled["signed_by"] == "cosign.pub"
    # And ours is still there beside it.
    run([cosign, "verify", "--key", public, *_INSECURE, *annotation, fleet.name])


def test_a_key_in_a_token_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = generate_key(tmp_path / "images", None)
    fill_token(tmp_path, private, _PIN, monkeypatch)
    (key,) = load_keys(public)
    assert key.has_signed(b"hello", open_signer(TOKEN_KEY, _PIN.encode)(b"hello"))
    with pytest.raises(ProvisionError, match="could not sign") as caught:
        open_signer(TOKEN_KEY, lambda: b"0000")(b"hello")
    assert _PIN not in f"{caught.value.message} {caught.value.details}"


# What other programs make of our signatures, and we of their images


@dataclass(frozen=True, slots=True)
class Skopeo:
    """The program skopeo of Debian 13; Debian 12's can't verify."""

    # Starts it.
    program: Path

    def __call__(self, *words: str | Path, home: Path, check: bool = True) -> Completed:
        """Run it, with nothing that this machine's own configuration says."""
        env = {"HOME": str(home), "TMPDIR": str(home)}
        return run([self.program, *words], env=env, check=check)

    def copy(self, *words: str | Path, policy: dict[str, Any], home: Path) -> Completed:
        """`skopeo copy` under a policy of containers-policy.json(5)."""
        home.mkdir(exist_ok=True)
        (home / "policy.json").write_text(json.dumps(policy))
        (home / "registries.d").mkdir(exist_ok=True)
        # As containers-registries.d(5) has it.
        attached = "default-docker:\n  use-sigstore-attachments: true\n"
        (home / "registries.d/default.yaml").write_text(attached)
        settings = ("--policy", home / "policy.json", "--registries.d", home / "registries.d")
        return self(*settings, "copy", *words, home=home, check=False)


_ANYTHING = {"default": [{"type": "insecureAcceptAnything"}]}


@pytest.fixture(scope="module")
def skopeo(tmp_path_factory: pytest.TempPathFactory) -> Skopeo:
    return Skopeo(foreign_program("skopeo", tmp_path_factory.mktemp("skopeo")))


def _copied(skopeo: Skopeo, name: str, key: Path, folder: Path) -> Completed:
    """Copy an image to a folder, if a key has signed it."""
    # The payload names the repository and no tag of it, as cosign's does.
    asked = {
        "type": "sigstoreSigned",
        "keyPath": str(key),
        "signedIdentity": {"type": "matchRepository"},
    }
    policy = {"default": [{"type": "reject"}], "transports": {"docker": {"": [asked]}}}
    words = ("--src-tls-verify=false", f"docker://{name}", f"dir:{folder}")
    return skopeo.copy(*words, policy=policy, home=folder.with_name("home"))


def test_skopeos_policy_takes_what_we_signed(fleet: Fleet, skopeo: Skopeo, tmp_path: Path) -> None:
    key = fleet.folder / "fleet.pub"
    names = (fleet.name, str(fleet.built["pushed"]["reference"]))
    for number, name in enumerate(names):
        copied = _copied(skopeo, name, key, tmp_path / str(number))
        assert copied.returncode == 0, copied.output
        assert (tmp_path / str(number) / "manifest.json").exists()
    foreign = _copied(skopeo, fleet.name, fleet.folder / "other.pub", tmp_path / "foreign")
    assert foreign.returncode != 0
    assert "Source image rejected" in foreign.output


def test_layers_that_skopeo_compressed_with_zstd_are_pulled(
    fleet: Fleet, skopeo: Skopeo, tmp_path: Path
) -> None:
    need_programs("zstd")
    name = f"{fleet.address}/zstd/{SMALL_DRIVER}:1"
    source, plain = f"docker://{fleet.name}", f"dir:{tmp_path}/plain"
    packed = f"oci:{tmp_path}/packed:1"
    # Step by step: skopeo would take layers of gzip that it knows the registry to have.
    for words in (
        ("--src-tls-verify=false", "--remove-signatures", "--dest-decompress", source, plain),
        ("--dest-compress-format", "zstd", plain, packed),
        ("--dest-tls-verify=false", "--preserve-digests", packed, f"docker://{name}"),
    ):
        done = skopeo.copy(*words, policy=_ANYTHING, home=tmp_path / "home")
        assert done.returncode == 0, done.output
    registry, _, prefix = name.removesuffix(":1").partition("/")
    url = f"http://{registry}/v2/{prefix}/manifests/1"
    manifest = requests.get(url, headers={"Accept": OCI_MANIFEST}, timeout=10).json()
    assert all(layer["mediaType"].endswith("zstd") for layer in manifest["layers"])
    password = ("--password-file", fleet.folder / "password")
    NO_ENGINE("registry", "sign", name, "--key", fleet.folder / "fleet.key", *password)
    host = fleet.host(tmp_path / "host", "fleet.pub")
    pulled = NO_ENGINE.json("registry", "pull", name, "--root", host.root)
    assert pulled["changed"] is True
    NO_ENGINE("verify", pulled["entry"])
