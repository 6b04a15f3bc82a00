"""The signature at a module's end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.artifact import MODULE, make_artifact, make_module
from provision.errors import NotFoundError, ProvisionError
from provision.kmod.module_signatures import is_signed, verify_signatures
from provision.kmod.modules import (
    MAGIC,
    append_signature,
    find_signature,
    read_signature,
)
from provision.kmod.verify import verify_artifact


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
