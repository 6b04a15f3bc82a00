"""A Python that would need something of the host is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.errors import ProvisionError
from provision.export.host_python.make import check_tree
from unit.export.host_python.elf_files import elf_file

_PREFIX = "/opt/x/python"
_LOADER = f"{_PREFIX}/lib/ld-linux.so.2"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A Python that has all it needs."""
    files = {
        "bin/python3.11": elf_file("libc.so.6", loader=_LOADER, rpath=f"{_PREFIX}/lib"),
        "lib/ld-linux.so.2": elf_file(),
        "lib/libc.so.6": elf_file("ld-linux.so.2", loader="/lib64/ld-linux.so.2"),
        "lib/python3.11/lib-dynload/_ssl.so": elf_file("libc.so.6"),
        "lib/python3.11/os.py": b"pass\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "bin/python3").symlink_to("python3.11")
    return tmp_path


def test_a_whole_tree_passes(tree: Path) -> None:
    check_tree(tree, _PREFIX)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "lib/python3.11/lib-dynload/_ssl.so",
            elf_file("libssl.so.3"),
            "lib/python3.11/lib-dynload/_ssl.so: needs libssl.so.3, which is not there",
        ),
        (
            "bin/python3.11",
            elf_file(loader="/lib64/ld-linux.so.2", rpath=f"{_PREFIX}/lib"),
            "bin/python3.11: is started by /lib64/ld-linux.so.2",
        ),
        (
            "bin/python3.11",
            elf_file(loader=f"{_PREFIX}/lib/ld-other.so", rpath=f"{_PREFIX}/lib"),
            f"bin/python3.11: is started by {_PREFIX}/lib/ld-other.so",
        ),
        (
            "bin/python3.11",
            elf_file(loader=_LOADER, runpath=f"{_PREFIX}/lib"),
            f"bin/python3.11: looks in None, not in {_PREFIX}/lib",
        ),
        ("lib/libc.so.6", elf_file(runpath="/usr/lib"), "lib/libc.so.6: looks in /usr/lib"),
    ],
)
def test_what_is_missing_is_said(tree: Path, name: str, content: bytes, said: str) -> None:
    (tree / name).write_bytes(content)
    with pytest.raises(ProvisionError, match="would need something of the host") as caught:
        check_tree(tree, _PREFIX)
    assert said in (caught.value.details or "").splitlines()


def test_a_tree_without_python_is_refused(tree: Path) -> None:
    (tree / "bin/python3").unlink()
    with pytest.raises(ProvisionError, match="holds no '/opt/x/python/bin/python3'"):
        check_tree(tree, _PREFIX)
