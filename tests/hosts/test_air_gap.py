"""Over an air gap, from end to end: the commands of docs/how-to/air-gap.md, in its order."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hosts.machines import DEBIAN_12, KERNEL, Machine
from kit.cache import REPOSITORY
from kit.hosts import DISTRO, SMALL_DRIVER
from kit.playbooks import SITE, Ansible
from kit.probe import need_programs
from kit.process import run
from kit.product import DECORATOR, Provision
from kit.registry import serving_registry

if TYPE_CHECKING:
    from kit.engine import Engine

_TARGET = (SMALL_DRIVER, "--kernel", KERNEL, "--distro", DISTRO)
_PROVISION = "/opt/provision/bin/provision"
_MEDIUM = "/media/bundle"


@dataclass(frozen=True, slots=True)
class Medium:
    """What is carried over the gap.

    Attributes:
        bundle: The folder on the medium.
        archive: The same as one file.
        public: The public key, which hosts have from elsewhere.
        created: What 'bundle create' printed.
        built: What 'build' printed.
    """

    bundle: Path
    archive: Path
    public: Path
    created: dict[str, Any]
    built: dict[str, Any]


@pytest.fixture(scope="module")
def medium(
    engine: Engine,
    small_build: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Medium:
    """The outer side of the gap: a build, a registry, a key, a bundle. Then all of it is gone."""
    assert small_build["image"]
    need_programs("docker-registry")
    folder = tmp_path_factory.mktemp("outer")
    provision = Provision(engine.host)
    provision("key", "generate", "--output", folder / "fleet", "--no-password")
    key, public = folder / "fleet.key", folder / "fleet.pub"
    wheels = folder / "wheels"
    pinned = ("--require-hashes", "--no-deps", "-r", REPOSITORY / "constraints.txt")
    run([sys.executable, "-m", "pip", "download", "--quiet", *pinned, "--dest", wheels])
    data = folder / "registry"
    data.mkdir()
    with serving_registry(data) as registry, serving_registry(_made(folder / "copy")) as copy:
        address = f"{registry}/drivers"
        pin = provision.json("resolve", *_TARGET)
        driver = pin["driver"]
        tag = f"{driver['version']}-{driver['flavour']}-{KERNEL}.debian12"
        name = f"{address}/{SMALL_DRIVER}:{tag}"
        built = provision.build(*_TARGET, "--push", name, "--sign", "--key", key)
        trusting = ("--public-key", public)
        _mirrored(provision, address, f"{copy}/inner", trusting)
        what = ("--driver", SMALL_DRIVER, "--kernel", KERNEL, "--distro", DISTRO)
        brought = ("--wheels", wheels, "--program", DECORATOR)
        words = ("bundle", "create", "--from", address, *what, *brought, "--key", key, *trusting)
        planned = provision.json(*words, "--output", folder / "bundle", "--dry-run")
        assert planned["size"] > 0
        created = provision.json(*words, "--output", folder / "bundle")
        archive = folder / "bundle.tar"
        provision(*words, "--artifacts-only", "--output", archive)
    return Medium(folder / "bundle", archive, public, created, built)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _mirrored(provision: Provision, old: str, new: str, trusting: tuple[str | Path, ...]) -> None:
    """From one real registry to another, twice."""
    words = ("mirror", old, new, "--driver", SMALL_DRIVER, *trusting)
    first = provision.json(*words)
    assert first["blobs"] > 0
    again = provision.json(*words)
    assert (again["blobs"], again["sent"]) == (0, 0)
    found = provision.json("search", SMALL_DRIVER, "--registry", new)
    assert [image["kernel"] for image in found["images"]] == [KERNEL]


def test_the_medium_is_verified_with_programs_of_every_distro(medium: Medium) -> None:
    sums = medium.bundle / "SHA256SUMS"
    signature = f"{sums}.sig"
    how = ("openssl", "dgst", "-sha256", "-verify", medium.public, "-signature", signature)
    assert "Verified OK" in run([*how, sums]).stdout
    run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=medium.bundle)
    places = {path.name for path in medium.bundle.iterdir() if not path.name.startswith(".")}
    assert {"images", "pins", "packages", "bases", "wheels", "bin"} <= places
    assert medium.created["keys"][0]["name"] == "fleet.pub"


def test_a_host_without_a_network_gets_all_from_the_bundle(
    medium: Medium, settings: dict[str, Any], tmp_path: Path
) -> None:
    with Machine(DEBIAN_12, binds={medium.bundle: _MEDIUM}, alone=True) as machine:
        # It has an interface of its own, which is not the way to anywhere.
        assert machine.sh("tail -n +2 /proc/net/route") == ""
        assert machine.sh("ls /sys/class/net").split() == ["lo"]
        machine.write("/etc/provision/trust.d/fleet.pub", medium.public.read_text())
        variables = {
            "provision_host_engine": "none",
            "provision_driver_source": settings["provision_driver_source"],
            "provision_driver_cache": str(tmp_path / "bundles"),
            "provision_driver_bundle": str(medium.bundle),
            "provision_driver_config": {
                "drivers": {SMALL_DRIVER: {}},
                "trust": {"keys": "/etc/provision/trust.d"},
                "policy": {"build": "never"},
            },
            "provision_driver_require": "prepared",
            "provision_hook_program": str(medium.bundle / "bin/oci-decorator"),
        }
        ansible = Ansible(tmp_path, [machine], variables)
        played = ansible.play(SITE, "-v")
        assert "(from: registry)" in played.output
        assert _digest(machine) == _short(medium.built)
        assert ansible.play(SITE).changed_tasks() == []
        _loaded_by_hand(machine)
        _refused(machine)


def _loaded_by_hand(machine: Machine) -> None:
    """What a person does on one host."""
    shown = json.loads(machine(_PROVISION, "bundle", "show", _MEDIUM, "--check", "--json").stdout)
    assert shown["signed_by"] == "fleet.pub"
    words = (_PROVISION, "bundle", "load", _MEDIUM, "--store", "--json")
    done = json.loads(machine(*words).stdout)
    # The artifact is there by now; what builds need is not.
    assert len(done["entries"]) == 1
    assert done["packages"] > 0
    assert json.loads(machine(*words).stdout)["changed"] is False


def _refused(machine: Machine) -> None:
    """A host that has another key than the medium's takes nothing of it."""
    machine.sh(
        "cd /etc/provision/trust.d; rm fleet.pub;"
        f" {_PROVISION} key generate --no-password --output other; rm other.key"
    )
    done = machine(_PROVISION, "bundle", "load", _MEDIUM, "--store", "--json", check=False)
    assert done.returncode == 1
    assert "none of the keys that count here" in json.loads(done.stdout)["error"]["message"]


