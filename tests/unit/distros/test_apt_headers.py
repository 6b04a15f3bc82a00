"""Kernel headers in real Debian indexes, cut down, and in made-up ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.archive import ArchiveIndex, IndexedPackage
from provision.distros.apt_headers import Headers, find_packages, packaged_kernels
from provision.errors import NotFoundError
from unit.fake_archive import index_of, sample_index, stanza


def no_file(package: IndexedPackage, name: str) -> bytes:
    raise AssertionError(f"{package.name} was downloaded for {name}")


def found_for(index: ArchiveIndex, kernel: str) -> Headers:
    return find_packages(index, kernel, file_of=no_file)


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
    found = found_for(bookworm, "6.1.0-47-amd64")
    assert [(pin.name, pin.version) for pin in found.packages] == [
        ("linux-headers-6.1.0-47-amd64", "6.1.170-3"),
        ("linux-headers-6.1.0-47-common", "6.1.170-3"),
        ("linux-kbuild-6.1", "6.1.192-2"),
        ("linux-compiler-gcc-12-x86", "6.1.192-2"),
    ]
    assert (found.compiler.name, found.compiler.version) == ("gcc-12", "12.2.0-14+deb12u1")


def test_debian_13_names_the_compiler_itself(trixie: ArchiveIndex) -> None:
    found = found_for(trixie, "6.12.117+deb13-amd64")
    assert [pin.name for pin in found.packages] == [
        "linux-headers-6.12.117+deb13-amd64",
        "linux-headers-6.12.117+deb13-common",
        "linux-kbuild-6.12.117+deb13",
    ]
    assert found.compiler.name == "gcc-14"


def test_a_real_time_kernel_has_its_own_common_headers(bookworm: ArchiveIndex) -> None:
    names = [pin.name for pin in found_for(bookworm, "6.1.0-56-rt-amd64").packages]
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
    assert found_for(index, "1-arm64").compiler.name == "gcc-14"
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
    found = found_for(index, "1-amd64")
    assert [(pin.name, pin.version) for pin in found.packages][1] == ("linux-headers-1-common", "1")
    assert found.compiler.version == "12.2"
    index.close()


def test_missing_headers_name_each_place_and_the_nearest_kernels(bookworm: ArchiveIndex) -> None:
    with pytest.raises(NotFoundError, match="No headers are packaged for") as caught:
        found_for(bookworm, "6.1.0-48-amd64")
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
        found_for(bookworm, kernel)
    assert "  6.12.117+deb12-amd64" in (caught.value.details or "")
    assert "cloud" not in (caught.value.details or "").partition("nearest")[2]


def test_an_archive_without_any_kernel_says_so(tmp_path: Path) -> None:
    index = index_of(tmp_path, {("bookworm", "main"): stanza("tool", "1")})
    with pytest.raises(NotFoundError) as caught:
        found_for(index, "6.1.0-47-amd64")
    assert (caught.value.details or "").endswith("nearest kernels that are packaged there:\n  none")
    index.close()


def test_incomplete_headers_name_what_is_missing(tmp_path: Path) -> None:
    text = stanza("linux-headers-1-amd64", "1", depends="linux-kbuild-6.1 (>= 1), gcc-12")
    index = index_of(tmp_path, {("bookworm", "main"): text})
    with pytest.raises(NotFoundError, match=r"needs linux-kbuild-6\.1 \(>= 1\)"):
        found_for(index, "1-amd64")
    index.close()


def test_headers_without_a_compiler_are_refused(tmp_path: Path) -> None:
    index = index_of(tmp_path, {("bookworm", "main"): stanza("linux-headers-1-amd64", "1")})
    with pytest.raises(NotFoundError, match="don't say which compiler"):
        find_packages(index, "1-amd64", file_of=lambda _package, _name: b"CONFIG_X86=y\n")
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


# As Ubuntu's archive has them: package, version, dependencies of each flavour's headers.
_UBUNTU = {
    ("noble", "main"): [
        ("linux-headers-6.8.0-31-generic", "6.8.0-31.31", "linux-headers-6.8.0-31, libc6"),
        ("linux-headers-6.8.0-31", "6.8.0-31.31", ""),
        ("linux-headers-generic", "6.8.0-31.31", "linux-headers-6.8.0-31-generic"),
        ("gcc-13", "13.2.0-23ubuntu4", ""),
    ],
    ("noble-updates", "main"): [
        ("linux-headers-6.8.0-45-generic", "6.8.0-45.45", "linux-headers-6.8.0-45, libc6"),
        ("linux-headers-6.8.0-45-generic-64k", "6.8.0-45.45", "linux-headers-6.8.0-45, libc6"),
        ("linux-headers-6.8.0-45", "6.8.0-45.45", ""),
        (
            "linux-headers-6.11.0-26-generic",
            "6.11.0-26.26~24.04.1",
            "linux-hwe-6.11-headers-6.11.0-26, libc6",
        ),
        ("linux-hwe-6.11-headers-6.11.0-26", "6.11.0-26.26~24.04.1", ""),
        ("linux-headers-6.8.0-1016-aws", "6.8.0-1016.17", "linux-aws-headers-6.8.0-1016, libc6"),
        ("linux-aws-headers-6.8.0-1016", "6.8.0-1016.17", ""),
        (
            "linux-headers-6.8.0-45-lowlatency",
            "6.8.0-45.45.1",
            "linux-lowlatency-headers-6.8.0-45, libc6",
        ),
        ("linux-lowlatency-headers-6.8.0-45", "6.8.0-45.45.1", ""),
        ("linux-headers-6.8.0-1015-azure-fde", "6.8.0-1015.17", "linux-azure-headers-6.8.0-1015"),
        ("linux-azure-headers-6.8.0-1015", "6.8.0-1015.17", ""),
    ],
    ("noble-updates", "universe"): [("gcc-14", "14.2.0-4ubuntu2~24.04", "")],
}
_GCC_13 = b'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0-23ubuntu4) 13.2.0"\n'


@pytest.fixture
def noble(tmp_path: Path) -> Iterator[ArchiveIndex]:
    texts = {
        place: "\n".join(stanza(name, version, depends=depends) for name, version, depends in rows)
        for place, rows in _UBUNTU.items()
    }
    index = index_of(tmp_path, texts, distro="ubuntu:24.04")
    yield index
    index.close()


@pytest.mark.parametrize(
    ("kernel", "shared"),
    [
        ("6.8.0-31-generic", "linux-headers-6.8.0-31"),
        ("6.8.0-45-generic-64k", "linux-headers-6.8.0-45"),
        ("6.11.0-26-generic", "linux-hwe-6.11-headers-6.11.0-26"),
        ("6.8.0-1016-aws", "linux-aws-headers-6.8.0-1016"),
        ("6.8.0-45-lowlatency", "linux-lowlatency-headers-6.8.0-45"),
        ("6.8.0-1015-azure-fde", "linux-azure-headers-6.8.0-1015"),
    ],
)
def test_ubuntus_flavours_share_the_headers_of_their_source_package(
    kernel: str, shared: str, noble: ArchiveIndex
) -> None:
    asked: list[tuple[str, str]] = []

    def file_of(package: IndexedPackage, name: str) -> bytes:
        asked.append((package.name, name))
        return _GCC_13

    found = find_packages(noble, kernel, file_of=file_of)
    assert [pin.name for pin in found.packages] == [f"linux-headers-{kernel}", shared]
    assert (found.compiler.name, found.compiler.version) == ("gcc-13", "13.2.0-23ubuntu4")
    assert asked == [
        (f"linux-headers-{kernel}", f"/usr/src/linux-headers-{kernel}/.config"),
    ]


def test_the_compiler_of_a_newer_kernel_is_found_in_universe(noble: ArchiveIndex) -> None:
    text = b'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc (Ubuntu 14.2.0-4ubuntu2) 14.2.0"\n'
    found = find_packages(noble, "6.11.0-26-generic", file_of=lambda _package, _name: text)
    assert found.compiler.name == "gcc-14"


def test_a_compiler_that_is_not_packaged_is_named(noble: ArchiveIndex) -> None:
    text = b'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1) 12.3.0"\n'
    with pytest.raises(NotFoundError, match=r"built with 'x86_64-linux-gnu-gcc-12 .*Ubuntu 24\.04"):
        find_packages(noble, "6.8.0-31-generic", file_of=lambda _package, _name: text)


def test_ubuntus_plain_kernels_are_the_generic_ones(noble: ArchiveIndex) -> None:
    assert packaged_kernels(noble) == ["6.11.0-26-generic", "6.8.0-45-generic", "6.8.0-31-generic"]
    assert packaged_kernels(noble, like="6.8.0-1001-aws") == ["6.8.0-1016-aws"]


def test_a_superseded_abi_names_the_snapshot_service(noble: ArchiveIndex) -> None:
    with pytest.raises(NotFoundError, match=r"6\.8\.0-40-generic on ubuntu 24\.04") as caught:
        find_packages(noble, "6.8.0-40-generic", file_of=no_file)
    resolution = caught.value.resolution or ""
    assert "Ubuntu's snapshot service" in resolution
    assert "[distros.ubuntu.archive]" in resolution
    assert "snapshot = true" in resolution
    assert "  6.8.0-45-generic" in (caught.value.details or "")


def test_a_backports_kernel_takes_its_headers_and_nothing_else_from_there(tmp_path: Path) -> None:
    index = index_of(
        tmp_path,
        {
            ("bookworm", "main"): "\n".join(
                [stanza("gcc-12", "12.2"), stanza("linux-kbuild-6.1", "6.1.170-3")]
            ),
            ("bookworm-backports", "main"): "\n".join(
                [
                    stanza(
                        "linux-headers-6.12.9+bpo-amd64",
                        "6.12.9-1~bpo12+1",
                        depends="linux-headers-6.12.9+bpo-common (= 6.12.9-1~bpo12+1),"
                        " linux-kbuild-6.12.9+bpo, gcc-12",
                    ),
                    stanza("linux-headers-6.12.9+bpo-common", "6.12.9-1~bpo12+1"),
                    stanza("linux-kbuild-6.12.9+bpo", "6.12.9-1~bpo12+1"),
                    stanza("gcc-12", "12.9~bpo12+1"),
                ]
            ),
        },
    )
    found = found_for(index, "6.12.9+bpo-amd64")
    assert {pin.version for pin in found.packages} == {"6.12.9-1~bpo12+1"}
    assert found.compiler.version == "12.2"
    assert packaged_kernels(index) == ["6.12.9+bpo-amd64"]
    assert index.has_backports
    index.close()
