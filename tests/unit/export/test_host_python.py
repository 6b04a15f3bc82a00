"""The same tree gives the same archive, which leaves folders above it alone."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from provision.export.host_python import pack_tree


def _tree(folder: Path, *, time: int) -> Path:
    for name in ("lib/z.py", "lib/a.py", "bin/python3.11"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (time, time))
    (folder / "bin/python3.11").chmod(0o755)
    (folder / "bin/python3").symlink_to("python3.11")
    return folder


def test_the_same_tree_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, time in (("one", 1), ("other", 1_000_000)):
        pack_tree(_tree(tmp_path / name, time=time), "/opt/x/python", tmp_path / f"{name}.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "other.tar.gz").read_bytes()
    assert (tmp_path / "one.tar.gz").stat().st_mode & 0o777 == 0o644


def test_all_lies_below_the_prefix_and_belongs_to_root(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree", time=5)
    (tree / "lib/hard.py").hardlink_to(tree / "lib/a.py")
    pack_tree(tree, "/opt/x/python", tmp_path / "made.tar.gz")
    with tarfile.open(tmp_path / "made.tar.gz") as archive:
        members = archive.getmembers()
        hard = archive.extractfile("opt/x/python/lib/hard.py")
        assert hard is not None
        assert hard.read() == b"lib/a.py"
    # 'opt' itself is not in it: on Fedora CoreOS it is a link, which tar would replace.
    assert [member.name for member in members][:3] == [
        "opt/x/python",
        "opt/x/python/bin",
        "opt/x/python/bin/python3",
    ]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    modes = {member.name: member.mode for member in members}
    assert modes["opt/x/python/bin/python3.11"] == 0o755


def test_a_failure_leaves_no_draft(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree", time=5)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "made.tar.gz").mkdir()
    try:
        pack_tree(tree, "/opt/x/python", folder / "made.tar.gz")
    except OSError:
        assert [path.name for path in folder.iterdir()] == ["made.tar.gz"]
    else:
        raise AssertionError("a folder can't be replaced")