def test_a_registry_in_the_gap_is_filled_from_one_file(medium: Medium, tmp_path: Path) -> None:
    inner = Provision("unix:///nonexistent/docker.sock")
    root = tmp_path / "host"
    keys = root / "etc/provision/trust.d"
    keys.mkdir(parents=True)
    (keys / "fleet.pub").write_bytes(medium.public.read_bytes())
    with serving_registry(_made(tmp_path / "registry")) as registry:
        trust = '[trust]\nkeys = "/etc/provision/trust.d"\n'
        toml = f'[registry]\naddress = "{registry}/drivers"\n{trust}'
        (root / "etc/provision/provision.toml").write_text(toml)
        words = ("bundle", "load", medium.archive, "--registry", f"{registry}/drivers")
        done = inner.json(*words, "--root", root)
        assert len(done["pushed"]) == 1
        assert inner.json(*words, "--root", root)["sent"] == 0
        found = inner.json("search", SMALL_DRIVER, "--verify", "--root", root)
        assert [image["signed_by"] for image in found["images"]] == ["fleet.pub"]


def _digest(machine: Machine) -> str:
    """The artifact that a host has for its kernel, by its short digest."""
    status = json.loads(machine(_PROVISION, "status", "--json").stdout)
    ((slot,),) = (driver["kernels"] for driver in status["drivers"])
    return str(slot["digest"])


def _short(build: dict[str, Any]) -> str:
    return str(build["digest"]).removeprefix("sha256:")[:12]
