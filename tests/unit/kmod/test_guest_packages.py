"""What a virtual machine boots: a kernel's packages, and the program within its image."""

from __future__ import annotations

import gzip
import lzma
import struct
import subprocess

import pytest

from kit.probe import installed_program
from provision.build.resolve import resolve_pin
from provision.build.workspace import Settings
from provision.kmod.guest_packages import boot_files, distro_packages, program_of
from unit.build.debian_host import KERNEL, REQUEST
from unit.build.debian_host import settings as settings  # noqa: PLC0414 - a fixture
from unit.engine.fake_engine import using
from unit.fake_archive import AptEngine, samples

# A program with the ELF note of PVH's entry.
_PROGRAM = b"\x7fELF" + bytes(60) + struct.pack("<III4s", 4, 8, 18, b"Xen") + bytes(3000)
_SIZE = struct.pack("<I", len(_PROGRAM))


def _zstd(data: bytes) -> bytes:
    words = [str(installed_program("zstd")), "-c"]
    return subprocess.run(words, input=data, capture_output=True, check=True).stdout


def _image(payload: bytes, *, sectors: int = 3, magic: bytes = b"HdrS") -> bytes:
    """Such an image as Linux's boot protocol describes it."""
    head = bytearray((max(sectors, 1) + 1) * 512 if sectors else 5 * 512)
    head[0x1F1] = sectors
    head[0x202:0x206] = magic
    struct.pack_into("<II", head, 0x248, 100, len(payload))
    return bytes(head) + bytes(100) + payload + b"what follows"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(gzip.compress(_PROGRAM), id="gzip"),
        pytest.param(lzma.compress(_PROGRAM, check=lzma.CHECK_CRC32) + _SIZE, id="xz"),
        pytest.param(_zstd(_PROGRAM) + _SIZE, id="zstd"),
    ],
)
@pytest.mark.parametrize("sectors", [0, 3, 39])
def test_the_program_in_an_image_is_found(payload: bytes, sectors: int) -> None:
    assert program_of(_image(payload, sectors=sectors)) == _PROGRAM


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(b"", id="empty"),
        pytest.param(_image(gzip.compress(_PROGRAM), magic=b"ARMd"), id="another_architecture"),
        pytest.param(_image(b"\x02\x21\x4c\x18" + _PROGRAM), id="a_compression_unknown_here"),
        pytest.param(_image(gzip.compress(_PROGRAM[:-1] * 9)[:40]), id="cut_off"),
        pytest.param(_image(lzma.compress(_PROGRAM)[:20] + b"damaged"), id="damaged"),
        pytest.param(_image(_zstd(_PROGRAM)[:-9] + _SIZE), id="damaged_zstd"),
        pytest.param(_image(gzip.compress(b"\x7fELF" + bytes(999))), id="without_the_entry"),
        pytest.param(_image(gzip.compress(_PROGRAM))[:0x24A], id="a_head_alone"),
    ],
)
def test_without_one_the_image_is_started(image: bytes) -> None:
    assert program_of(image) is None


def test_a_kernel_that_is_not_installed_comes_from_its_packages(settings: Settings) -> None:
    engine = AptEngine(samples())
    host = using(settings, engine)
    pin = resolve_pin(host, REQUEST)
    engine.solved.clear()
    for _ in range(2):
        with boot_files(host, pin, KERNEL, ["videodev", "mc"]) as files:
            words = files.archive.read().decode().split("\0")
        assert words[:3] == [KERNEL, "videodev mc", "sh"]
    # What is unpacked is kept, and needs no network.
    (given,) = engine.unpacked
    assert [request.network for request in engine.requests].count("none") == 1
    asked = engine.solved[0]["script.sh"].decode()
    assert f"linux-image-{KERNEL}" in asked
    (package,) = [name for name in given if name.endswith(".deb")]
    assert given[package].read_bytes() == package.encode()
    # Other programs of the same distro: one that runs the guest.
    assert list(distro_packages(host, pin, ("qemu-system-x86",))) == [package]
    assert "qemu-system-x86" in engine.solved[-1]["script.sh"].decode()
