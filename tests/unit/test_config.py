"""provision.toml."""

from pathlib import Path

import pytest

from provision.config import PATH, ArchiveConfig, Config, DistroConfig, load
from provision.errors import ConfigError

FULL = """
catalogue = ["/srv/drivers"]

[engine]
host = "unix:///run/other.sock"
network = "host"
jobs = 4

[distros.debian.archive]
mirror = "http://mirror.example/debian"
security_mirror = "http://mirror.example/debian-security"
keyring = "/etc/keys.gpg"

[distros.debian.base_images]
12 = "registry.example/debian:bookworm"
"""


def write(root: Path, text: str) -> None:
    path = root / PATH
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_a_host_without_the_file_has_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config == Config()
    assert config.distro("debian") == DistroConfig()


def test_every_key_can_be_set(tmp_path: Path) -> None:
    write(tmp_path, FULL)
    config = load(tmp_path)
    assert config.catalogue == ("/srv/drivers",)
    assert (config.engine.host, config.engine.network, config.engine.jobs) == (
        "unix:///run/other.sock",
        "host",
        4,
    )
    debian = config.distro("debian")
    assert debian.archive == ArchiveConfig(
        mirror="http://mirror.example/debian",
        security_mirror="http://mirror.example/debian-security",
        keyring="/etc/keys.gpg",
    )
    assert debian.base_images == {"12": "registry.example/debian:bookworm"}
    assert config.distro("ubuntu") == DistroConfig()


def test_all_mistakes_are_named(tmp_path: Path) -> None:
    write(tmp_path, '[engine]\njobs = 0\n[distros.debian.archive]\nmirror = "ftp://x"\nmiror = 1\n')
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert {mistake.path for mistake in caught.value.mistakes} == {
        "engine.jobs",
        "distros.debian.archive.mirror",
        "distros.debian.archive.miror",
    }
