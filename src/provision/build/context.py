"""The rendered context: what a container engine gets to build from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.files import write_atomic


@dataclass(frozen=True, slots=True)
class RenderedContext:
    """A build context.

    Attributes:
        files: Contents by relative path, sorted. All are plain files of mode 0644: the Dockerfile
            names the interpreter of those that run.
        downloads: Files that are too large to be rendered: sha256 by relative path.
        parts: Files that are made from a .run: which part of it, by relative path.
    """

    files: Mapping[str, bytes]
    downloads: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def dockerfile(self) -> str:
        """The Dockerfile's text."""
        return self.files["Dockerfile"].decode()

    def write(self, directory: Path) -> None:
        """Write the rendered files below a folder; files of other names there are left alone.

        Raises:
            OSError: The folder can't be written.
        """
        for name, content in self.files.items():
            write_atomic(directory / name, content)
