"""What a module file says, its signature, and why a kernel refuses it."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kit.artifact import MODULE, make_artifact, make_module
from kit.module_key import module_key
from kit.probe import need_programs
from kit.process import run
from provision.config import SigningConfig
from provision.errors import NotFoundError, ProvisionError
from provision.kmod.load import KernelLog
from provision.kmod.module_signatures import (
    is_signed,
    is_signed_for_host,
    sign_modules,
    verify_signatures,
)
from provision.kmod.modules import (
    MAGIC,
    UNREADABLE,
    append_signature,
    find_signature,
    parse_modinfo,
    read_identity,
    read_signature,
)
from provision.kmod.verify import verify_artifact


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


def append(content: bytes, message: bytes, *, kind: int = 2, length: int | None = None) -> bytes:
    """A signed module, after struct module_signature of the kernel's module_signature.h."""
    size = len(message) if length is None else length
    return content + message + struct.pack(">5B3xI", 0, 0, kind, 0, 0, size) + MAGIC


@given(content=st.binary(max_size=200), message=st.binary(max_size=200))
def test_what_was_appended_is_found(content: bytes, message: bytes) -> None:
    found = find_signature(append(content, message))
    assert found is not None
    assert (found.content_size, found.message) == (len(content), message)


def test_a_signature_is_appended_as_the_kernel_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "demo.ko"
    path.write_bytes(b"module")
    path.chmod(0o600)
    append_signature(path, b"message")
    assert path.read_bytes() == append(b"module", b"message")
    assert path.stat().st_mode & 0o777 == 0o600
    # The kernel reads the last one, which is over the first.
    append_signature(path, b"second")
    found = read_signature(path)
    assert found is not None
    assert found.message == b"second"
    assert path.read_bytes()[: found.content_size] == append(b"module", b"message")


@given(st.binary(max_size=100), st.none() | st.integers(0, 100), st.sampled_from([0, 2]))
def test_no_bytes_bring_the_parser_down(data: bytes, length: int | None, kind: int) -> None:
    for candidate in (data, data + MAGIC, append(data, b"", kind=kind, length=length)):
        try:
            found = find_signature(candidate)
        except ValueError:
            continue
        if found is not None:
            assert 0 <= found.content_size <= len(candidate)
            assert append(candidate[: found.content_size], found.message)[-28:] == MAGIC


@given(content=st.binary(max_size=50), message=st.binary(max_size=50), cut=st.integers(1, 40))
def test_a_module_that_was_cut_has_no_signature(content: bytes, message: bytes, cut: int) -> None:
    assert find_signature(append(content, message)[:-cut]) is None


@given(kind=st.integers(0, 255), length=st.none() | st.integers(51, 2**32 - 1))
def test_another_kind_and_a_length_beyond_the_file_are_refused(
    kind: int, length: int | None
) -> None:
    assume(kind != 2 or length is not None)
    with pytest.raises(ValueError, match=r"longer than the module|does not take"):
        find_signature(append(b"module", b"message", kind=kind, length=length))


def test_files_are_read_without_their_signature(tmp_path: Path) -> None:
    path = tmp_path / "demo.ko"
    path.write_bytes(append(b"module", b"message"))
    found = read_signature(path)
    assert found is not None
    assert path.read_bytes()[: found.content_size] == b"module"
    assert is_signed(path)
    path.write_bytes(b"")
    assert read_signature(path) is None
    assert not is_signed(path)


_CHANGED = bytes((*make_module()[:-1], make_module()[-1] ^ 1))


@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        (append(make_module(), b"m"), []),
        (append(_CHANGED, b"m"), ["altered"]),
        (append(make_module() + b"more", b"m"), ["altered"]),
        (append(make_module(), b"m", length=10**6), ["signature"]),
    ],
)
def test_the_hosts_signature_is_no_damage_and_what_is_below_it_counts(
    tmp_path: Path, content: bytes, kinds: list[str]
) -> None:
    make_artifact(tmp_path)
    (tmp_path / MODULE).write_bytes(content)
    assert [found.kind for found in verify_artifact(tmp_path).findings] == kinds


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    manifest = make_artifact(tmp_path)
    with pytest.raises(NotFoundError):
        verify_signatures(tmp_path, manifest, tmp_path / "none.der")
    (tmp_path / "text.pem").write_text("no certificate")
    with pytest.raises(ProvisionError):
        verify_signatures(tmp_path, manifest, tmp_path / "text.pem")


_MINE = SigningConfig(key="/mine.key", certificate="/mine.crt")
_OTHER = SigningConfig(key="/other.key", certificate="/other.crt")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a host that has two keys."""
    assert (module_key(tmp_path), module_key(tmp_path, "other")) == (_MINE, _OTHER)
    return tmp_path


def test_only_signatures_of_the_hosts_key_count(root: Path) -> None:
    entry = root / "entry"
    manifest = make_artifact(entry)
    assert is_signed_for_host(entry, manifest, SigningConfig(), root=root)
    assert not is_signed_for_host(entry, manifest, _MINE, root=root)
    sign_modules(entry, manifest, _MINE, root=root)
    assert is_signed_for_host(entry, manifest, _MINE, root=root)
    assert not is_signed_for_host(entry, manifest, _OTHER, root=root)


def test_a_key_that_is_not_the_certificates_signs_nothing(root: Path) -> None:
    entry = root / "entry"
    manifest = make_artifact(entry)
    mixed = SigningConfig(key=_MINE.key, certificate=_OTHER.certificate)
    with pytest.raises(ProvisionError) as caught:
        sign_modules(entry, manifest, mixed, root=root)
    # What OpenSSL said.
    assert caught.value.details
    assert not is_signed(entry / MODULE)


def test_the_log_is_read_from_the_moment_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "dev/kmsg"
    path.parent.mkdir()
    path.write_text("6,1,1,-;before\n")
    with KernelLog(tmp_path) as log:
        with path.open("a") as stream:
            stream.write("3,2,5,-;demo: first; with more\n SUBSYSTEM=pci\n DEVICE=+pci\n")
            stream.write("4,3,6,-;second\n")
        assert log.lines() == ["demo: first; with more", "second"]


def test_a_log_that_would_block_ends(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    writer = os.open(tmp_path / "dev/kmsg", os.O_RDWR)
    try:
        with KernelLog(tmp_path) as log:
            assert log.lines() == []
    finally:
        os.close(writer)
