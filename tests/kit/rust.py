"""The Rust half, with whatever toolchain there is: `python -m kit.rust build|check|test|msrv`.

In this order: the machine's cargo where it is new enough for hooks/Cargo.toml; Debian's own, where
that is new enough (Debian 13) and apt may install it; a container from a debootstrapped Debian 13,
whose rustc is the oldest that the crate promises to build with. `msrv` always takes the container.

With musl, which starts faster, where the toolchain has that target or rustup can add it; else with
glibc. Both are static. `docs/decisions/0011` has the figures.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from subprocess import TimeoutExpired

from kit.cache import REPOSITORY, cache_dir, cached
from kit.debian import debootstrap
from kit.podman import Podman
from kit.probe import find_program, in_ci, is_root
from kit.process import CommandFailedError, run, stream

__all__ = ["Container", "Machine", "Toolchain", "minimum_version", "pick_toolchain", "target_words"]

HOOKS = REPOSITORY / "hooks"
_SUITE = "trixie"
_PACKAGES = ("cargo", "rustc", "rustfmt", "rust-clippy", "gcc", "libc6-dev", "ca-certificates")
# How this machine reaches the network; a container has to be told.
_NETWORK = re.compile(r"(?i)(https?|all|no)_proxy|SSL_CERT_FILE|CARGO_(HTTP|NET|REGISTR)\w*")
# The crate's tests make namespaces and mounts of their own, as the hook does on a host.
_RIGHTS = (
    "--cap-add=SYS_ADMIN",
    "--security-opt=seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
)
_RUSTUP_S = 120
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

Version = tuple[int, ...]


def minimum_version() -> Version:
    """`rust-version` of hooks/Cargo.toml."""
    manifest = tomllib.loads((HOOKS / "Cargo.toml").read_text())
    return _version(manifest["package"]["rust-version"])


def _version(text: str) -> Version:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True)
class Machine:
    """The cargo on this machine."""

    cargo: Path

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return f"the machine's {run([self.cargo, '--version'], cwd=HOOKS).stdout.strip()}"

    @property
    def target(self) -> Path:
        """The folder that cargo builds into."""
        return HOOKS / "target"

    @cached_property
    def triple(self) -> str | None:
        """The target to build for; None: the compiler's own."""
        version = run([self._beside("rustc"), "-vV"], cwd=HOOKS).stdout
        host = re.search(r"^host: (\S+)-gnu$", version, re.MULTILINE)
        if host is None:
            return None
        triple = f"{host[1]}-musl"
        return triple if self._has_target(triple) or self._add_target(triple) else None

    def _has_target(self, triple: str) -> bool:
        words: list[str | Path] = [
            self._beside("rustc"),
            "--print",
            "target-libdir",
            "--target",
            triple,
        ]
        done = run(words, cwd=HOOKS, check=False)
        return done.returncode == 0 and any(Path(done.stdout.strip()).glob("libstd-*.rlib"))

    def _add_target(self, triple: str) -> bool:
        rustup = self._beside("rustup")
        if not rustup.exists():
            return False
        _say(f"adding the target {triple} (rustup)")
        words: list[str | Path] = [rustup, "target", "add", triple]
        try:
            run(words, cwd=HOOKS, timeout_s=_RUSTUP_S)
        except (CommandFailedError, TimeoutExpired) as error:
            _say(f"going on without it: {error}")
            return False
        return True

    def _beside(self, name: str) -> Path:
        return self.cargo.parent / name

    def cargo_run(self, *words: str) -> int:
        """Run cargo in hooks/, its output on ours; the exit status."""
        return stream([self.cargo, *words], cwd=HOOKS, env=self._path())

    def cargo_output(self, *words: str) -> str:
        """Run cargo in hooks/; what it prints on standard output."""
        return run([self.cargo, *words], cwd=HOOKS, env=self._path(), live=True).stdout

    def has(self, subcommand: str) -> bool:
        """Whether `cargo SUBCOMMAND` is there (rustup's minimal profile lacks fmt and clippy)."""
        done = run([self.cargo, subcommand, "--version"], cwd=HOOKS, check=False)
        return done.returncode == 0

    def _path(self) -> dict[str, str]:
        # cargo finds rustc on PATH, and rustup's is not always there.
        return {"PATH": f"{self.cargo.parent}:{os.environ.get('PATH', '')}"}


