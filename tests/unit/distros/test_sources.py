"""Which suites at which addresses make up a distro's archive."""

from pathlib import Path

import pytest

from provision.config import ArchiveConfig, DistroConfig
from provision.distros.distro import find_distro
from provision.distros.family import Repository
from provision.distros.repositories import repositories_of
from provision.errors import NotFoundError

KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"
UBUNTU_KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
MIRROR = "http://mirror.example/debian"
SECURITY = "http://security.example/debian-security"
OWN = "http://own.example/d"
BOOKWORM = f"""
deb {MIRROR} bookworm main
deb {MIRROR} bookworm-updates main
deb {SECURITY} bookworm-security main
"""
AT_HOME = [
    f"{MIRROR} bookworm",
    f"{MIRROR} bookworm-updates",
    f"{SECURITY} bookworm-security",
]
BACKPORTS = f"deb {MIRROR} bookworm-backports main\n"
FOREIGN = """
deb http://docker.example/linux/debian bookworm stable
deb http://sdk.example/apt sdk-bookworm main
deb cdrom:[Debian]/ bookworm main
deb file:/srv/debian bookworm main
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / KEYRING).parent.mkdir(parents=True)
    (tmp_path / KEYRING).write_bytes(b"\x99keys")
    (tmp_path / UBUNTU_KEYRING).write_bytes(b"\x99ubuntu")
    for name in ("site", "own"):
        (tmp_path / f"{name}.gpg").write_bytes(f"\x99{name}".encode())
    (tmp_path / "link.gpg").symlink_to(KEYRING)
    (tmp_path / KEYRING).with_suffix(".pgp").symlink_to((tmp_path / KEYRING).name)
    return tmp_path


def suites(root: Path, distro: str, sources: str, config: ArchiveConfig) -> list[Repository]:
    apt = root / "etc/apt/sources.list"
    apt.parent.mkdir(parents=True, exist_ok=True)
    apt.write_text(sources)
    return [*repositories_of(find_distro(distro), DistroConfig(archive=config), root)]


def shown(found: list[Repository]) -> list[str]:
    return [" ".join([*suite.urls, suite.id]) for suite in found]


@pytest.mark.parametrize(
    ("distro", "sources", "config", "places"),
    [
        ("debian:12", BOOKWORM, {}, AT_HOME),
        # A host without security updates gets none.
        ("debian:12", f"deb {MIRROR} bookworm main", {}, AT_HOME[:1]),
        # Another release is looked for at the same addresses, and so is one that moves on.
        ("debian:13", BOOKWORM, {}, [place.replace("bookworm", "trixie") for place in AT_HOME]),
        (
            "debian:12",
            f"deb {MIRROR} stable main\ndeb {SECURITY} stable-security main",
            {},
            AT_HOME,
        ),
        # Other archives are left out, and a suite that is named twice is one place.
        ("debian:12", f"{BOOKWORM}{FOREIGN}", {}, AT_HOME),
        (
            "debian:12",
            f"deb {MIRROR} bookworm main\ndeb {MIRROR}/ bookworm contrib",
            {},
            AT_HOME[:1],
        ),
        # Backports count where apt names them or provision.toml asks, once.
        ("debian:12", BOOKWORM + BACKPORTS, {}, [*AT_HOME, f"{MIRROR} bookworm-backports"]),
        ("debian:12", BOOKWORM, {"backports": True}, [*AT_HOME, f"{MIRROR} bookworm-backports"]),
        (
            "debian:12",
            BOOKWORM + BACKPORTS,
            {"backports": True},
            [*AT_HOME, f"{MIRROR} bookworm-backports"],
        ),
        # provision.toml decides where it names a mirror.
        (
            "debian:13",
            BOOKWORM,
            {"mirror": f"{OWN}/", "security_mirror": "http://own.example/s", "backports": True},
            [
                f"{OWN} trixie",
                f"{OWN} trixie-updates",
                "http://own.example/s trixie-security",
                f"{OWN} trixie-backports",
            ],
        ),
        # A mirror of Ubuntu has the security updates too.
        (
            "ubuntu:22.04",
            "",
            {"mirror": OWN},
            [f"{OWN} jammy", f"{OWN} jammy-updates", f"{OWN} jammy-security"],
        ),
    ],
)
def test_an_archive_is_at_the_addresses_of_apt_or_of_provision_toml(
    root: Path,
    caplog: pytest.LogCaptureFixture,
    distro: str,
    sources: str,
    config: dict[str, object],
    places: list[str],
) -> None:
    found = suites(root, distro, sources, ArchiveConfig.model_validate(config))
    assert shown(found) == places
    assert all((suite.origin, dict(suite.keys)) == (None, {}) for suite in found)
    assert not caplog.messages


def test_a_mirror_without_a_security_mirror_goes_without_updates_and_says_so(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = suites(root, "debian:12", "", ArchiveConfig(mirror=OWN))
    assert shown(found) == [f"{OWN} bookworm", f"{OWN} bookworm-updates"]
    assert "without security updates" in caplog.text


UBUNTU = """
Types: deb
URIs: http://eu.mirror.example/ubuntu/
Suites: noble noble-updates noble-backports
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Types: deb
URIs: http://security.mirror.example/ubuntu/
Suites: noble-security
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Types: deb
URIs: https://esm.example/infra/ubuntu
Suites: noble-infra-security noble-infra-updates
Components: main
Signed-By: /usr/share/keyrings/ubuntu-pro-esm-infra.gpg
"""


def test_ubuntus_sources_are_read_as_its_installer_writes_them(root: Path) -> None:
    folder = root / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    (folder / "ubuntu.sources").write_text(UBUNTU)
    found = suites(root, "ubuntu:24.04", "", ArchiveConfig())
    assert shown(found) == [
        "http://eu.mirror.example/ubuntu noble",
        "http://eu.mirror.example/ubuntu noble-updates",
        "http://eu.mirror.example/ubuntu noble-backports",
        "http://security.mirror.example/ubuntu noble-security",
    ]
    assert all((suite.origin, dict(suite.keys)) == (None, {}) for suite in found)
    assert shown(suites(root, "ubuntu:22.04", "", ArchiveConfig())) == [
        "http://eu.mirror.example/ubuntu jammy",
        "http://eu.mirror.example/ubuntu jammy-updates",
        "http://security.mirror.example/ubuntu jammy-security",
    ]


PROXMOX = {
    "debian-archive-keyring.gpg": b"\x99keys",
    "proxmox-release-bookworm.gpg": b"\x99pve",
}


def test_a_host_of_proxmox_has_an_archive_beside_debians(root: Path) -> None:
    """Which the same suite of Debian has not, and whose key only the host has."""
    key = root / "etc/apt/trusted.gpg.d/proxmox-release-bookworm.gpg"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"\x99pve")
    own = "http://download.proxmox.example/debian/pve"
    found = suites(
        root,
        "proxmox:8",
        f"{BOOKWORM}deb {own} bookworm pve-no-subscription\ndeb {own} bookworm pvetest",
        ArchiveConfig(),
    )
    assert shown(found) == [*AT_HOME, *[f"{own} bookworm"] * 2]
    components = [(), (), (), ("pve-no-subscription",), ("pvetest",)]
    assert [suite.components for suite in found] == components
    assert all((suite.origin, dict(suite.keys)) == (None, PROXMOX) for suite in found)


SITE = {"site.gpg": b"\xc2\x99site"}
DISTROS = {"debian-archive-keyring.gpg": b"\x99keys"}
SIGNED = f"{BOOKWORM}deb [signed-by=/site.gpg] {OWN} bookworm main\n"


@pytest.mark.parametrize(
    ("sources", "config", "keys", "origins"),
    [
        (BOOKWORM, {}, [{}] * 3, [None] * 3),
        # One that is named is read here, wherever it lies: it may be another than the base image's.
        (BOOKWORM, {"keyring": f"/{KEYRING}"}, [DISTROS] * 3, [None] * 3),
        (BOOKWORM, {"keyring": "/site.gpg"}, [SITE] * 3, [None] * 3),
        ("", {"mirror": OWN, "keyring": "/site.gpg"}, [SITE] * 2, [None] * 2),
        # An archive of a foreign key may be another's: it is taken for a trial.
        (SIGNED, {}, [*[{}] * 3, SITE], [*[None] * 3, "Debian"]),
        # One keyring may have two names.
        (f"deb [signed-by=/link.gpg] {MIRROR} bookworm main", {}, [{}], [None]),
        (f"deb [signed-by=/{KEYRING[:-3]}pgp] {MIRROR} bookworm main", {}, [{}], [None]),
    ],
)
def test_keys_that_are_not_the_distros_come_along(
    root: Path,
    sources: str,
    config: dict[str, object],
    keys: list[dict[str, bytes]],
    origins: list[str | None],
) -> None:
    found = suites(root, "debian:12", sources, ArchiveConfig.model_validate(config))
    assert [dict(suite.keys) for suite in found] == keys
    assert [suite.origin for suite in found] == origins


@pytest.mark.parametrize(
    ("distro", "sources", "config", "resolution", "details"),
    [
        (
            "debian:12",
            "",
            {},
            "[distros.debian.archive] mirror",
            "etc/apt/sources.list.d",
        ),
        ("debian:12", BOOKWORM, {"keyring": "/none.gpg"}, "keyring", ""),
    ],
)
def test_without_a_mirror_or_its_keys_it_says_where_to_get_them(
    root: Path,
    distro: str,
    sources: str,
    config: dict[str, object],
    resolution: str,
    details: str,
) -> None:
    with pytest.raises(NotFoundError) as caught:
        suites(root, distro, sources, ArchiveConfig.model_validate(config))
    assert resolution in (caught.value.resolution or "")
    assert details in (caught.value.details or "")
