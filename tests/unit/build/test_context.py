"""The context on disk."""

from __future__ import annotations

from pathlib import Path

from provision.build.dockerfile import RenderedContext


def test_write_makes_the_files(tmp_path: Path) -> None:
    context = RenderedContext({"Dockerfile": b"FROM scratch\n", "patches/a.patch": b"x"})
    context.write(tmp_path / "out")
    assert (tmp_path / "out/Dockerfile").read_text() == context.dockerfile
    assert (tmp_path / "out/patches/a.patch").read_bytes() == b"x"
    assert (tmp_path / "out/Dockerfile").stat().st_mode & 0o777 == 0o644
