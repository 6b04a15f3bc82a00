"""What provision.toml and the host say about the repositories of a distro."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.files import write
from kit.probe import is_root, need
from provision.build.base_image import base_request, ensure_distro_base
from provision.build.request import packaged_distro
from provision.build.workspace import Settings, load_settings
from provision.distros import Repository, find_distro
from provision.distros.repositories import repositories_of
from provision.errors import ConfigError, NotFoundError, ProvisionError, UsageError
from provision.pin import DistroPin
from unit.engine.fake_engine import FakeEngine, using

_REPOSITORY = """
[[distros.{id}.repositories]]
id = "own"
urls = ["https://m.example/os"]
"""
_KEYS = 'keys = ["/etc/pki/own.asc"]\n'


def _host(
    root: Path, text: str = "", *, os_release: str = "ID=debian\nVERSION_ID=12\n"
) -> Settings:
    for name in ("etc/provision", "etc/pki", "etc/yum.repos.d", "etc/zypp/repos.d"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/os-release").write_text(os_release)
    (root / "etc/pki/own.asc").write_bytes(b"KEY")
    (root / "etc/provision/provision.toml").write_text(text)
    return load_settings(root)


def own_repositories(settings: Settings, distro: DistroPin) -> tuple[Repository, ...]:
    return repositories_of(distro, settings.config.distro(distro.id), settings.root)


@pytest.mark.parametrize(
    ("name", "more", "signed"),
    [
        ("rocky:9", "", False),
        ("rocky:9", "signed = true\n", True),
        ("opensuse-leap:15.6", "", True),
        ("sles:15.6", "", True),
        ("opensuse-leap:15.6", "signed = false\n", False),
    ],
)
def test_an_index_has_to_be_signed_as_the_distro_does_it_or_as_is_said(
    tmp_path: Path, name: str, more: str, *, signed: bool
) -> None:
    distro = find_distro(name)
    settings = _host(tmp_path, f"{_REPOSITORY.format(id=distro.id)}{_KEYS}{more}")
    (found,) = own_repositories(settings, distro)
    assert found.is_signed == signed
    assert dict(found.keys) == {"own.asc": b"KEY"}


def test_a_minor_release_is_one_of_its_release(tmp_path: Path) -> None:
    """People write what os-release has."""
    tables = "".join(
        f'{_REPOSITORY.format(id="rocky")}version = "{version}"\n' for version in ("9.4", "8.10")
    )
    images = '[distros.rocky.base_images]\n"9.4" = "mine:9.4"\n"8.10" = "mine:8.10"\n'
    settings = _host(tmp_path, tables + images)
    (found,) = own_repositories(settings, find_distro("rocky:9.4"))
    assert found.id == "own"
    assert base_request(settings, find_distro("rocky:9")).name == "mine:9.4"
    assert base_request(settings, find_distro("rocky:10")).name == "rockylinux/rockylinux:10"
    assert not own_repositories(settings, find_distro("rocky:10"))


def test_two_repositories_of_one_id_are_refused(tmp_path: Path) -> None:
    """The second would take the first one's place, without a word."""
    with pytest.raises(ConfigError) as caught:
        _host(tmp_path, _REPOSITORY.format(id="rocky") * 2)
    assert "distros.rocky" in str(caught.value.details)


def test_keys_of_one_name_are_two_keys(tmp_path: Path) -> None:
    names = ["/etc/pki/own.asc", "/etc/pki/other/own.asc", "/etc/pki/my own.asc"]
    settings = _host(tmp_path, f"{_REPOSITORY.format(id='rocky')}keys = {names}\n")
    (tmp_path / "etc/pki/other").mkdir()
    for name in names[1:]:
        (tmp_path / name.lstrip("/")).write_bytes(name.encode())
    (found,) = own_repositories(settings, find_distro("rocky:9"))
    assert sorted(found.keys.values()) == [
        b"/etc/pki/my own.asc",
        b"/etc/pki/other/own.asc",
        b"KEY",
    ]
    assert {"own.asc", "my_own.asc"} < set(found.keys)
    assert not any(" " in name for name in found.keys)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """How dnf and zypper are called, which fail; engine tests have the real ones."""
    need(is_root(), "root", "a program that makes a base image gets namespaces of its own")
    path = tmp_path / "calls"
    for name in ("dnf", "zypper"):
        program = f'#!/bin/sh\necho "$0 $*" >>"{path}"\nexit 1\n'
        write(tmp_path / "programs" / name, program, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:/usr/bin:/bin")
    return path


def _base(settings: Settings, name: str) -> None:
    ensure_distro_base(using(settings, FakeEngine()), base_request(settings, find_distro(name)))


def test_the_distros_key_has_to_be_named_where_no_image_has_it_yet(tmp_path: Path) -> None:
    settings = _host(tmp_path, _REPOSITORY.format(id="rocky"))
    with pytest.raises(NotFoundError):
        _base(settings, "rocky:9")


@pytest.mark.parametrize(
    ("os_release", "name", "words"),
    [
        (
            "ID=rocky\nVERSION_ID=9.6\n",
            "rocky:9",
            "--releasever=9.6 --setopt=reposdir={}/yum.repos.d",
        ),
        (
            "ID=opensuse-leap\nVERSION_ID=15.6\n",
            "opensuse-leap:15.6",
            "--reposd-dir {}/zypp/repos.d",
        ),
    ],
)
def test_a_host_of_the_distro_takes_its_own_repositories(
    tmp_path: Path, calls: Path, os_release: str, name: str, words: str
) -> None:
    with pytest.raises(ProvisionError):
        _base(_host(tmp_path, os_release=os_release), name)
    assert words.format(tmp_path / "etc") in calls.read_text()
    # It believes the keys that are named, and no other.
    assert "gpg-auto-import" not in calls.read_text()


@pytest.mark.parametrize("name", ["rocky:8", "almalinux:9", "fedora:43"])
def test_another_host_says_what_to_name(tmp_path: Path, name: str) -> None:
    settings = _host(tmp_path, os_release="ID=rocky\nVERSION_ID=9.6\n")
    with pytest.raises(NotFoundError) as caught:
        _base(settings, name)
    assert f"[distros.{name.partition(':')[0]}] repositories" in str(caught.value.resolution)


def test_repositories_of_an_archive_are_refused_with_file_and_key(tmp_path: Path) -> None:
    """They were passed over in silence: packages came from elsewhere than was said."""
    settings = _host(tmp_path, _REPOSITORY.format(id="debian"))
    with pytest.raises(UsageError) as caught:
        own_repositories(settings, find_distro("debian:12"))
    assert '[distros.debian.archive] mirror = "https://m.example/os"' in str(
        caught.value.resolution
    )


@pytest.mark.parametrize(
    ("kernel", "release"),
    [
        ("6.11.4-301.fc41.x86_64", "fedora:41"),
        ("6.17.1-300.fc43.aarch64", "fedora:43"),
        ("6.12.0-65.fc42", "fedora:42"),
        ("5.14.0-427.el9.x86_64", "fedora:40"),
        ("6.6.74-flatcar", "fedora:40"),
        ("6.1.0-fc41custom", "fedora:40"),
    ],
)
def test_the_release_of_fedora_is_that_of_the_kernel(
    tmp_path: Path, kernel: str, release: str
) -> None:
    settings = _host(tmp_path, os_release="ID=fedora\nVERSION_ID=40\n")
    assert packaged_distro(settings, None, kernel) == release
