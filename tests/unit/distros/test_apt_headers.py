"""Kernel headers in real Debian indexes, cut down, and in made-up ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.archive import ArchiveIndex
from provision.errors import NotFoundError
from provision.distros.apt_headers import find_packages, packaged_kernels
from unit.fake_archive import index_of, sample_index, stanza


@pytest.fixture
def bookworm(tmp_path: Path) -> Iterator[ArchiveIndex]:
    index = sample_index(tmp_path)
    yield index
    index.close()


@pytest.fixture
def trixie(tmp_path: Path) -> Iterator[ArchiveIndex]:
    index = sample_index(tmp_path, "debian:13")
    yield index
    index.close()


def test_debian_12_names_the_compiler_by_way_of_a_package(bookworm: ArchiveIndex) -> None:
    found = find_headers(bookworm, "6.1.0-47-amd64")
    assert [(pin.name, pin.version) for pin in found.packages] == [
        ("linux-headers-6.1.0-47-amd64", "6.1.170-3"),
        ("linux-headers-6.1.0-47-common", "6.1.170-3"),
        ("linux-kbuild-6.1", "6.1.192-2"),
        ("linux-compiler-gcc-12-x86", "6.1.192-2"),
    ]
    assert (found.compiler.name, found.compiler.version) == ("gcc-12", "12.2.0-14+deb12u1")


def test_debian_13_names_the_compiler_itself(trixie: ArchiveIndex) -> None:
    found = find_headers(trixie, "6.12.117+deb13-amd64")
    assert [pin.name for pin in found.packages] == [
        "linux-headers-6.12.117+deb13-amd64",
        "linux-headers-6.12.117+deb13-common",
        "linux-kbuild-6.12.117+deb13",
    ]
    assert found.compiler.name == "gcc-14"


def test_a_real_time_kernel_has_its_own_common_headers(bookworm: ArchiveIndex) -> None:
    names = [pin.name for pin in find_headers(bookworm, "6.1.0-56-rt-amd64").packages]
    assert names[:2] == ["linux-headers-6.1.0-56-rt-amd64", "linux-headers-6.1.0-56-common-rt"]


def test_the_compiler_for_a_foreign_build_is_the_plain_one_here(tmp_path: Path) -> None:
    text = "\n".join(
        [
            stanza("linux-headers-1-arm64", "1", depends="linux-compiler-gcc-14-arm"),
            stanza("linux-compiler-gcc-14-arm", "1", depends="gcc-14-for-host"),
            stanza("gcc-14-for-host", "14.2-1"),
            stanza("gcc-14", "14.2-1"),
        ]
    )
    index = index_of(tmp_path, {("trixie", "main"): text})
    assert find_headers(index, "1-arm64").compiler.name == "gcc-14"
    index.close()


def test_the_newest_version_that_a_dependency_allows_is_taken(tmp_path: Path) -> None:
    text = "\n".join(
        [
            stanza("linux-headers-1-amd64", "1", depends="linux-headers-1-common (= 1), gcc-12"),
            stanza("linux-headers-1-common", "1"),
            stanza("linux-headers-1-common", "2"),
            stanza("gcc-12", "12.1"),
            stanza("gcc-12", "12.2"),
        ]
    )
    index = index_of(tmp_path, {("bookworm", "main"): text})
    found = find_headers(index, "1-amd64")
    assert [(pin.name, pin.version) for pin in found.packages][1] == ("linux-headers-1-common", "1")
    assert found.compiler.version == "12.2"
    index.close()


def test_missing_headers_name_each_place_and_the_nearest_kernels(bookworm: ArchiveIndex) -> None:
    with pytest.raises(NotFoundError, match="No headers are packaged for") as caught:
        find_headers(bookworm, "6.1.0-48-amd64")
    details = (caught.value.details or "").splitlines()
    assert details[0] == "looked for linux-headers-6.1.0-48-amd64 (amd64) in:"
    assert details[1 : 1 + len(bookworm.places)] == [f"  {place}" for place in bookworm.places]
    assert details[2 + len(bookworm.places) :] == [
        "  6.12.117+deb12-amd64",
        "  6.1.0-56-amd64",
        "  6.1.0-50-amd64",
        "  6.1.0-47-amd64",
    ]
    assert "--kernel" in (caught.value.resolution or "")


@pytest.mark.parametrize("kernel", ["6.8.0-45-generic", "6.18.44", "custom"])
def test_a_foreign_kernel_is_answered_with_plain_ones(kernel: str, bookworm: ArchiveIndex) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_headers(bookworm, kernel)
    assert "  6.12.117+deb12-amd64" in (caught.value.details or "")
    assert "cloud" not in (caught.value.details or "").partition("nearest")[2]


def test_an_archive_without_any_kernel_says_so(tmp_path: Path) -> None:
    index = index_of(tmp_path, {("bookworm", "main"): stanza("tool", "1")})
    with pytest.raises(NotFoundError) as caught:
        find_headers(index, "6.1.0-47-amd64")
    assert (caught.value.details or "").endswith("nearest kernels that are packaged there:\n  none")
    index.close()


def test_incomplete_headers_name_what_is_missing(tmp_path: Path) -> None:
    text = stanza("linux-headers-1-amd64", "1", depends="linux-kbuild-6.1 (>= 1), gcc-12")
    index = index_of(tmp_path, {("bookworm", "main"): text})
    with pytest.raises(NotFoundError, match=r"needs linux-kbuild-6\.1 \(>= 1\)"):
        find_headers(index, "1-amd64")
    index.close()


def test_headers_without_a_compiler_are_refused(tmp_path: Path) -> None:
    index = index_of(tmp_path, {("bookworm", "main"): stanza("linux-headers-1-amd64", "1")})
    with pytest.raises(NotFoundError, match="don't say which compiler"):
        find_headers(index, "1-amd64")
    index.close()


def test_kernels_are_listed_newest_first_without_variants(bookworm: ArchiveIndex) -> None:
    assert packaged_kernels(bookworm) == [
        "6.12.117+deb12-amd64",
        "6.1.0-56-amd64",
        "6.1.0-50-amd64",
        "6.1.0-47-amd64",
    ]


def test_a_variant_is_listed_when_it_is_asked_for(bookworm: ArchiveIndex) -> None:
    assert packaged_kernels(bookworm, like="6.1.0-1-cloud-amd64") == [
        "6.12.117+deb12-cloud-amd64",
        "6.1.0-56-cloud-amd64",
        "6.1.0-50-cloud-amd64",
        "6.1.0-47-cloud-amd64",
    ]
    assert packaged_kernels(bookworm, like="6.8.0-45-generic") == []
