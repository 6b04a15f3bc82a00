"""Release files."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from provision.distros.debian.release_file import IndexFile, ReleaseFile, parse_release
from provision.errors import ProvisionError

XZ, GZ, PLAIN = "a" * 64, "b" * 64, "c" * 64
TEXT = f"""\
Origin: Debian
Codename: bookworm-security
Date: Wed, 18 Nov 2026 22:17:41 UTC
Valid-Until: Wed, 25 Nov 2026 22:17:41 UTC
Acquire-By-Hash: yes
Architectures: amd64 arm64
Components: updates/main updates/non-free
MD5Sum:
 d41d8cd98f00b204e9800998ecf8427e        0 main/binary-amd64/Packages.xz
SHA256:
 {PLAIN}      900 main/binary-amd64/Packages
 {GZ}      200 main/binary-amd64/Packages.gz
 {XZ}      100 main/binary-amd64/Packages.xz
 {GZ}      200 main/binary-arm64/Packages.gz
 {PLAIN}      900 main/binary-s390x/Packages
 {XZ}      100 main/debian-installer/binary-amd64/Packages.xz
SHA512:
 {"d" * 128}      100 main/binary-riscv64/Packages.xz
"""


def release(text: str = TEXT) -> ReleaseFile:
    return parse_release(text.encode(), name="here")


def test_it_says_what_the_archive_is() -> None:
    found = release()
    assert found.origin == "Debian"
    assert found.components == {"main", "non-free"}
    assert found.architectures == {"amd64", "arm64"}
    assert found.date == datetime(2026, 11, 18, 22, 17, 41, tzinfo=UTC)
    assert found.valid_until == datetime(2026, 11, 25, 22, 17, 41, tzinfo=UTC)
    assert found.has_by_hash


def test_the_best_packed_index_is_taken() -> None:
    found = release()
    assert found.packages_file("main", "amd64") == IndexFile(
        "main/binary-amd64/Packages.xz", XZ, 100, 900
    )
    assert found.packages_file("main", "arm64") == IndexFile(
        "main/binary-arm64/Packages.gz", GZ, 200, None
    )
    assert found.packages_file("main", "s390x") == IndexFile(
        "main/binary-s390x/Packages", PLAIN, 900, 900
    )


def test_only_sha256_sums_count() -> None:
    assert release().packages_file("main", "riscv64") is None
    assert release().packages_file("contrib", "amd64") is None


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ("Architectures: amd64", ["amd64"]),
        ("Architectures: all amd64", ["amd64", "all"]),
        ("Architectures: all amd64\nNo-Support-for-Architecture-all: Packages", ["amd64"]),
    ],
)
def test_packages_for_all_architectures_may_stand_apart(fields: str, read: list[str]) -> None:
    found = release(f"{fields}\nSHA256:\n {XZ} 1 main/binary-amd64/Packages.xz\n")
    assert found.architectures_to_read("amd64") == read


def test_a_text_without_sums_is_no_release_file() -> None:
    with pytest.raises(ProvisionError, match="'here' is no archive's index"):
        release("Origin: Debian\n")


@pytest.mark.parametrize("field", ["Date", "Valid-Until"])
@pytest.mark.parametrize("text", ["yesterday", "", "Wed, 99 Nov 2026 22:17:41 UTC", "0"])
def test_a_date_without_sense_is_refused(field: str, text: str) -> None:
    with pytest.raises(ProvisionError, match=f"its {field} is '{text}', which is no date"):
        release(f"{field}: {text}\nSHA256:\n {XZ} 1 main/binary-amd64/Packages.xz\n")


def test_dates_may_be_missing() -> None:
    found = release(f"SHA256:\n {XZ} 1 main/binary-amd64/Packages.xz\n")
    assert (found.date, found.valid_until) == (None, None)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ("Suite: oldstable-security\nCodename: bookworm-security", 2),
        ("Suite: bookworm\nCodename: bookworm", 1),
        ("Suite: bookworm", 1),
        ("Suite: bookworm-updates\nCodename: bookworm", 1),
        ("Origin: Debian\nSuite: ", 0),
    ],
)
def test_it_says_what_it_is_called(fields: str, names: int) -> None:
    found = release(f"{fields}\nSHA256:\n {XZ} 1 main/binary-amd64/Packages.xz\n")
    assert len(found.names) == names
    assert all(name.startswith(("bookworm", "oldstable")) for name in found.names)


def test_a_suite_of_ubuntu_is_not_the_release_itself() -> None:
    """All suites of a release have its codename: 'noble-proposed' must not pass for 'noble'."""
    text = (
        f"Suite: noble-proposed\nCodename: noble\nSHA256:\n {XZ} 1 main/binary-amd64/Packages.xz\n"
    )
    assert release(text).names == ("noble-proposed",)


@given(st.text())
@example("Date: 31 Dec 9999 23:59:59 -2359")
@example("SHA256:\n " + "a" * 64 + " " + "9" * 5000 + " main/binary-amd64/Packages\n")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = release(f"{text}\nSHA256:\n {XZ} 1 main/binary-amd64/Packages.xz\n")
    except ProvisionError:
        return
    # What was read can be asked.
    found.packages_file("main", "amd64")
    if found.valid_until is not None:
        found.valid_until.timestamp()
