"""The Ignition configuration of a machine: what it holds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from provision.errors import ConfigError, UsageError
from provision.export.coreos import Options, configuration
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]
_IMAGE = f"registry.example:5000/agent@sha256:{'0' * 64}"
_SIGNING = '[signing]\nkey = "/etc/keys/mok.key"\ncertificate = "/etc/keys/mok.der"\n'
_PKCS11 = '[signing]\nkey = "pkcs11:object=mok"\ncertificate = "/usr/share/mok.der"\n{}'
_FILES = (
    'catalogue = ["/usr/share/more", "/srv/more"]\n'
    '[distros.debian.archive]\nkeyring = "/etc/apt/mine.gpg"\n'
)
_ADDRESS = (
    '[[distros.fedora.repositories]]\nid = "x"\nurls = ["https://m.example/a?token=hunter2"]\n'
)


def _options(folder: Path, text: str = "[drivers.nvidia]\n", **changes: Any) -> Options:  # noqa: ANN401 - fields of several types
    (folder / "provision.toml").write_text(text)
    return Options(
        **{
            "config": folder / "provision.toml",
            "image": _IMAGE,
            "variant": "fcos",
            **changes,
        }
    )


def _files(document: dict[str, Any]) -> dict[str, str]:
    files = document["storage"]["files"]
    return {f["path"]: unquote(f["contents"]["source"].removeprefix("data:,")) for f in files}


def test_a_machine_gets_its_settings_keys_and_the_tree_by_digest(tmp_path: Path) -> None:
    files = _files(configuration(_options(tmp_path, keys={"site.pub": "PEM"})))
    assert files["/etc/provision/provision.toml"] == "[drivers.nvidia]\n"
    assert files["/etc/provision/trust.d/site.pub"] == "PEM"
    assert f"agent-tree.sh '{_IMAGE}'" in files["/opt/provision/first-boot/first-boot.sh"]


@pytest.mark.parametrize(
    ("changes", "engines"),
    [
        ({}, {"docker", "podman"}),
        ({"variant": "flatcar"}, {"docker"}),
    ],
)
def test_engines_are_those_of_the_distro(
    tmp_path: Path, changes: dict[str, Any], engines: set[str]
) -> None:
    files = _files(configuration(_options(tmp_path, **changes)))
    script = files["/opt/provision/first-boot/first-boot.sh"]
    assert {name for name in ("docker", "podman") if f"configure {name}" in script} == engines
    assert any("hooks" in path for path in files) == ("podman" in engines)


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "registry.example/agent:1"},
        {"image": "registry.example/a'b@sha256:" + "0" * 64},
    ],
)
def test_what_no_machine_could_follow_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        configuration(_options(tmp_path, **changes))
    assert caught.value.resolution


@pytest.mark.parametrize(
    ("text", "expected", "wrong"),
    [
        (_SIGNING, (), ["signing.key", "signing.certificate"]),
        (_SIGNING, ("/etc/keys/mok.key",), ["signing.certificate"]),
        (_SIGNING, ("/etc/keys/mok.key", "/etc/keys/mok.der"), []),
        (_PKCS11.format(""), (), []),
        (_PKCS11.format('pin_file = "/etc/pin"\n'), (), ["signing.pin_file"]),
        (_FILES, (), ["distros.debian.archive.keyring", "catalogue.1"]),
        ('[network]\nproxy = "http://me:hunter2@proxy.example:1"\n', (), ["network.proxy"]),
        ('[engine]\nhost = "tcp://me:hunter2@engine.example:1"\n', (), ["engine.host"]),
        (_ADDRESS, (), ["distros.fedora.repositories.0.urls.0"]),
    ],
)
def test_settings_that_need_a_secret_or_a_file_of_elsewhere_are_refused(
    tmp_path: Path, text: str, expected: tuple[str, ...], wrong: list[str]
) -> None:
    options = _options(tmp_path, text, expect=expected)
    if not wrong:
        configuration(options)
        return
    with pytest.raises(ConfigError) as caught:
        configuration(options)
    error = caught.value
    assert [mistake.path for mistake in error.mistakes] == wrong
    assert "hunter2" not in f"{error.message}{error.details}{error.resolution}"


def test_the_command_writes_what_ignition_reads(call: Call, tmp_path: Path) -> None:
    config = _options(tmp_path).config
    words = ("export", "ignition", "--config", config, "--image", _IMAGE)
    printed = json.loads(call(*words).out)
    assert printed["ignition"]["version"] == "3.3.0"
    target = tmp_path / "provision.ign"
    assert call(*words, "--output", target).code == 0
    assert json.loads(target.read_text()) == printed
    assert call(*words, "--json").document["config"] == printed
