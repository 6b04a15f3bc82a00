"""The file that a host gets: who may read it, what of it is secret, and what was there before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.managed_files import (
    ManagedFiles,
)
from ansible_collections.oci_decorator.drivers.plugins.module_utils.provision_toml import (
    parsed,
    secrets_in,
)
from ansible_collections.oci_decorator.drivers.plugins.modules.provision_config import planned

from provision.config import Config, RepositoryConfig
from provision.documents import load_toml

_PASSWORD = "s3cr:et"  # noqa: S105 - of no one


def _mirror(address: str) -> dict[str, Any]:
    return {"distros": {"debian": {"archive": {"mirror": address}}}}


@pytest.mark.parametrize(
    ("document", "secrets"),
    [
        (_mirror(f"https://me:{_PASSWORD}@mirror.example/debian"), {_PASSWORD}),
        (_mirror("https://me:a@b@mirror.example/debian"), {"a@b"}),
        # A name without a password may be a token, and counts as one.
        (_mirror("https://T0KEN@mirror.example/debian"), {"T0KEN"}),
        (_mirror("https://mirror.example:8443/debian"), set()),
        ({"signing": {"key": "pkcs11:token=x?pin-value=1234&y=z"}}, {"1234"}),
        ({"signing": {"key": "pkcs11:token=x?pin%2Dvalue=12'34"}}, {"12'34"}),
        ({"catalogue": ["http://:pw@a/b", "plain"]}, {"pw"}),
        ({"url": "https://m.example/a?access_token=t0k&arch=x86_64"}, {"t0k"}),
        ({"url": "https://updates.example/repo?0123456789abcdef0123"}, {"0123456789abcdef0123"}),
        ({"url": "https://m.example/a?release=9&arch=x86_64"}, set()),
        ({"drivers": {"nvidia": {}}, "policy": {"keep": 2, "prebuild": True}}, set()),
        ('mirror = "https://me:pw@a/b"\nother = "http://b:8080/c@d"\n', {"pw"}),
        (None, set()),
    ],
)
def test_secrets_are_found(document: object, secrets: set[str]) -> None:
    assert secrets_in(document) == secrets


def _have(path: Path, config: dict[str, Any] | None) -> bool:
    """Do what the module does; whether it changed anything."""
    managed = ManagedFiles(str(path.parent.parent / "record.json"))
    change, _ = planned(managed, str(path), config)
    if change is not None:
        managed.make([change], os.replace)
    if config is None:
        managed.forget([str(path)], os.replace)
    return change is not None


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "provision/provision.toml"


def test_only_root_may_read_a_password(path: Path) -> None:
    assert _have(path, {"drivers": {}})
    assert _mode(path) == 0o644
    assert _have(path, _mirror("https://me:pw@mirror.example/debian"))
    assert _mode(path) == 0o600
    assert not _have(path, _mirror("https://me:pw@mirror.example/debian"))
    path.chmod(0o644)
    assert _have(path, _mirror("https://me:pw@mirror.example/debian"))
    assert _mode(path) == 0o600


def test_what_was_there_before_comes_back_and_nothing_else_goes(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("# mine\n")
    (path.parent / "mok.key").write_text("key")
    _have(path, {"drivers": {"nvidia": {}}})
    _have(path, {})
    assert _have(path, None)
    assert path.read_text() == "# mine\n"
    assert not _have(path, None)
    assert {file.name for file in path.parent.iterdir()} == {"provision.toml", "mok.key"}


def test_a_file_of_ours_goes(path: Path) -> None:
    _have(path, {"drivers": {"nvidia": {}}})
    assert _have(path, None)
    assert not path.exists()


def test_a_file_that_was_changed_since_stays(path: Path) -> None:
    _have(path, {"drivers": {"nvidia": {}}})
    path.write_text("[drivers.onload]\n")
    assert not _have(path, None)
    assert path.read_text() == "[drivers.onload]\n"


def test_a_mirror_for_distros_of_rpm_arrives_as_provision_reads_it(path: Path) -> None:
    repository = {
        "id": "baseos",
        "urls": ["https://mirror.example/rocky/9/BaseOS/"],
        "keys": ["/etc/pki/mirror.asc"],
        "version": "9",
        "signed": True,
    }
    distros = {
        "rocky": {"repositories": [repository], "base_images": {"9": "mirror.example/rocky:9"}},
        "cos": {"archive": {"mirror": "http://m.example", "sha256": {"1/a.tgz": "0" * 64}}},
    }
    good, mistakes = parsed({"distros": distros})
    assert mistakes == []
    assert _have(path, good)
    config = load_toml(path, Config)
    assert config.distro("rocky").repositories == (
        RepositoryConfig.model_validate_json(json.dumps(repository)),
    )
    assert config.distro("cos").archive.sha256 == {"1/a.tgz": "0" * 64}


def test_mistakes_of_a_repository_are_named(path: Path) -> None:
    wrong = {"rocky": {"repositories": [{"id": "a"}, {"id": "b", "urls": [], "gpg": "x"}]}}
    _good, mistakes = parsed({"distros": wrong})
    text = "\n".join(mistakes)
    assert "config.distros.rocky: " in text
    assert "urls" in text
    assert "gpg" in text
    assert not path.exists()
