"""A request to the solver: addresses, certificates, the name of a closure, headers from koji."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.fileserver import Mirror
from provision.build.package_store import Closure, PackageStore
from provision.build.solve import solve
from provision.build.trees import Toolchain
from provision.distros import Repository
from provision.errors import NotFoundError, ProvisionError, UnreachableError
from provision.pin import BasePin
from unit.build.solving_engine import (
    BOTH,
    GOOD,
    KERNEL,
    FakeContainer,
    SolvingEngine,
    request,
    touch_files,
)


def test_only_addresses_that_can_be_downloaded_from_are_kept(tmp_path: Path) -> None:
    """Base images name folders and discs too."""
    more = "url\tfile:///srv/gcc.rpm\nurl\thttps://one.example/$releasever/make.rpm"
    more += "\nurl\thttps://one.example/make.rpm"
    engine = SolvingEngine(FakeContainer([GOOD[0], (0, "", f"{BOTH}\n{more}")]))
    found = solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert list(found.urls.values()) == [("https://one.example/make.rpm",)]


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "5.14.0-428.el9.x86_64"},
        {"tools": ("make",)},
        {"base": BasePin(image="rocky:9", digest=f"sha256:{'c' * 64}")},
        {"repositories": (Repository("own", ("http://m",)),)},
        {"toolchain": Toolchain("gcc (GCC) 11.4.1", ())},
        {"toolchain": Toolchain(None, ())},
        {"repositories": (Repository("own", ("http://m",), {"k": b"K"}),)},
    ],
)
def test_every_input_counts(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert request(tmp_path, "rocky:9", **changes).key != request(tmp_path).key


def test_an_https_mirror_is_read_in_an_image_that_knows_no_authorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's and Ubuntu's own images have no certificates."""
    kernel, bundle = "6.1.0-47-amd64", tmp_path / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(b"those that count")

    def given(distro: str, url: str, **more: object) -> dict[str, bytes]:
        container = FakeContainer([(43, "no package holds a configuration", "")])
        repositories = (Repository("bookworm", (url,)),)
        wish = request(tmp_path, distro, repositories=repositories, **more)
        with pytest.raises(ProvisionError):
            solve(lambda: SolvingEngine(container), wish, PackageStore(tmp_path))
        return container.files_given

    files = given("debian:12", "https://m.example/debian", kernel=kernel)
    assert files["authorities.crt"] == b"those that count"
    assert b"Acquire::https::CaInfo=/provision/solve/authorities.crt" in files["script.sh"]
    assert "authorities.crt" not in given("debian:12", "http://m.example/debian", kernel=kernel)
    for distro, other in (
        ("rocky:9", "5.14.0-427.13.1.el9_4.x86_64"),
        ("opensuse-leap:15.6", "6.4.0-150600.23.17-default"),
    ):
        files = given(distro, "https://m.example/rpm", kernel=other)
        assert files["authorities.crt"] == b"those that count"
        said = files["script.sh"]
        assert b"sslcacert=/provision/solve/authorities.crt" in said or b"trust/anchors" in said
        assert "authorities.crt" not in given(distro, "http://m.example/rpm", kernel=other)
    # A proxy that reads along has an authority of its own.
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert "authorities.crt" in given("rocky:9", "http://m.example/rpm")


def test_what_decides_which_indexes_count_names_another_closure(tmp_path: Path) -> None:
    plain = Repository("own", ("http://m",))
    snapshot, signed = replace(plain, is_snapshot=True), replace(plain, is_signed=True)
    keys = {request(tmp_path, repositories=(one,)).key for one in (plain, snapshot, signed)}
    assert len(keys) == 3
    before = request(tmp_path, "rhel:9").key
    touch_files(tmp_path, "etc/pki/entitlement/1.pem")
    assert request(tmp_path, "rhel:9").key != before


def test_a_closure_of_before_keeps_its_name(tmp_path: Path) -> None:
    """It would be solved for again, and artifacts get other names, without need."""
    first = "24fea5a7311e84f0a8464e5e0337f99cdacbfb57fe8770fb78767f115cdac655"
    assert request(tmp_path).key == first


def test_a_vault_has_the_release_of_the_base_image_in_its_address(tmp_path: Path) -> None:
    said = f"No match for argument: kernel-devel-uname-r = {KERNEL}"
    engine = SolvingEngine(FakeContainer([(1, said, "")]))
    with pytest.raises(NotFoundError) as caught:
        solve(lambda: engine, request(tmp_path), PackageStore(tmp_path))
    assert "vault/rocky/9.6/BaseOS" in str(caught.value.resolution)


_FEDORA = "6.17.1-300.fc43.x86_64"
_GONE = (1, f"No match for argument: kernel-devel-uname-r = {_FEDORA}", "")
_SIGNED = "/6.17.1/300.fc43/data/signed/{}/x86_64/kernel-devel-6.17.1-300.fc43.x86_64.rpm"
_KEYS = ("105ef944", "31645531")
_OWN = (Repository("own", ("http://m",)),)


@pytest.fixture
def koji(tmp_path: Path) -> Iterator[Mirror]:
    """Koji's files, where the second key has signed the headers."""
    path = tmp_path / "koji" / _SIGNED.format(_KEYS[1]).lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"headers")
    made = Mirror(tmp_path / "koji")
    with made.serving():
        yield made


def _fedora(
    folder: Path, *answers: tuple[int, str, str], **changes: object
) -> tuple[FakeContainer, Closure]:
    """Solve for a kernel that the repositories have dropped."""
    container = FakeContainer([_GONE, *answers])
    wish = request(folder, "fedora:43", kernel=_FEDORA, **changes)
    return container, solve(lambda: SolvingEngine(container), wish, PackageStore(folder))


@pytest.mark.parametrize("repositories", [(), _OWN])
def test_a_kernel_that_the_repositories_have_dropped_comes_from_koji(
    tmp_path: Path, koji: Mirror, repositories: tuple[Repository, ...]
) -> None:
    keys = (0, "", "\n".join([*_KEYS, ""]))
    container, found = _fedora(
        tmp_path, keys, *GOOD, archive_mirror=koji.url, repositories=repositories
    )
    assert koji.asked == [_SIGNED.format(key) for key in _KEYS]
    assert [header.name for header in found.headers] == ["kernel-devel"]
    *_, first, second = container.scripts
    path = "/provision/solve/archived/kernel-devel-6.17.1-300.fc43.x86_64.rpm"
    assert f"install --downloadonly {path} gcc make\n" in first
    assert f"{path} gcc make" in second
    assert container.files_given[path.removeprefix("/provision/solve/")] == b"headers"


def test_beside_repositories_of_ones_own_no_archive_is_asked_that_is_not_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(NotFoundError):
        _fedora(tmp_path, repositories=_OWN)


def test_a_kernel_without_a_signed_copy_says_where_it_was_looked_for(
    tmp_path: Path, koji: Mirror
) -> None:
    with pytest.raises(NotFoundError) as caught:
        _fedora(tmp_path, (0, "", f"{_KEYS[0]}\n"), archive_mirror=koji.url)
    assert _SIGNED.format(_KEYS[0]) in str(caught.value.details)
    with pytest.raises(UnreachableError):
        _fedora(tmp_path, (0, "", f"{_KEYS[0]}\n"), archive_mirror="http://127.0.0.1:9")
