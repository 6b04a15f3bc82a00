"""OCI bundles of the base image, started by runc or crun themselves, without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.podman import without_hybrid_cgroups
from kit.process import Completed, run


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle; its root may be shared with others, and is the image's own to write to."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def state(self) -> Path:
        """What the low-level runtime keeps about its containers."""
        return self.folder / "state"

    def spec(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.config.read_text())
        return document

    def write(
        self,
        *words: str,
        env: tuple[str, ...] = (),
        root: Path | None = None,
        change: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Write config.json: runc's own example with these words, variables and root.

        `change` gets the document before it is written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.unlink(missing_ok=True)
        run(["runc", "spec"], cwd=self.folder)
        spec = self.spec()
        spec["process"] |= {"terminal": False, "args": list(words)}
        spec["process"]["env"] += env
        if root is not None:
            spec["root"]["path"] = str(root)
        spec["root"]["readonly"] = False
        if change is not None:
            change(spec)
        self.config.write_text(json.dumps(spec))

    def start(
        self,
        runtime: Path | str,
        *,
        name: str = "probe",
        env: dict[str, str] | None = None,
        low_level: str = "runc",
        check: bool = True,
    ) -> Completed:
        """`RUNTIME run` to the container's end."""
        argv = [runtime, "--root", self.state, "run", "--bundle", self.folder, name]
        wrapped = without_hybrid_cgroups(argv) if low_level == "crun" else argv
        return run(wrapped, env=env, check=check)


@contextmanager
def overlaid(lower: Path, folder: Path) -> Iterator[Path]:
    """The tree `lower` with a layer on top that takes what is written, as engines make roots.

    `folder` holds the layer (`upper`), and is where the mount is until the end.
    """
    parts = {name: folder / name for name in ("upper", "work", "merged")}
    for part in parts.values():
        part.mkdir(parents=True)
    options = f"lowerdir={lower},upperdir={parts['upper']},workdir={parts['work']}"
    run(["mount", "-t", "overlay", "-o", options, "overlay", parts["merged"]])
    try:
        yield parts["merged"]
    finally:
        run(["umount", "--lazy", parts["merged"]])
