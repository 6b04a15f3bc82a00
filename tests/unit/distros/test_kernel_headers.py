"""Kernel headers in real Debian indexes, cut down, and in made-up ones."""

import pytest

from provision.distros.debian.archive import ArchiveIndex, packaged_kernels, require_headers
from provision.errors import NotFoundError
from unit.fake_archive import index_of, sample_index, stanza


@pytest.fixture
def bookworm() -> ArchiveIndex:
    return sample_index()


def test_headers_that_are_packaged_are_enough(bookworm: ArchiveIndex) -> None:
    require_headers(bookworm, "6.1.0-47-amd64")
    require_headers(bookworm, "6.1.0-56-rt-amd64")


def test_missing_headers_name_each_place_and_the_nearest_kernels(bookworm: ArchiveIndex) -> None:
    with pytest.raises(NotFoundError) as caught:
        require_headers(bookworm, "6.1.0-48-amd64")
    details = (caught.value.details or "").splitlines()
    assert details[0] == "looked for linux-headers-6.1.0-48-amd64 (amd64) in:"
    assert details[1 : 1 + len(bookworm.addresses)] == [
        f"  {place}" for place in bookworm.addresses
    ]
    assert details[2 + len(bookworm.addresses) :] == [
        "  6.12.117+deb12-amd64",
        "  6.1.0-56-amd64",
        "  6.1.0-50-amd64",
        "  6.1.0-47-amd64",
    ]


@pytest.mark.parametrize("kernel", ["6.8.0-45-generic", "6.18.44", "custom"])
def test_a_foreign_kernel_is_answered_with_plain_ones(kernel: str, bookworm: ArchiveIndex) -> None:
    with pytest.raises(NotFoundError) as caught:
        require_headers(bookworm, kernel)
    assert "  6.12.117+deb12-amd64" in (caught.value.details or "")
    assert "cloud" not in (caught.value.details or "").partition("nearest")[2]


def test_an_archive_without_any_kernel_says_so() -> None:
    index = index_of({("bookworm", "main"): stanza("tool", "1")})
    with pytest.raises(NotFoundError) as caught:
        require_headers(index, "6.1.0-47-amd64")
    assert (caught.value.details or "").endswith("nearest kernels that are packaged there:\n  none")


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
        ("linux-headers-6.8.0-1018-nvidia", "6.8.0-1018.20", "linux-nvidia-headers-6.8.0-1018"),
        ("linux-headers-6.8.0-1018-nvidia-64k", "6.8.0-1018.20", "linux-nvidia-headers-6.8.0-1018"),
        ("linux-headers-nvidia-64k", "6.8.0-1018.20", "linux-headers-6.8.0-1018-nvidia-64k"),
        ("linux-nvidia-headers-6.8.0-1018", "6.8.0-1018.20", ""),
        ("linux-headers-6.8.0-1015-azure-fde", "6.8.0-1015.17", "linux-azure-headers-6.8.0-1015"),
        ("linux-azure-headers-6.8.0-1015", "6.8.0-1015.17", ""),
    ],
    ("noble-updates", "universe"): [("gcc-14", "14.2.0-4ubuntu2~24.04", "")],
}


@pytest.fixture
def noble() -> ArchiveIndex:
    texts = {
        place: "\n".join(stanza(name, version, depends=depends) for name, version, depends in rows)
        for place, rows in _UBUNTU.items()
    }
    return index_of(texts, distro="ubuntu:24.04")


@pytest.mark.parametrize(
    ("like", "kernel"),
    [
        ("6.8.0-1-generic-64k", "6.8.0-45-generic-64k"),
        ("6.8.0-1001-aws", "6.8.0-1016-aws"),
        ("6.5.0-1001-nvidia", "6.8.0-1018-nvidia"),
        ("6.5.0-1001-nvidia-64k", "6.8.0-1018-nvidia-64k"),
        ("5.15.0-1-lowlatency", "6.8.0-45-lowlatency"),
        ("6.8.0-1000-azure-fde", "6.8.0-1015-azure-fde"),
    ],
)
def test_ubuntus_flavours_share_the_headers_of_their_source_package(
    like: str, kernel: str, noble: ArchiveIndex
) -> None:
    require_headers(noble, kernel)
    assert packaged_kernels(noble, like=like) == [kernel]


def test_ubuntus_plain_kernels_are_the_generic_ones(noble: ArchiveIndex) -> None:
    assert packaged_kernels(noble) == ["6.11.0-26-generic", "6.8.0-45-generic", "6.8.0-31-generic"]


def test_a_superseded_abi_names_the_snapshot_service(noble: ArchiveIndex) -> None:
    with pytest.raises(NotFoundError) as caught:
        require_headers(noble, "6.8.0-40-generic")
    resolution = caught.value.resolution or ""
    assert "Ubuntu's snapshot service" in resolution
    assert "[distros.ubuntu.archive]" in resolution
    assert "snapshot = true" in resolution
    assert "  6.8.0-45-generic" in (caught.value.details or "")


@pytest.mark.parametrize(
    "kernel", ["6.8.12-4-pve", "6.6.51+rpt-rpi-v8", "6.12.8-x64v3-xanmod1", "6.1.112+"]
)
def test_a_kernel_of_another_archive_takes_a_tree(noble: ArchiveIndex, kernel: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        require_headers(noble, kernel)
    resolution = caught.value.resolution or ""
    assert "[[trees]]" in resolution
    assert "snapshot" not in resolution


def test_a_backports_kernel_counts_and_newer_tools_there_do_not() -> None:
    headers = stanza(
        "linux-headers-6.12.9+bpo-amd64",
        "6.12.9-1~bpo12+1",
        depends="linux-headers-6.12.9+bpo-common (= 6.12.9-1~bpo12+1), gcc-12",
    )
    texts = {
        ("bookworm", "main"): stanza("gcc-12", "12.2"),
        ("bookworm-backports", "main"): f"{headers}\n{stanza('gcc-12', '12.9~bpo12+1')}",
    }
    index = index_of(texts)
    require_headers(index, "6.12.9+bpo-amd64")
    assert packaged_kernels(index) == ["6.12.9+bpo-amd64"]
    assert [package.version for package in index.versions("gcc-12")] == ["12.2", "12.9~bpo12+1"]
