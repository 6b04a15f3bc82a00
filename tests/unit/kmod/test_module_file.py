"""What a module file says about itself."""

from __future__ import annotations

import gzip
import lzma
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.artifact import VERMAGIC, make_module
from kit.probe import need_programs
from kit.process import run
from provision.errors import ProvisionError
from provision.kmod.module_file import UNREADABLE, parse_modinfo, read_modinfo


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_values_of_each_key_are_read(order: str) -> None:
    values = parse_modinfo(make_module(order=order))
    assert values["vermagic"] == [f"{VERMAGIC} "]
    assert values["license"] == ["GPL"]
    assert values["depends"] == [""]


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".ko", bytes), (".ko.gz", gzip.compress), (".ko.xz", lzma.compress)]
)
def test_compressed_modules_are_read(tmp_path: Path, suffix: str, compress: object) -> None:
    assert callable(compress)
    path = tmp_path / f"demo{suffix}"
    path.write_bytes(compress(make_module()))
    assert read_modinfo(path)["name"] == ["demo"]


@pytest.mark.parametrize("suffix", [".ko", ".ko.xz"])
def test_modinfo_reads_the_same(tmp_path: Path, suffix: str) -> None:
    need_programs("modinfo")
    path = tmp_path / f"demo{suffix}"
    content = make_module(version="1.2")
    path.write_bytes(lzma.compress(content) if suffix.endswith("xz") else content)
    for key, values in read_modinfo(path).items():
        assert run(["modinfo", "-F", key, path]).stdout.splitlines() == values


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ko", b""),
        ("a.ko", b"#!/bin/sh\n"),
        ("a.ko", b"\x7fELF\x01\x01" + bytes(60)),
        ("a.ko", make_module()[:100]),
        ("a.ko.xz", b"not xz"),
        ("a.ko.gz", b"not gzip"),
        ("a.ko.zst", b""),
    ],
)
def test_what_is_no_module_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ProvisionError):
        read_modinfo(path)


# The example: a section table further away than a C ssize_t reaches.
@given(st.integers(min_value=0), st.integers(min_value=0, max_value=255))
@example(3350, 128)
def test_damaged_bytes_give_values_or_an_error_that_is_expected(position: int, byte: int) -> None:
    data = bytearray(make_module())
    assert parse_modinfo(bytes(data))["name"] == ["demo"]
    data[position % len(data)] = byte
    with suppress(*UNREADABLE):
        parse_modinfo(bytes(data))
