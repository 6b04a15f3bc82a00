"""What an ELF file is, is called, asks for and holds; the root of a host is a boundary."""

from __future__ import annotations

import errno
import io
import os
import struct
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.artifact import make_module
from provision.elf import HEAD_SIZE, Elf, elf_bits, elf_machine, elf_section, read_elf
from provision.files import glob_in_root, in_root
from unit.sources.libraries import library


def _read(data: bytes) -> Elf | None:
    return read_elf(io.BytesIO(data))


@pytest.mark.parametrize("bits", [32, 64])
def test_a_library_has_a_name(bits: int) -> None:
    assert _read(library("libx.so.1", bits=bits)) == Elf(bits, soname="libx.so.1")
    assert _read(library(None, bits=bits)) == Elf(bits)


def test_a_file_that_ends_early_is_damaged() -> None:
    data = library("libx.so.1")
    for size in range(6, len(data), 7):
        with pytest.raises(ValueError, match="ELF file"):
            _read(data[:size])


def test_another_file_is_none() -> None:
    assert _read(b"#!/bin/sh\n") is None


@pytest.mark.parametrize("bits", [32, 64])
def test_the_head_says_the_class(bits: int) -> None:
    assert elf_bits(library("libx.so.1", bits=bits)[:HEAD_SIZE]) == bits


@pytest.mark.parametrize("head", [b"", b"\x7fELF", b"#!/bin/sh\n" * 2, b"\x7fELF\3" + bytes(15)])
def test_another_head_has_no_class_and_no_machine(head: bytes) -> None:
    assert elf_bits(head) is None
    assert elf_machine(head) is None


@pytest.mark.parametrize(("data", "order"), [(1, "<"), (2, ">")])
def test_the_head_says_the_machine(data: int, order: str) -> None:
    head = bytes((*b"\x7fELF", 2, data)) + bytes(10) + struct.pack(f"{order}2H", 3, 22)
    assert elf_machine(head) == "s390x"
    assert elf_machine(head[:-1]) is None


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_module_has_sections(order: str) -> None:
    module = make_module(order=order)
    assert b"license=GPL\0" in elf_section(module, b".modinfo")
    with pytest.raises(ValueError, match=r"no \.absent section"):
        elf_section(module, b".absent")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree beside a canary that stands for the running host."""
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary/file").write_text("the running host")
    made = tmp_path / "root"
    (made / "etc").mkdir(parents=True)
    (made / "etc/file").write_text("the other host")
    return made


@pytest.mark.parametrize(
    ("links", "name", "place"),
    [
        ({}, "etc/file", "etc/file"),
        ({}, "/etc/file", "etc/file"),
        ({}, "//etc/./file", "etc/file"),
        ({}, "../../etc/file", "etc/file"),
        ({}, "missing/../etc/file", "etc/file"),
        ({}, "missing/file", "missing/file"),
        ({}, "", ""),
        ({"conf": "/etc"}, "conf/file", "etc/file"),
        ({"conf": "etc"}, "conf/file", "etc/file"),
        ({"conf": "//etc"}, "conf/file", "etc/file"),
        ({"a": "b", "b": "/conf", "conf": "etc"}, "a/file", "etc/file"),
        ({"etc/link": "/etc/file"}, "etc/link", "etc/file"),
        ({"etc/link": "../../../../etc/file"}, "etc/link", "etc/file"),
        ({"conf": "/gone/away"}, "conf/file", "gone/away/file"),
        # '..' behind a link climbs from where the link leads.
        ({"deep": "/usr/lib/x"}, "deep/../y", "usr/lib/y"),
    ],
)
def test_a_link_means_what_it_means_on_its_own_host(
    root: Path, links: dict[str, str], name: str, place: str
) -> None:
    for link, target in links.items():
        (root / link).symlink_to(target)
    assert in_root(root, name) == root / place


def test_the_last_part_may_be_left_as_it_is(root: Path) -> None:
    (root / "conf").symlink_to("/etc")
    (root / "etc/link").symlink_to("/nowhere")
    assert in_root(root, "conf/link", follow=False) == root / "etc/link"
    assert in_root(root, "conf/link") == root / "nowhere"


def test_links_in_circles_are_an_error(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("/a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)) as caught:
        in_root(root, "a/file")
    assert caught.value.filename == str(root / "a/file")


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_PATHS = st.builds(
    lambda absolute, parts: "/" * absolute + "/".join(parts),
    st.booleans(),
    st.lists(st.one_of(_NAMES, st.just("..")), min_size=1, max_size=4),
)
_TREES = st.dictionaries(
    st.lists(_NAMES, min_size=1, max_size=3).map("/".join),
    st.one_of(st.none(), _PATHS),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(tree=_TREES, name=_PATHS)
def test_whatever_the_links_are_nothing_lies_outside(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, str | None], name: str
) -> None:
    made = tmp_path_factory.mktemp("tree") / "root"
    made.mkdir()
    for path, target in tree.items():
        place = made / path
        # Parents first may be links of another entry: only what fits is made.
        if os.path.lexists(place) or not _is_real(made, place.parent):
            continue
        place.mkdir() if target is None else place.symlink_to(target)
    try:
        found = in_root(made, name)
    except OSError:
        return
    assert found.is_relative_to(made)
    # No link is left on the way, so that the kernel can't be led anywhere else.
    assert found.resolve() == found


def _is_real(root: Path, folder: Path) -> bool:
    return folder == root or (
        folder.is_dir() and not folder.is_symlink() and _is_real(root, folder.parent)
    )


def test_names_are_found_through_links_and_stay_what_the_host_calls_them(root: Path) -> None:
    (root / "usr/lib/modules/6.1").mkdir(parents=True)
    (root / "usr/lib/modules/6.1/modules.dep").touch()
    (root / "usr/lib/modules/6.2").symlink_to("/usr/lib/modules/6.1")
    (root / "usr/lib/modules/7.0").symlink_to(root.parent / "canary")
    (root / "usr/lib/modules/.hidden").mkdir()
    (root / "lib").symlink_to("/usr/lib")
    assert glob_in_root(root, "lib/modules/*/modules.dep") == [
        PurePosixPath("lib/modules/6.1/modules.dep"),
        PurePosixPath("lib/modules/6.2/modules.dep"),
    ]
    assert glob_in_root(root, "lib/modules/[0-9]*") == [
        PurePosixPath(f"lib/modules/{name}") for name in ("6.1", "6.2", "7.0")
    ]
    assert glob_in_root(root, "lib/modules/.*") == [PurePosixPath("lib/modules/.hidden")]
    assert glob_in_root(root, "missing/*") == []
    assert glob_in_root(root, "etc/file/*") == []
