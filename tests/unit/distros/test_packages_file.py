"""Packages files and the tables that are made of them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.distros.debian.packages_file import (
    PackageTable,
    Row,
    newest_first,
    parse_packages,
    write_table,
)
from provision.errors import ProvisionError
from unit.fake_archive import sample, stanza

NAME = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,12}", fullmatch=True)
VERSION = st.from_regex(r"[0-9][A-Za-z0-9.+~]{0,8}(-[0-9a-z.]{1,4})?", fullmatch=True)
LINE = st.text(st.characters(min_codepoint=32, exclude_categories=["C", "Z"]), max_size=30)
ROW = st.tuples(
    NAME,
    VERSION,
    st.sampled_from(["amd64", "all"]),
    LINE,
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    st.integers(0, 2**40),
    LINE,
)


def text_of(row: Row) -> str:
    name, version, architecture, filename, sha256, size, depends = row
    return (
        f"Package: {name}\nSource: other\nVersion: {version}\nArchitecture: {architecture}\n"
        f"Depends: {depends}\nDescription: short\n Package: not this one\n .\n"
        f"Filename: {filename}\nSize: {size}\nSHA256: {sha256}\n"
    )


@given(st.lists(ROW), st.integers(1, 500))
def test_what_is_written_is_read_wherever_it_is_cut(rows: list[Row], size: int) -> None:
    text = "\n".join(map(text_of, rows)).encode()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert list(parse_packages(pieces)) == rows


def test_a_real_file_is_read() -> None:
    rows = {row[0]: row for row in parse_packages([sample("bookworm", "main").encode()])}
    assert rows["linux-headers-6.1.0-47-amd64"] == (
        "linux-headers-6.1.0-47-amd64",
        "6.1.170-3",
        "amd64",
        "pool/main/l/linux/linux-headers-6.1.0-47-amd64_6.1.170-3_amd64.deb",
        "2a40c463e108b1ea3abf2e16e38eb9e27b237693b974b862adde73873c7d85c1",
        1655296,
        (
            "linux-headers-6.1.0-47-common (= 6.1.170-3), linux-kbuild-6.1 (>= 6.1.170-3),"
            " linux-compiler-gcc-12-x86"
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "Package: a\nSize: 1\n",
        "Version: 1\nSize: 1\n",
        *(f"Package: a\nVersion: 1\nSize: {size}\n" for size in ("big", "²", "9" * 20, "9" * 5000)),
    ],
)
def test_a_broken_entry_is_an_error(text: str) -> None:
    with pytest.raises(ProvisionError, match="broken entry"):
        list(parse_packages([text.encode()]))


def test_a_version_that_is_none_is_named(tmp_path: Path) -> None:
    found = table(tmp_path, stanza("a", "1.0"), stanza("a", "1 0"))
    with pytest.raises(ProvisionError, match="'a' in a version that is not valid: '1 0'"):
        newest_first(found.named("a"))
    found.close()


def test_a_table_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="is damaged"):
        PackageTable(tmp_path / "gone.sqlite", suite="s", component="main")


def table(folder: Path, *entries: str) -> PackageTable:
    path = folder / "t.sqlite"
    write_table(path, parse_packages(["\n".join(entries).encode()]))
    return PackageTable(path, suite="s", component="main")


def test_packages_are_found_by_name_and_by_prefix(tmp_path: Path) -> None:
    found = table(
        tmp_path,
        stanza("gcc", "1"),
        stanza("gcc-12", "2"),
        stanza("gcc-12", "3"),
        stanza("gcc-12-base", "2"),
        stanza("gcd", "1"),
    )
    assert sorted(p.version for p in found.named("gcc-12")) == ["2", "3"]
    assert found.named("gc") == []
    assert sorted({p.name for p in found.starting("gcc-")}) == ["gcc-12", "gcc-12-base"]
    assert {(p.suite, p.component) for p in found.starting("")} == {("s", "main")}
    found.close()


def test_a_table_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> list[Row]:
        raise ProvisionError("the index is broken")

    with pytest.raises(ProvisionError):
        write_table(tmp_path / "t.sqlite", (row for _ in [0] for row in broken()))
    assert list(tmp_path.iterdir()) == []


def test_a_draft_that_a_crash_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".t.sqlite.draft").write_text("half a table")
    found = table(tmp_path, stanza("a", "1"))
    assert [p.name for p in found.starting("")] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.sqlite"]
    found.close()


def test_a_folder_that_cant_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="could not write"):
        write_table(tmp_path / "missing/t.sqlite", [])


def test_the_newest_version_comes_first(tmp_path: Path) -> None:
    versions = ["1.0~rc1-1", "1.0-1", "1:0.9-1", "1.0-1+b1", "1.10-1", "1.9-1"]
    found = table(tmp_path, *(stanza("a", version) for version in versions))
    assert [p.version for p in newest_first(found.named("a"))] == [
        "1:0.9-1",
        "1.10-1",
        "1.9-1",
        "1.0-1+b1",
        "1.0-1",
        "1.0~rc1-1",
    ]
    found.close()
