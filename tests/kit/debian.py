"""Debian trees, from the mirror that this machine's own apt is set up with."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kit.arm64 import run_foreign_programs
from kit.cache import BASES, cache_dir, cached, key_of
from kit.engine import Engine
from kit.process import CommandFailedError, run
from kit.product import base_archive

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEBIAN", "apt_sources", "debian_tree", "install", "mirror", "security_mirror", "within"]

# What every tree is made by; a part of their names in the cache.
DEBIAN = Path(__file__)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DISTROS = {"bookworm": "debian:12", "trixie": "debian:13"}

# Maintainer scripts of another architecture are emulated, beside other tests.
_WITHIN_S = 7200

# Of this machine, in a tree of another: emulated, to unpack takes most of the time that apt needs.
# With its libraries, because emulators start no programs of this machine otherwise.
_NATIVE = (
    *("lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/apt"),
    *("usr/bin/apt-get", "usr/bin/dpkg-deb", "usr/bin/tar"),
)

# One line an index; Label is empty until apt has been updated once.
_FIELDS = "$(LABEL)|$(RELEASE)|$(REPO_URI)"


def mirror() -> str:
    """The URL of the machine's Debian archive."""
    for label, release, uri in _indexes():
        if label == "Debian" or (not label and "-" not in release):
            return uri.rstrip("/")
    raise RuntimeError("apt has no source of the Debian archive; see `apt-get indextargets`")


def security_mirror() -> str:
    """The URL of the machine's archive of security updates; beside the other where apt has none."""
    for label, release, uri in _indexes():
        if label == "Debian-Security" or (not label and release.endswith("-security")):
            return uri.rstrip("/")
    return f"{mirror()}-security"


def apt_sources(suite: str, components: str = "main") -> str:
    """The sources.list of a suite with its updates: a base image names only the release."""
    places = [(mirror(), suite), (mirror(), f"{suite}-updates")]
    places.append((security_mirror(), f"{suite}-security"))
    return "".join(f"deb {uri} {name} {components}\n" for uri, name in places)


def _indexes() -> list[tuple[str, str, str]]:
    listed = run(["apt-get", "indextargets", "--format", _FIELDS, "Created-By: Packages"]).stdout
    rows = [line.split("|") for line in listed.splitlines()]
    return [(label, release, uri) for label, release, uri in rows]


def debian_tree(
    suite: str, folder: Path, *, include: Sequence[str] = (), machine: str = "x86_64"
) -> None:
    """Fill `folder`, which doesn't exist yet, with a minimal Debian and packages. Needs root.

    Of each release with a base image one tree is bootstrapped: the image's, as builds make it.
    """
    if machine == "aarch64":
        run_foreign_programs()
    elif suite not in _DISTROS:
        run(["debootstrap", "--variant=minbase", suite, folder, mirror()])
        return
    unpack = 'mkdir "$2" && tar --use-compress-program=zstd -C "$2" --numeric-owner -xpf "$1"'
    try:
        run(["sh", "-euc", unpack, "sh", _base(suite, machine), folder])
        if include:
            install(suite, folder, include, machine=machine)
    except CommandFailedError:
        run(["rm", "-rf", "--one-file-system", folder])
        raise


def _base(suite: str, machine: str) -> Path:
    """The archive of the base image's only layer, compressed."""

    def make(draft: Path) -> None:
        with Engine() as engine:
            image = base_archive(engine, _DISTROS[suite], machine=machine)
        (manifest, *_) = json.loads(run(["tar", "-xOf", image, "manifest.json"]).stdout)
        (layer,) = manifest["Layers"]
        script = 'tar -xOf "$1" "$2" | zstd -q -3 -T0 -o "$3"'
        run(["bash", "-euo", "pipefail", "-c", script, "bash", image, layer, draft])

    return cached(f"tree-{suite}-{machine}-{key_of(*BASES, DEBIAN)}.tar.zst", make)


def install(
    suite: str,
    tree: Path,
    packages: Sequence[str],
    *,
    sources: str = "",
    machine: str = "x86_64",
) -> None:
    """Install packages in a tree, where no service starts; `sources` is its sources.list.

    What one tree has downloaded, the next doesn't.
    """
    native = _NATIVE if machine != platform.machine() else ()
    apt = "apt-get -q"
    if native:
        apt += f" -o APT::Architecture={_ARCHITECTURES[machine]}"
    (tree / "etc/apt/sources.list").write_text(sources or f"deb {mirror()} {suite} main\n")
    guests = tree / "etc/resolv.conf"
    own = guests.read_bytes() if guests.exists() else b""
    shutil.copy("/etc/resolv.conf", guests)
    policy = tree / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    debs, archives = cache_dir() / f"debs-{suite}", tree / "var/cache/apt/archives"
    for path in (debs, archives):
        path.mkdir(parents=True, exist_ok=True)
    run(["cp", "--link", "--no-clobber", f"{debs}/.", "-rT", archives], check=False)
    words = " ".join(packages)
    within(tree, f"{apt} update\n{apt} -y --no-install-recommends install {words}\n", native=native)
    run(["sh", "-c", 'cp --link --no-clobber "$1"/*.deb "$2"', "sh", archives, debs], check=False)
    within(tree, "apt-get clean")
    policy.unlink()
    guests.write_bytes(own)


def within(tree: Path, script: str, *, native: Sequence[str] = ()) -> None:
    """Run a shell script in the tree; whatever it starts ends with it.

    In PID and mount namespaces of its own: neither a daemon that a package starts nor a mount
    outlives it. `native` are files and folders of this machine that cover the tree's meanwhile.
    """
    made = [tree / name for name in native if not (tree / name).exists()]
    for folder in made:
        folder.mkdir()
    outer = (
        'tree=$0 script=$1; shift; for file; do mount --bind "/$file" "$tree/$file" || exit; done;'
        ' mount -t proc proc "$tree/proc" && mount -t devtmpfs dev "$tree/dev" &&'
        ' exec chroot "$tree" env --unset=TMPDIR sh -euc "$script"'
    )
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
    env = {
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    run([*namespaces, "sh", "-c", outer, tree, script, *native], env=env, timeout_s=_WITHIN_S)
    for folder in made:
        folder.rmdir()
