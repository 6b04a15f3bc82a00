"""Copies and bundles between real registries, by programs of others too; no engine."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from kit.agent_host import AgentHost
from kit.hosts import OLD_KERNEL, SMALL_DRIVER
from kit.probe import need, need_programs
from kit.process import run
from kit.registry import serving_registry
from kit.signed_registry import NO_ENGINE, PIN, TAG, SignedRegistry, signed_registry
from provision.registry.names import operator_tags

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def outer(tmp_path: Path) -> Iterator[SignedRegistry]:
    need_programs("docker-registry", "skopeo")
    with signed_registry(tmp_path) as outer:
        yield outer


def test_skopeo_copies_a_registry_with_its_signatures(
    outer: SignedRegistry, tmp_path: Path
) -> None:
    """As docs/how-to/many-hosts.md has it."""
    (tmp_path / "inner").mkdir()
    with serving_registry(tmp_path / "inner") as registry:
        plain = ("--src-tls-verify=false", "--dest-tls-verify=false", "--all")
        route = ("--src", "docker", "--dest", "docker")
        source = f"{outer.address}/{SMALL_DRIVER}"
        run(["skopeo", "sync", *plain, *route, source, f"{registry}/x/drivers"])
        name = f"{registry}/x/drivers/{SMALL_DRIVER}:{TAG}"
        pulled = NO_ENGINE.json("registry", "pull", name, "--root", outer.root)
        assert pulled["reference"].endswith(outer.digest)
        assert pulled["signed_by"] == "fleet.pub"


def test_a_bundle_is_verified_by_programs_of_every_distro(
    outer: SignedRegistry, tmp_path: Path
) -> None:
    bundle = outer.bundle(tmp_path / "bundle")
    sums = bundle / "SHA256SUMS"
    how = ("-verify", outer.public, "-signature", f"{sums}.sig", sums)
    assert "Verified OK" in run(["openssl", "dgst", "-sha256", *how]).stdout
    run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=bundle)
    shown = NO_ENGINE.json("bundle", "load", bundle, "--dry-run", "--root", outer.root)
    assert [one["kernel"] for one in shown["artifacts"]] == [OLD_KERNEL]


def test_a_bundle_is_made_again_in_place(outer: SignedRegistry, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "demo-1-py3-none-any.whl").write_bytes(b"wheel")
    bundle = outer.bundle(tmp_path / "bundle", "--wheels", wheels)
    assert (bundle / "wheels").is_dir()
    stray = bundle / f"images/{SMALL_DRIVER}/blobs/sha256" / ("0" * 64)
    stray.write_bytes(b"of an image that is no longer wanted")
    # As after an interruption: without the list it is no bundle.
    (bundle / "SHA256SUMS").unlink()
    words = ("bundle", "load", bundle, "--dry-run", "--root", outer.root)
    assert NO_ENGINE(*words, check=False).returncode == 3
    outer.bundle(bundle)
    NO_ENGINE(*words)
    assert not stray.exists()
    assert not list(bundle.glob("wheels/*"))


def test_a_folder_of_others_is_left_alone(outer: SignedRegistry, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "letters.txt").write_bytes(b"x")
    what = ("--from", outer.address, "--driver", SMALL_DRIVER, "--artifacts-only", "--unsigned")
    create = ("bundle", "create", *what, "--root", outer.root, "--output", bundle)
    assert NO_ENGINE(*create, check=False).returncode == 1
    assert [path.name for path in bundle.iterdir()] == ["letters.txt"]


@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
def test_a_registry_in_the_gap_is_filled(outer: SignedRegistry, tmp_path: Path, name: str) -> None:
    bundle = outer.bundle(tmp_path / name)
    (tmp_path / "inner").mkdir()
    with serving_registry(tmp_path / "inner") as registry:
        words = ("bundle", "load", bundle, "--registry", f"{registry}/drivers")
        done = NO_ENGINE.json(*words, "--root", outer.root)
        # As hosts, the Pin and a GPU operator find it.
        distro = f"{PIN.distro.id}:{PIN.distro.version}"
        theirs = operator_tags(PIN.driver.version, OLD_KERNEL, distro)
        repository = f"{registry}/drivers/{SMALL_DRIVER}"
        assert {f"{repository}:{tag}" for tag in (TAG, *theirs)} < set(done["pushed"])
        assert len(done["pushed"]) == 5
        assert NO_ENGINE.json(*words, "--root", outer.root)["changed"] is False
        found = ("registry", "list", SMALL_DRIVER, "--registry", f"{registry}/drivers", "--verify")
        (image,) = NO_ENGINE.json(*found, "--root", outer.root)["images"]
        assert image["signed_by"] == "fleet.pub"


def test_the_agent_needs_no_network(outer: SignedRegistry, tmp_path: Path) -> None:
    """In a network namespace that has not even its loopback interface up."""
    need(os.geteuid() == 0, "root", "a network namespace of its own")
    bundle = outer.bundle(tmp_path / "bundle")
    host = AgentHost.make(tmp_path / "inner", running=OLD_KERNEL)
    bundle.rename(host.root / "bundle")
    host.write("etc/provision/trust.d/fleet.pub", outer.public.read_text())
    host.configure(
        f'[drivers.{SMALL_DRIVER}]\n[registry]\nfolders = ["/bundle"]\n'
        '[trust]\nkeys = "/etc/provision/trust.d"\n[policy]\nbuild = "never"\n'
    )
    isolated = ("unshare", "--net", "sh", "-euc")
    assert run([*isolated, "tail -n +2 /proc/net/route"]).stdout == ""
    words = f"{NO_ENGINE.program} apply --json --root {host.root}"
    done = run([*isolated, f"exec {words}"], env=NO_ENGINE.variables(), check=False)
    assert "(from: registry)" in done.output, done.output
    assert host.current(SMALL_DRIVER) == PIN.short_digest


def test_what_cosign_saves_is_taken(outer: SignedRegistry, cosign: Path, tmp_path: Path) -> None:
    name = f"{outer.address}/{SMALL_DRIVER}@{outer.digest}"
    saved = tmp_path / "saved"
    run([cosign, "save", "--allow-insecure-registry", "--dir", saved, name])
    pulled = NO_ENGINE.json("registry", "pull", saved, "--root", outer.root)
    assert (pulled["signed_by"], pulled["digest"]) == ("fleet.pub", PIN.digest)
    assert re.search(r"/saved/", pulled["reference"])
