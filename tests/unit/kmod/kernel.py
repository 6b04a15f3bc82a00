"""A kernel made of files, by hand; the real one and kmod are in the guests of tests/vm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provision.kmod import load, unload
from provision.manifest import HostNeeds, Manifest, Module
from provision.run import LIMIT_S, Completed
from unit.kmod.artifact import KERNEL, make_artifact, make_module, write, write_manifest


@dataclass
class Kernel:
    """A running kernel below a root.

    Attributes:
        loaded: Holders of each loaded module.
        references: Users of a module besides its holders.
        opened: Modules that someone opens after they were looked at.
        refused: What modprobe says about a module that the kernel refuses, and what it logs.
        calls: The programs that were run.
    """

    root: Path
    loaded: dict[str, list[str]] = field(default_factory=dict)
    references: dict[str, int] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        write(self.root / "proc/sys/kernel/osrelease", f"{KERNEL}\n".encode())
        write(self.root / "dev/kmsg", b"")
        self.publish()

    def have(self, name: str, *, uses: Sequence[str] = (), version: str | None = None) -> None:
        """Load a module that uses others."""
        self.loaded[name] = []
        for other in uses:
            self.loaded.setdefault(other, []).append(name)
        if version:
            write(self.root / f"sys/module/{name}/version", f"{version}\n".encode())
        self.publish()

    def publish(self) -> None:
        """Write /proc/modules."""
        lines = [
            f"{name} 16384 {len(users) + self.references.get(name, 0)}"
            f" {''.join(f'{user},' for user in users) or '-'} Live 0x0000000000000000 (OE)\n"
            for name, users in self.loaded.items()
        ]
        write(self.root / "proc/modules", "".join(lines).encode())

    def run(
        self, argv: Sequence[str | Path], *, why: str, check: bool = True, timeout: float = LIMIT_S
    ) -> Completed:
        """Stand in for ``provision.run.run``: modprobe and rmmod."""
        del why, check
        self.limits.append(timeout)
        words = [str(word) for word in argv]
        self.calls.append(words)
        said = self._modprobe(words) if words[0] == "modprobe" else self._rmmod(words[1])
        return Completed(tuple(words), 1 if said else 0, "", said)

    def _modprobe(self, words: list[str]) -> str:
        names = words[words.index("-a") + 1 :] if "-a" in words else [words[words.index("-S") + 2]]
        for name in names:
            if name in self.refused:
                said, log = self.refused[name]
                with (self.root / "dev/kmsg").open("a") as stream:
                    stream.write(f"6,1,1,-;{log}\n SUBSYSTEM=module\n")
                return f"modprobe: ERROR: could not insert '{name}': {said}\n"
            self.have(name)
        return ""

    def _rmmod(self, name: str) -> str:
        if self.references.get(name) or self.loaded[name] or name in self.opened:
            return f"rmmod: ERROR: Module {name} is in use\n"
        del self.loaded[name]
        for users in self.loaded.values():
            if name in users:
                users.remove(name)
        self.publish()
        return ""


def start(root: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Start a kernel; programs that are run from now on change it."""
    kernel = Kernel(root)
    monkeypatch.setattr(load, "run", kernel.run)
    monkeypatch.setattr(unload, "run", kernel.run)
    return kernel


def make_stack(folder: Path, host: HostNeeds | None = None) -> Manifest:
    """An artifact of three modules: ``core``, and ``net`` and ``extra``, which need it."""
    manifest = make_artifact(folder)
    modules = []
    for name, depends in {"net": ("core",), "extra": ("core", "ib"), "core": ("videodev",)}.items():
        path = f"lib/modules/{KERNEL}/{name}.ko"
        write(folder / path, make_module())
        first = manifest.modules[0]
        modules.append(
            Module(
                name=name,
                path=path,
                sha256=first.sha256,
                size=first.size,
                vermagic=first.vermagic,
                depends=depends,
            )
        )
    (folder / manifest.modules[0].path).unlink()
    dep = "net.ko: core.ko\nextra.ko: core.ko\ncore.ko:\n"
    write(folder / f"lib/modules/{KERNEL}/modules.dep", dep.encode())
    manifest = manifest.model_copy(update={"modules": tuple(modules), "host": host or HostNeeds()})
    write_manifest(folder, manifest)
    return manifest
