"""Which suites at which addresses make up a distro's archive."""

from pathlib import Path

import pytest

from provision.config import ArchiveConfig
from provision.distros import find_distro
from provision.distros.debian.suites import SuiteAddress, suite_addresses
from provision.errors import NotFoundError

KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"
UBUNTU_KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
MIRROR = "http://mirror.example/debian"
SECURITY = "http://security.example/debian-security"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / KEYRING).parent.mkdir(parents=True)
    (tmp_path / KEYRING).write_bytes(b"\x99keys")
    (tmp_path / UBUNTU_KEYRING).write_bytes(b"\x99ubuntu")
    return tmp_path


def places(
    root: Path, distro: str = "debian:12", *, sources: str = "", config: ArchiveConfig | None = None
) -> list[SuiteAddress]:
    apt = root / "etc/apt/sources.list"
    apt.parent.mkdir(parents=True, exist_ok=True)
    apt.write_text(sources)
    return suite_addresses(
        find_distro(distro),
        config=config or ArchiveConfig(),
        root=root,
        key_folder=root / "cache/keys",
    )


def shown(found: list[SuiteAddress]) -> list[str]:
    return [str(place) for place in found]


BOOKWORM = f"""
deb {MIRROR} bookworm main
deb {MIRROR} bookworm-updates main
deb {SECURITY} bookworm-security main
"""


def test_the_hosts_own_release_is_taken_as_apt_has_it(root: Path) -> None:
    found = places(root, sources=BOOKWORM)
    assert shown(found) == [
        f"{MIRROR} bookworm",
        f"{MIRROR} bookworm-updates",
        f"{SECURITY} bookworm-security",
    ]
    assert {place.keyrings for place in found} == {(root / KEYRING,)}
    assert {place.origin for place in found} == {None}


@pytest.mark.parametrize(
    ("sources", "keyring", "has_own_keys"),
    [
        (BOOKWORM, None, [False, False, False]),
        (BOOKWORM, f"/{KEYRING}", [False, False, False]),
        (BOOKWORM, "/etc/site.gpg", [True, True, True]),
        ("", "/etc/site.gpg", [True, True, True]),
        (
            BOOKWORM.replace(f"deb {MIRROR}", f"deb [signed-by=/etc/site.gpg] {MIRROR}"),
            None,
            [True, True, False],
        ),
        (f"deb [signed-by=/etc/link.gpg] {MIRROR} bookworm main\n", None, [False]),
    ],
)
def test_own_keys_are_distinguished_from_the_distros(
    root: Path, sources: str, keyring: str | None, has_own_keys: list[bool]
) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/site.gpg").write_bytes(b"\x99site")
    (root / "etc/link.gpg").symlink_to(f"../{KEYRING}")
    config = ArchiveConfig(
        mirror=None if sources else MIRROR,
        security_mirror=None if sources else SECURITY,
        keyring=keyring,
    )
    found = places(root, sources=sources, config=config)
    assert [place.has_own_keys for place in found] == has_own_keys


def test_a_host_without_security_updates_gets_none(root: Path) -> None:
    assert shown(places(root, sources=f"deb {MIRROR} bookworm main")) == [f"{MIRROR} bookworm"]


def test_another_release_is_looked_for_at_the_same_addresses(root: Path) -> None:
    assert shown(places(root, "debian:13", sources=BOOKWORM)) == [
        f"{MIRROR} trixie",
        f"{MIRROR} trixie-updates",
        f"{SECURITY} trixie-security",
    ]


def test_a_suite_that_moves_on_gives_the_addresses(root: Path) -> None:
    sources = f"deb {MIRROR} stable main\ndeb {SECURITY} stable-security main\n"
    assert shown(places(root, sources=sources)) == [
        f"{MIRROR} bookworm",
        f"{MIRROR} bookworm-updates",
        f"{SECURITY} bookworm-security",
    ]


def test_other_archives_are_left_out(root: Path) -> None:
    sources = f"""{BOOKWORM}
deb http://docker.example/linux/debian bookworm stable
deb http://sdk.example/apt sdk-bookworm main
deb cdrom:[Debian]/ bookworm main
deb file:/srv/debian bookworm main
"""
    assert shown(places(root, sources=sources)) == shown(places(root, sources=BOOKWORM))


