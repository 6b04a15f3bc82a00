"""A release, made from the checkout, and the bare distros that it is installed on."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from kit.arm64 import run_foreign_programs
from kit.cache import REPOSITORY, cached, key_of
from kit.debian import DEBIAN, debian_tree
from kit.engine import Engine
from kit.files import remove_tree
from kit.openpgp import Key, gnupg_home
from kit.probe import need, need_programs
from kit.process import Completed, run
from kit.product import DECORATOR, DISTRO, IMAGE, base_archive
from shipping import image
from shipping.release import make_debian
from shipping.source import read_source

EARLIER = "0.0.9"


def bare(suite: str) -> Path:
    """The tree of the smallest Debian of a suite; copy it before use."""
    return cached(f"bare-{suite}-{key_of(DEBIAN)}", lambda draft: debian_tree(suite, draft))


def shipping(
    *words: str | Path,
    engine: Engine | None = None,
    mask: int = 0o022,
) -> Completed:
    """Run `python -m shipping`, with other permissions and in another time zone by the mask."""
    path = f"{REPOSITORY / 'tests'}:{REPOSITORY / 'release'}"
    old = os.umask(mask)
    try:
        argv = [sys.executable, "-m", "shipping", *words]
        address = engine.host if engine else "unix:///nowhere.sock"
        variables = {"PYTHONPATH": path, "TZ": f"UTC{mask % 7}", "DOCKER_HOST": address}
        return run(argv, env=variables, cwd=Path("/"))
    finally:
        os.umask(old)


def publishing(
    *words: str | Path, env: Mapping[str, str] | None = None, check: bool = True
) -> Completed:
    """Run `python -m shipping.publish` by the distro's Python, which has none of our packages."""
    path = f"{REPOSITORY / 'release'}:{REPOSITORY / 'src'}"
    argv = ["/usr/bin/python3", "-m", "shipping.publish", *words]
    return run(argv, env={"PYTHONPATH": path, **(env or {})}, cwd=Path("/"), check=check)


def make_debian_packages(folder: Path, *, machine: str | None = None) -> list[Path]:
    """Make the two packages that a Debian host needs; for another machine, cross-compiled."""
    need_programs("dpkg-deb", "git")
    if machine is None:
        need(DECORATOR.exists(), str(DECORATOR), "make build")
    else:
        run([REPOSITORY / "hooks/build.sh", "build"], env={"ARCH": machine}, timeout_s=1200)
    make_debian(read_source(), folder, machine)
    return [next(folder.glob(f"{name}_*.deb")) for name in ("oci-decorator", "provision")]


def compiled_modules(package: Path, folder: Path) -> Path:
    """What this machine's `py3compile` makes of the package `provision`, as an archive.

    Unpacked before the package is installed, it spares an emulated host a minute.
    """
    tree = folder / "compiled"
    run(["dpkg-deb", "--extract", package, tree])
    modules = "usr/lib/provision"
    compileall = ["/usr/bin/python3", "-m", "compileall", "-q"]
    run([*compileall, "-s", tree, "-p", "/", tree / modules])
    archive = folder / "compiled.tar"
    made = [path.relative_to(tree) for path in (tree / modules).rglob("__pycache__")]
    run(["tar", "-C", tree, "-cf", archive, *made])
    remove_tree(tree)
    return archive


def agent_image(engine: Engine, folder: Path, *, machine: str = "x86_64") -> Path:
    """Make the agent's image on the engine's base image; its archive, in a folder."""
    base = IMAGE
    if machine == platform.machine():
        make_debian_packages(folder)
    else:
        run_foreign_programs()
        make_debian_packages(folder, machine=machine)
        archive = base_archive(engine, DISTRO, machine=machine)
        engine.docker("load", "--quiet", "--input", archive)
        base = f"arm64v8/{IMAGE}"
    with patch.dict(os.environ, DOCKER_HOST=engine.host):
        missing = image.make(read_source(), folder, "docker", base, machine)
    assert missing is None, missing
    (made,) = folder.glob(f"*{image.SUFFIX}")
    return made


def earlier(package: Path, folder: Path) -> Path:
    """A package of Debian as an earlier release would have it."""
    tree = folder / package.stem
    run(["dpkg-deb", "--raw-extract", package, tree])
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("(?m)^Version: .*", f"Version: {EARLIER}", control.read_text()))
    made = folder / f"earlier_{package.name}"
    run(["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, made])
    return made


def make_release(folder: Path, engine: Engine, url: str) -> Path:
    """Make a signed release below `folder`, which is served at `url`.

    It is for the architectures that the hook was built for. The agent's image is made on the
    engine's base image.
    """
    need_programs("dpkg-deb", "rpmbuild", "git", "gpg", "apt-ftparchive", "createrepo_c")
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    made = folder / "dist"
    shipping("--output", made, "--base", IMAGE, engine=engine)
    with gnupg_home() as home:
        key = Key.make(home, "Releaser")
        words = ("--key", "Releaser", "--url", repository_of(made, url))
        publishing("--output", made, *words, env={"GNUPGHOME": str(key.home)})
    return made


def repository_of(release: Path, url: str) -> str:
    """Address of a release's repositories, where the folder around it is served."""
    return f"{url}/{release.name}/repository"
