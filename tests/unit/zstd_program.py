"""A stand-in for Debian's zstd, made from its manual page, which notes what it was given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.files import write

_SCRIPT = """\
#!/bin/sh
awk '/^Max file size/ {{ print $4 }}' /proc/self/limits >'{folder}/called'
echo "$*" >>'{folder}/called'
while [ "$1" != -o ]; do shift; done
cmp -s "$3" '{folder}/packed' || exit 9
cat '{folder}/content' >"$2"
. '{folder}/end'
"""


@dataclass(frozen=True, slots=True)
class Zstd:
    """A zstd on PATH that knows one file, and how it ends."""

    folder: Path

    @classmethod
    def put(
        cls, folder: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes, content: bytes
    ) -> Zstd:
        """Put it on PATH; it ends well."""
        write(folder / "bin/zstd", _SCRIPT.format(folder=folder), 0o755)
        write(folder / "packed", packed)
        write(folder / "content", content)
        monkeypatch.setenv("PATH", f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        made = cls(folder)
        made.end(0)
        return made

    def end(self, status: int, said: str = "") -> None:
        """Let it end so from now on; a negative status is a signal."""
        last = f"kill -{-status} $$" if status < 0 else f"exit {status}"
        write(self.folder / "end", f"echo '{said}' >&2\n{last}\n")

    @property
    def called(self) -> tuple[int, str]:
        """The size of the largest file that it might write, and its words."""
        size, words = (self.folder / "called").read_text().splitlines()
        return int(size), words