@dataclass(frozen=True, slots=True)
class Container:
    """Debian 13's cargo in a container without an engine: podman straight on a tree."""

    tree: Path

    @property
    def triple(self) -> None:
        """The compiler's own target: Debian has no other."""

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return f"Debian {_SUITE}'s cargo in a container"

    @property
    def target(self) -> Path:
        """The folder that cargo builds into: apart from the machine's, whose rustc is another."""
        return REPOSITORY / "build/cargo-container"

    def cargo_run(self, *words: str) -> int:
        """Run cargo in hooks/, its output on ours; the exit status."""
        with Podman() as podman:
            return stream(self._command(podman, *words), env=podman.variables())

    def cargo_output(self, *words: str) -> str:
        """Run cargo in hooks/; what it prints on standard output."""
        with Podman() as podman:
            argv = self._command(podman, *words)
            return run(argv, env=podman.variables(), live=True).stdout

    def has(self, _subcommand: str) -> bool:
        """Everything is installed in the tree."""
        return True

    def _command(self, podman: Podman, *words: str) -> list[str | Path]:
        home = cache_dir() / "cargo-home"
        for folder in (home, self.target):
            folder.mkdir(parents=True, exist_ok=True)
        settings = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "config.toml"
        volumes = [f"{REPOSITORY}:{REPOSITORY}", f"{home}:{home}"]
        if _CA_BUNDLE.exists():
            volumes.append(f"{_CA_BUNDLE}:{_CA_BUNDLE}:ro")
        if settings.exists():
            volumes.append(f"{settings}:{home}/config.toml:ro")
        env = {name: value for name, value in os.environ.items() if _NETWORK.fullmatch(name)}
        env |= {"CARGO_HOME": str(home), "CARGO_TARGET_DIR": str(self.target)}
        flags = ["--network=host", f"--workdir={HOOKS}", *_RIGHTS]
        flags += [f"--volume={volume}" for volume in volumes]
        flags += [f"--env={name}={value}" for name, value in env.items()]
        tree = ["--rootfs", f"{self.tree}:O"]
        return [*podman.command(), "run", "--rm", *flags, *tree, "cargo", *words]


Toolchain = Machine | Container


def pick_toolchain() -> Toolchain:
    """The first of the three that there is.

    Raises:
        RuntimeError: none, because a container needs root.
    """
    return _machine() or _from_apt() or container()


def container() -> Container:
    """The container's toolchain; makes its tree where the cache hasn't got it."""
    if not is_root():
        wanted = ".".join(map(str, minimum_version()))
        raise RuntimeError(f"no cargo of {wanted} or newer, and a container to build in needs root")

    def make(draft: Path) -> None:
        _say(f"making a Debian {_SUITE} tree with cargo (debootstrap, some minutes, once)")
        debootstrap(_SUITE, draft, include=_PACKAGES)

    return Container(cached(f"rust-{_SUITE}", make))


def _machine() -> Machine | None:
    installed = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "bin/cargo"
    for cargo in (find_program("cargo"), installed):
        if cargo is None or not cargo.exists():
            continue
        rustc = cargo.parent / "rustc"
        if not rustc.exists():
            continue
        done = run([rustc, "--version"], cwd=HOOKS, check=False)
        if done.returncode == 0 and _version(done.stdout) >= minimum_version():
            return Machine(cargo)
    return None


def _from_apt() -> Machine | None:
    if not is_root() or find_program("apt-cache") is None:
        return None
    policy = run(["apt-cache", "policy", "rustc"], check=False).stdout
    candidate = re.search(r"Candidate: (\S+)", policy)
    if candidate is None or _version(candidate[1]) < minimum_version():
        return None
    setup = REPOSITORY / "tests/kit/setup.sh"
    run([setup, "install", "cargo", "rustc", "rustfmt", "rust-clippy"])
    return _machine()


def target_words(toolchain: Toolchain) -> tuple[str, ...]:
    """The words by which cargo builds for the target that is shipped."""
    return () if toolchain.triple is None else ("--target", toolchain.triple)


def build(toolchain: Toolchain) -> int:
    """The release binary, as build/oci-decorator and its other name."""
    status = toolchain.cargo_run("build", "--release", "--locked", *target_words(toolchain))
    if status != 0:
        return status
    folder = REPOSITORY / "build"
    folder.mkdir(exist_ok=True)
    draft = folder / ".oci-decorator"
    shutil.copy2(toolchain.target / (toolchain.triple or "") / "release/oci-decorator", draft)
    draft.rename(folder / "oci-decorator")
    runtime = folder / "oci-decorator-runtime"
    runtime.unlink(missing_ok=True)
    runtime.symlink_to("oci-decorator")
    return 0


def check(toolchain: Toolchain) -> int:
    """Format and lints."""
    status = 0
    for subcommand, words in (
        ("fmt", ("--check",)),
        ("clippy", ("--all-targets", "--locked", "--", "-D", "warnings")),
    ):
        if toolchain.has(subcommand):
            status |= toolchain.cargo_run(subcommand, *words)
        elif in_ci():
            _say(f"error: cargo {subcommand} is missing, and CI=true")
            status |= 1
        else:
            _say(f"skipped: cargo {subcommand} is missing (rustup component add {subcommand})")
    return status


def test(toolchain: Toolchain) -> int:
    """The crate's own tests."""
    return toolchain.cargo_run("test", "--locked", *target_words(toolchain))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> int:
    """Run one verb; its exit status."""
    verbs = {"build": build, "check": check, "test": test, "msrv": test}
    parser = argparse.ArgumentParser(prog="python -m kit.rust", description=__doc__)
    parser.add_argument("verb", choices=sorted(verbs))
    verb = parser.parse_args().verb
    toolchain = container() if verb == "msrv" else pick_toolchain()
    _say(f"cargo {verb} with {toolchain.name}")
    return verbs[verb](toolchain)


if __name__ == "__main__":
    sys.exit(main())
