"""Built once, pulled everywhere: a real registry between two hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.agent_host import AgentHost
from kit.files import write
from kit.fileserver import served
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER, Host
from kit.made_up import MADE_UP, made_up_source, write_made_up
from kit.product import Provision
from kit.registry import free_port, serving_registry
from provision.registry.signatures import generate_key


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty registry on the loopback interface."""
    with serving_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


def test_an_artifact_goes_through_a_registry(
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
    status, error = provision.failure("install", by_digest, "--root", host.root)
    assert status == 1
    assert "No trusted key is configured" in error["message"]
    assert not host.store(SMALL_DRIVER).exists()
    provision("install", by_digest, "--insecure", "--root", host.root)
    digest12 = small_build["digest"].removeprefix("sha256:")[:12]
    assert host.entry(SMALL_DRIVER).name == digest12
    provision("verify", host.entry(SMALL_DRIVER))


@pytest.mark.minutes(1)
def test_what_the_agent_builds_is_pushed_and_signed_unless_the_registry_is_down(
    provision: Provision, registry: str, tmp_path: Path
) -> None:
    private, public = generate_key(tmp_path / "fleet", None)

    def host(name: str, address: str) -> AgentHost:
        made = AgentHost.make(tmp_path / name, running=OLD_KERNEL)
        write(made.root / "etc/provision/trust.d/fleet.pub", public.read_bytes())
        write(made.root / "etc/provision/fleet.key", private.read_bytes(), 0o600)
        made.configure(f"[drivers.{MADE_UP}]\n{_PUSHES.format(address=address)}")
        settings = made.root / "etc/provision/provision.toml"
        settings.write_text('catalogue = ["/srv/drivers"]\n' + settings.read_text())
        return made

    sources = {version: made_up_source(tmp_path / "files", version) for version in ("1.2", "1.3")}
    with served(tmp_path / "files") as url:
        for version, address in (("1.2", f"127.0.0.1:{free_port()}"), ("1.3", registry)):
            builder = host(version, address)
            write_made_up(builder.root / "srv/drivers", {version: sources[version]}, url)
            document = provision.json("apply", "--root", builder.root)
            assert document["status"]["state"] == "ready"
            assert "(from: build)" in document["actions"][0]["result"]
    other = host("other", registry)
    shutil.copytree(builder.root / "srv", other.root / "srv")
    document = provision.json("apply", "--root", other.root)
    assert "(from: registry)" in document["actions"][0]["result"]


_PUSHES = """\
[registry]
address = "{address}/made"
push = true
sign_key = "/etc/provision/fleet.key"
[trust]
keys = "/etc/provision/trust.d"
"""
