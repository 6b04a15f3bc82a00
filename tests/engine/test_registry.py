"""Built once, pulled everywhere: a real registry between two hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.agent_host import AgentHost
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.probe import need_programs
from kit.registry import free_port, serving_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine
    from kit.hosts import Host
    from kit.product import Provision


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty registry on the loopback interface."""
    need_programs("docker-registry")
    with serving_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


def test_an_artifact_goes_through_a_registry(
    engine: Engine,
    provision: Provision,
    small_build: dict[str, Any],
    registry: str,
    host: Host,
) -> None:
    reference = f"{registry}/provision/{SMALL_DRIVER}:pushed"
    target = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
    pushed = provision.build(*target, "--push", reference)
    assert pushed["built"] is False
    assert pushed["pushed"]["reference"] == reference

    by_digest = f"{reference.rsplit(':', 1)[0]}@{pushed['pushed']['digest']}"
    engine.docker("image", "rm", reference)
    status, error = provision.failure("install", by_digest, "--root", host.root)
    assert status == 1
    assert "No trusted key is configured" in error["message"]
    assert not host.store(SMALL_DRIVER).exists()
    provision("install", by_digest, "--insecure", "--root", host.root)
    digest12 = small_build["digest"].removeprefix("sha256:")[:12]
    assert host.entry(SMALL_DRIVER).name == digest12
    provision("verify", host.entry(SMALL_DRIVER))


def test_a_local_name_is_not_looked_for_at_a_public_hub(provision: Provision, host: Host) -> None:
    status, error = provision.failure("install", "provision/nvidia:none", "--root", host.root)
    assert status == 3
    assert "has no image 'provision/nvidia:none'" in error["message"]
    assert "details" not in error or error["details"] is None, "no engine was asked to pull"


def test_the_agent_pulls_what_another_host_built(
    provision: Provision,
    small_build: dict[str, Any],
    registry: str,
    tmp_path: Path,
) -> None:
    builder = AgentHost.make(tmp_path / "builder", running=OLD_KERNEL)
    builder.configure(f'[registry]\naddress = "{registry}/drivers"\n')
    pushed = provision.json("registry", "push", small_build["image"], "--root", builder.root)
    assert pushed["reference"].endswith(f"-{OLD_KERNEL}.debian12")
    host = AgentHost.make(tmp_path / "host", running=OLD_KERNEL)
    host.configure(
        f'[drivers.{SMALL_DRIVER}]\n[registry]\naddress = "{registry}/drivers"\n'
        "[trust]\ninsecure = true\n"
    )
    document = provision.json("apply", "--root", host.root)
    assert "(from: registry)" in document["actions"][0]["result"]
    assert host.current(SMALL_DRIVER) == small_build["digest"].removeprefix("sha256:")[:12]
    status = provision.json("status", "--root", host.root)
    slot = host.slot(status, SMALL_DRIVER, OLD_KERNEL)
    assert slot["unsigned"] == f"{pushed['reference']}@{pushed['digest']}"
    assert "is unsigned; it came from" in provision("status", "--root", host.root).stdout


def test_a_registry_that_does_not_answer_is_named(
    provision: Provision, small_build: dict[str, Any]
) -> None:
    reference = f"127.0.0.1:{free_port()}/provision/{SMALL_DRIVER}:pushed"
    target = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
    status, error = provision.failure("build", *target, "--network", "host", "--push", reference)
    assert status == 1
    assert reference in error["message"]
    assert "connection refused" in error["details"]
    assert provision("verify", small_build["image"]).returncode == 0
