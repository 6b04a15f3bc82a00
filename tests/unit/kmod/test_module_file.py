"""What a module file says about itself."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.artifact import make_module
from kit.probe import need_programs
from kit.process import run
from provision.errors import ProvisionError
from provision.kmod.modules import UNREADABLE, parse_modinfo, read_identity


def test_modinfo_reads_the_same(tmp_path: Path) -> None:
    need_programs("modinfo")
    path = tmp_path / "demo.ko"
    path.write_bytes(make_module(version="1.2"))
    for key, value in read_identity(path)[1].items():
        assert run(["modinfo", "-F", key, path]).stdout.splitlines() == [value]


@pytest.mark.parametrize(
    "content",
    [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60), make_module()[:100]],
)
def test_what_is_no_module_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.ko"
    path.write_bytes(content)
    with pytest.raises(ProvisionError):
        read_identity(path)


# The example: a section table further away than a C ssize_t reaches.
@given(st.integers(min_value=0), st.integers(min_value=0, max_value=255))
@example(3350, 128)
def test_damaged_bytes_give_values_or_an_error_that_is_expected(position: int, byte: int) -> None:
    data = bytearray(make_module())
    assert parse_modinfo(bytes(data))["name"] == "demo"
    data[position % len(data)] = byte
    with suppress(*UNREADABLE):
        parse_modinfo(bytes(data))
