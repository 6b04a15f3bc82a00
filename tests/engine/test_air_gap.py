"""Copies between real registries and folders, by programs of others too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.agent_host import AgentHost
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.probe import need, need_programs
from kit.process import run
from kit.product import Provision
from kit.registry import serving_registry
from kit.signed_registry import NO_ENGINE, PIN, TAG, SignedRegistry, signed_registry
from provision.registry import operator_tags


@pytest.fixture
def outer(tmp_path: Path) -> Iterator[SignedRegistry]:
    need_programs("skopeo")
    with signed_registry(tmp_path) as outer:
        yield outer


def test_skopeo_copies_a_registry_with_its_signatures(
    outer: SignedRegistry, tmp_path: Path
) -> None:
    """As docs/how-to/many-hosts.md has it."""
    with serving_registry(tmp_path / "inner") as registry:
        plain = ("--src-tls-verify=false", "--dest-tls-verify=false", "--all")
        route = ("--src", "docker", "--dest", "docker")
        source = f"{outer.address}/{SMALL_DRIVER}"
        run(["skopeo", "sync", *plain, *route, source, f"{registry}/x/drivers"])
        name = f"{registry}/x/drivers/{SMALL_DRIVER}:{TAG}"
        pulled = NO_ENGINE.json("registry", "pull", name, "--root", outer.root)
        assert pulled["reference"].endswith(outer.digest)
        assert pulled["signed_by"] == "fleet.pub"


def test_a_registry_in_the_gap_is_filled(outer: SignedRegistry, tmp_path: Path) -> None:
    folder = outer.carry(tmp_path / "drivers")
    with serving_registry(tmp_path / "inner") as registry:
        words = (f"oci:{folder}/{SMALL_DRIVER}:{TAG}", f"{registry}/drivers/{SMALL_DRIVER}:{TAG}")
        for _ in range(2):
            done = NO_ENGINE.json("registry", "push", *words, "--root", outer.root)
            assert done["digest"] == outer.digest
        # As hosts, the Pin and a GPU operator find it.
        tags = run(
            ["skopeo", "list-tags", "--tls-verify=false", f"docker://{words[1].rpartition(':')[0]}"]
        ).stdout
        distro = f"{PIN.distro.id}:{PIN.distro.version}"
        for tag in (TAG, *operator_tags(PIN.driver.version, OLD_KERNEL, distro), "pin-"):
            assert f'"{tag}' in tags
        listing = ("registry", "list", SMALL_DRIVER, "--verify", "--root", outer.root)
        for place in (f"{registry}/drivers", f"oci:{folder}"):
            (image,) = NO_ENGINE.json(*listing, "--registry", place)["images"]
            assert image["signed_by"] == "fleet.pub"


def test_what_no_key_has_signed_is_not_copied(outer: SignedRegistry, tmp_path: Path) -> None:
    NO_ENGINE("registry", "key", "--output", tmp_path / "other", "--no-password")
    name = f"{outer.address}/{SMALL_DRIVER}:{TAG}"
    words = ("registry", "push", name, f"oci:{tmp_path}/drivers", "--root", outer.root)
    assert NO_ENGINE(*words, "--public-key", tmp_path / "other.pub", check=False).returncode == 1
    assert not (tmp_path / "drivers").exists()


def test_the_agent_needs_no_network(outer: SignedRegistry, tmp_path: Path) -> None:
    """In a network namespace that has not even its loopback interface up."""
    need(os.geteuid() == 0, "root", "a network namespace of its own")
    host = AgentHost.make(tmp_path / "inner", running=OLD_KERNEL)
    outer.carry(host.root / "srv/drivers")
    host.trust(outer.public)
    host.configure(
        f'[drivers.{SMALL_DRIVER}]\n[registry]\nfolders = ["/srv/drivers"]\n'
        '[trust]\nkeys = "/etc/provision/trust.d"\n[policy]\nbuild = "never"\n'
    )
    isolated = ("unshare", "--net", "sh", "-euc")
    assert run([*isolated, "tail -n +2 /proc/net/route"]).stdout == ""
    words = f"{NO_ENGINE.program} apply --json --root {host.root}"
    done = run([*isolated, f"exec {words}"], env=NO_ENGINE.variables(), check=False)
    assert "(from: registry)" in done.output, done.output
    assert host.current(SMALL_DRIVER) == PIN.short_digest


def test_a_build_goes_to_a_folder(
    provision: Provision, small_build: dict[str, Any], tmp_path: Path
) -> None:
    provision("registry", "key", "--output", tmp_path / "fleet", "--no-password")
    host = AgentHost.make(tmp_path / "host", running=OLD_KERNEL)
    host.trust(tmp_path / "fleet.pub")
    host.configure('[trust]\nkeys = "/etc/provision/trust.d"\n')
    folder = f"oci:{tmp_path}/drivers"
    words = ("registry", "push", small_build["image"], folder, "--sign", "--key")
    signing = (*words, tmp_path / "fleet.key", "--root", host.root)
    pushed = provision.json(*signing)
    # An image of the engine has another digest there, and is found all the same.
    assert provision.json(*signing)["digest"] == pushed["digest"]
    inner = ("registry", "pull", pushed["reference"], "--root", host.root)
    assert NO_ENGINE.json(*inner)["digest"] == small_build["digest"]


def test_what_cosign_saves_is_taken(outer: SignedRegistry, cosign: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    run([cosign, "save", "--allow-insecure-registry", "--dir", saved, outer.name])
    named = f"oci:{saved}@{outer.digest}"
    pulled = NO_ENGINE.json("registry", "pull", named, "--root", outer.root)
    assert (pulled["signed_by"], pulled["digest"]) == ("fleet.pub", PIN.digest)