def test_backports_count_where_apt_names_them_or_provision_toml_asks(root: Path) -> None:
    backports = f"{MIRROR} bookworm-backports"
    own = shown(places(root, sources=f"{BOOKWORM}deb {MIRROR} bookworm-backports main\n"))
    assert own[-1] == backports
    asked = ArchiveConfig(backports=True)
    assert shown(places(root, sources=BOOKWORM, config=asked))[-1] == backports
    mirror = ArchiveConfig(mirror=MIRROR, security_mirror=SECURITY, backports=True)
    assert shown(places(root, config=mirror))[-1] == backports
    both = f"{BOOKWORM}deb {MIRROR} bookworm-backports main\n"
    assert shown(places(root, sources=both, config=asked)).count(backports) == 1


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
"""
ESM = """
Types: deb
URIs: https://esm.example/infra/ubuntu
Suites: noble-infra-security noble-infra-updates
Components: main
Signed-By: /usr/share/keyrings/ubuntu-pro-esm-infra.gpg
"""


def ubuntu(root: Path, *texts: str) -> None:
    folder = root / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.sources").write_text(text)


def test_ubuntus_sources_are_read_as_its_installer_writes_them(root: Path) -> None:
    ubuntu(root, UBUNTU, ESM)
    found = places(root, "ubuntu:24.04")
    assert shown(found) == [
        "http://eu.mirror.example/ubuntu noble",
        "http://eu.mirror.example/ubuntu noble-updates",
        "http://eu.mirror.example/ubuntu noble-backports",
        "http://security.mirror.example/ubuntu noble-security",
    ]
    assert {place.keyrings for place in found} == {(root / UBUNTU_KEYRING,)}
    assert {(p.origin, p.has_own_keys) for p in found} == {(None, False)}


def test_another_release_of_ubuntu_is_looked_for_at_the_same_addresses(root: Path) -> None:
    ubuntu(root, UBUNTU)
    assert shown(places(root, "ubuntu:22.04")) == [
        "http://eu.mirror.example/ubuntu jammy",
        "http://eu.mirror.example/ubuntu jammy-updates",
        "http://security.mirror.example/ubuntu jammy-security",
    ]


def test_a_mirror_of_ubuntu_has_the_security_updates_too(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = "http://mirror.example/ubuntu"
    found = places(root, "ubuntu:22.04", config=ArchiveConfig(mirror=mirror))
    assert shown(found)[-1] == f"{mirror} jammy-security"
    assert not caplog.messages


def test_without_ubuntus_keys_its_package_is_named(root: Path) -> None:
    (root / UBUNTU_KEYRING).unlink()
    with pytest.raises(NotFoundError, match="archive of ubuntu were not found") as caught:
        places(root, "ubuntu:22.04", config=ArchiveConfig(mirror="http://mirror.example/ubuntu"))
    assert "'ubuntu-keyring'" in (caught.value.resolution or "")


def test_an_index_signed_by_a_foreign_key_is_taken_for_a_trial(root: Path) -> None:
    (root / "other.gpg").write_bytes(b"\x99other")
    sources = f"{BOOKWORM}deb [signed-by=/other.gpg] http://other.example bookworm main\n"
    last = places(root, sources=sources)[-1]
    assert last.uri == "http://other.example"
    assert last.keyrings == (root / "other.gpg",)
    assert last.origin == "Debian"


def test_a_second_name_of_the_keyring_is_not_a_foreign_key(root: Path) -> None:
    (root / KEYRING).with_suffix(".pgp").symlink_to((root / KEYRING).name)
    sources = f"deb [signed-by=/{KEYRING.removesuffix('gpg')}pgp] {MIRROR} bookworm main\n"
    (place,) = places(root, sources=sources)
    assert place.origin is None


def test_a_suite_named_twice_is_one_place(root: Path) -> None:
    sources = f"deb {MIRROR} bookworm main\ndeb {MIRROR}/ bookworm contrib\n"
    assert shown(places(root, sources=sources)) == [f"{MIRROR} bookworm"]


def test_the_configuration_decides_where_it_names_a_mirror(root: Path) -> None:
    config = ArchiveConfig(mirror="http://own.example/d/", security_mirror="http://own.example/s")
    found = places(root, "debian:13", sources=BOOKWORM, config=config)
    assert shown(found) == [
        "http://own.example/d trixie",
        "http://own.example/d trixie-updates",
        "http://own.example/s trixie-security",
    ]
    assert {place.origin for place in found} == {None}


def test_a_mirror_without_a_security_mirror_goes_without_updates_and_says_so(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = places(root, config=ArchiveConfig(mirror="http://own.example/d"))
    assert shown(found) == [
        "http://own.example/d bookworm",
        "http://own.example/d bookworm-updates",
    ]
    assert "without security updates" in caplog.text


def test_the_configuration_names_a_keyring(root: Path) -> None:
    (root / "own.gpg").write_bytes(b"\x99own")
    config = ArchiveConfig(mirror="http://own.example/d", keyring="/own.gpg")
    assert places(root, config=config)[0].keyrings == (root / "own.gpg",)


def test_without_any_mirror_it_says_where_to_name_one(root: Path) -> None:
    with pytest.raises(NotFoundError, match=r"No mirror of debian 12 \(bookworm\)") as caught:
        places(root)
    assert "[distros.debian.archive] mirror" in (caught.value.resolution or "")
    assert "etc/apt/sources.list.d" in (caught.value.details or "")


def test_without_keys_it_says_which_package_has_them(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="keys that sign the archive of debian") as caught:
        places(tmp_path, sources=BOOKWORM)
    assert "debian-archive-keyring" in (caught.value.resolution or "")
    assert str(tmp_path / KEYRING) in (caught.value.details or "")


@pytest.mark.parametrize("text", ["debian:12", "debian:bookworm"])
def test_a_distro_has_a_version_and_a_codename(text: str) -> None:
    found = find_distro(text)
    assert (found.id, found.version, found.codename) == ("debian", "12", "bookworm")


@pytest.mark.parametrize("text", ["debian", "debian:", "debain:12", "debian:9", "plan9:4", ""])
def test_an_unknown_distro_is_answered_with_those_there_are(text: str) -> None:
    with pytest.raises(NotFoundError, match=f"'{text}' is not supported") as caught:
        find_distro(text)
    assert "debian:12, debian:13" in (caught.value.resolution or "")


@pytest.mark.parametrize(
    ("text", "codename"),
    [("ubuntu:22.04", "jammy"), ("ubuntu:noble", "noble"), ("ubuntu:26.04", "resolute")],
)
def test_ubuntus_releases_are_known(text: str, codename: str) -> None:
    assert find_distro(text).codename == codename


def test_the_nearest_distro_is_guessed() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_distro("debain:13")
    assert "Did you mean 'debian:13'?" in (caught.value.resolution or "")
    with pytest.raises(NotFoundError) as caught:
        find_distro("debian:21")
    assert "Did you mean" not in (caught.value.resolution or "")
