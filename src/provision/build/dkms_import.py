"""Writes the driver.toml of a source that has a dkms.conf: its name, its version and its origin.

What the dkms.conf says of the build is not looked at: ``templates/dkms/dkms.bash`` does it, in the
world of each kernel that is built for.
"""

from __future__ import annotations

import json
import re
import shlex
import tarfile
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from provision.build.dockerfile import fill_shipped
from provision.build.request import choose_distro
from provision.build.unpack_source import UnpackError, unpack
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.distros.distro import archive_of, uses_archive
from provision.documents import parse_json
from provision.errors import NotFoundError, ProvisionError, UsageError, redact
from provision.fetch import download_any
from provision.files import local_path, scratch, sha256_file, write_atomic
from provision.pin import ArchiveSource, GitSource, is_address, is_repository
from provision.progress import Note, report
from provision.run import find_program, run

# A source has some MB; the kernel's own graphics drivers have 300.
MAX_BYTES = 512 << 20
_LONGEST_CONF = 1 << 20
_CONF = "dkms.conf"
_WORD = r"[A-Za-z0-9][A-Za-z0-9.+~:_-]*"
# NAME="word", as nearly every dkms.conf has it; a template or a computed value is none.
_SETS = re.compile(
    rf"""^[ \t]*PACKAGE_(NAME|VERSION)(?:\[0\])?=(["']?)({_WORD})\2[ \t\r]*(?:[;#].*)?$""", re.M
)
_FOLDER = re.compile(rf"({_WORD})-([0-9][A-Za-z0-9.+~:_]*)")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+-dkms")
# In a recipe until its author corrects it: SPDX's word for "unknown".
UNKNOWN_LICENCE = "NOASSERTION"
_NO_SOURCE = ArchiveSource(url="https://vendor.example/source.tar.gz", sha256="0" * 64)


class Origin(NamedTuple):
    """Where a source with a dkms.conf comes from."""

    name: str
    version: str = ""
    # The distro's package; None: releases of the vendor.
    package: str | None = None
    components: tuple[str, ...] = ()
    release: ArchiveSource | GitSource = _NO_SOURCE
    homepage: str = "unknown"
    # Folders of the repository that other repositories fill.
    submodules: tuple[str, ...] = ()


class Draft(NamedTuple):
    """A recipe, and what its author has to add."""

    name: str
    version: str | None
    text: str
    unknown: tuple[str, ...]


def import_dkms(settings: Settings, what: str) -> Draft:
    """Write the recipe of a driver whose source has a dkms.conf.

    Args:
        what: A package of a distro, a folder, an archive or ``.deb``, or the address of one.
    """
    path = Path(what).resolve()
    with scratch(settings.state, "import") as draft:
        if re.match(r"https?://", what):
            return draft_recipe(_downloaded(what, draft))
        if path.is_dir():
            return draft_recipe(_folder(path, draft))
        if path.is_file():
            return draft_recipe(_archive(path, what, path.as_uri(), sha256_file(path), draft))
    if _PACKAGE.fullmatch(what):
        name = what.removesuffix("-dkms")
        return draft_recipe(Origin(name, package=what, components=_components(settings)))
    raise NotFoundError(
        f"There is no folder or file '{what}', and it is neither an address nor the name of a"
        " package.",
        resolution="Give a package (v4l2loopback-dkms), a folder, an archive or its address.",
    )


def _components(settings: Settings) -> tuple[str, ...]:
    """Return the components of the host's archive: which of them has a package is not looked up."""
    distro = choose_distro(settings, None)
    components = archive_of(distro).components if uses_archive(distro) else ()
    return tuple(sorted({*components} - {"main"}))


def draft_recipe(origin: Origin) -> Draft:
    """Write the recipe of a driver that brings a dkms.conf."""
    name = re.sub(r"[^a-z0-9._-]+", "-", origin.name.lower()).strip("-._")
    if not name:
        raise UsageError(
            f"No driver can be called '{origin.name}'.",
            resolution="Give the package a name with letters or digits in its dkms.conf.",
        )
    text = fill_shipped(
        "drivers/driver.toml.j2",
        name=name,
        origin=origin,
        licence=UNKNOWN_LICENCE,
        flag="OCI_" + re.sub(r"[^A-Z0-9]+", "_", name.upper()),
    )
    # The text must be readable; mistakes name this command's input.
    parse_json(json.dumps(tomllib.loads(text)), Recipe, name=f"recipe of {origin.name}")
    return Draft(name, origin.version or None, text, tuple(_unknown(origin)))


def _unknown(origin: Origin) -> Iterator[str]:
    yield "licences: the licences of the modules, as SPDX expressions."
    yield "container.features: the device nodes that the modules make, below /dev, and features."
    yield "hardware.pci, host.conflicts: the devices, and the kernel's own modules for them."
    yield "vendor, summary, homepage: what people read."
    if origin.package is not None:
        yield "source.components: leave those that the package is not in."
    elif "/vendor.example/" in origin.release.url:
        yield "source.releases: where others can download the source."
    elif local_path(origin.release.url) is not None:
        yield "source.releases.url: only this machine has it: the address that others have it at."
    if origin.submodules:
        yield (
            f"source.releases.submodules: {', '.join(origin.submodules)} of the repository stay"
            " empty: those that the build needs, each with path, url, commit and sha256."
        )
    if origin.package is None:
        yield "source.packages: tools that the build needs besides compiler, make and headers."


def write_recipe(draft: Draft, output: Path) -> Path:
    """Write a new driver's folder into a folder of drivers."""
    file = output / draft.name / "driver.toml"
    if file.exists():
        raise UsageError(
            f"There is a driver already: '{file}'.",
            resolution=f"Remove the folder (rm -r {file.parent}), or give another --output.",
        )
    write_atomic(file, draft.text)
    return file


def _folder(path: Path, draft: Path) -> Origin:
    name, version = _named(path, str(path))
    release, modules = _checkout(path, draft)
    if release is None:
        return Origin(name, version)
    homepage = release.url.removesuffix(".git") if is_address(release.url) else "unknown"
    return Origin(name, version, release=release, homepage=homepage, submodules=modules)


def _downloaded(url: str, draft: Path) -> Origin:
    if url.endswith(".git"):
        raise UsageError(
            f"'{url}' is a repository, not an archive.",
            resolution=f"Clone it and give the folder: git clone {url} source && provision"
            " drivers import source",
        )
    if redact(url) != url:
        raise UsageError(
            f"'{redact(url)}' holds a password or token, and every user may read a recipe.",
            resolution="Download it, and give the file: provision drivers import FILE",
        )
    report(Note(f"Downloading {url}"))
    archive = draft / "archive"
    sha256 = download_any(url, destination=archive, limit=MAX_BYTES)
    return _archive(archive, url, url, sha256, draft)


def _archive(archive: Path, what: str, url: str, sha256: str, draft: Path) -> Origin:
    """Return the origin of an archive, which is unpacked as a build does it."""
    tree = draft / "tree"
    tree.mkdir()
    try:
        unpack(archive, tree, 0)
    except (UnpackError, tarfile.TarError, OSError) as error:
        raise ProvisionError(
            f"'{what}' can't be unpacked: {error}.",
            resolution="Give a tar file, a zip file or a .deb, not a page about it.",
        ) from error
    # A build drops the folder that all files share. The source of a package is below usr/src, where
    # it is looked for.
    tops = list(tree.iterdir())
    has_top = len(tops) == 1 and tops[0].is_dir() and not (tree / "usr/src").is_dir()
    name, version = _named(tree, what)
    return Origin(name, version, release=ArchiveSource(url=url, sha256=sha256, strip=int(has_top)))


def _named(tree: Path, what: str) -> tuple[str, str]:
    places = (_CONF, f"*/{_CONF}", f"usr/src/*/{_CONF}")
    confs = (path for place in places for path in sorted(tree.glob(place)) if path.is_file())
    conf = next(confs, None)
    if conf is None:
        raise NotFoundError(
            f"'{what}' has no dkms.conf.",
            resolution="Write a recipe by hand: docs/how-to/add-a-driver.md. A template of the file"
            " (dkms.conf.in) is filled in by the vendor's own build.",
        )
    with conf.open(errors="replace") as stream:
        text = stream.read(_LONGEST_CONF)
    found: dict[str, set[str]] = {"NAME": set(), "VERSION": set()}
    for match in _SETS.finditer(text):
        found[match[1]].add(match[3])
    folder = _FOLDER.fullmatch(conf.parent.name)
    name, version = (
        said.pop() if len(said) == 1 else folder[place] if folder else ""
        for place, said in enumerate(found.values(), start=1)
    )
    if not (name and version):
        raise UsageError(
            f"The dkms.conf of '{what}' does not say its PACKAGE_NAME and PACKAGE_VERSION in plain"
            " words.",
            resolution="Name the folder as DKMS does, NAME-VERSION, and give that folder: cp -a"
            " SOURCE /tmp/NAME-VERSION && provision drivers import /tmp/NAME-VERSION",
        )
    return name, version


def _checkout(folder: Path, draft: Path) -> tuple[GitSource | None, tuple[str, ...]]:
    """Return the commit of a git checkout, and the folders of its submodules.

    The settings in a checkout may name
    programs that git runs (filters, monitors), so a copy with git's own settings is compared and
    packed.
    """
    if find_program("git") is None or not (folder / ".git").exists():
        return None, ()
    ask = partial(run, why="pin the source", check=False)
    here, copy = str(folder.resolve()), draft / "git"
    head = ask(["git", "-C", here, "rev-parse", "HEAD"])
    remote = ask(["git", "-C", here, "remote", "get-url", "origin"])
    url = _remote(remote.stdout.strip(), folder.resolve())
    # One commit without tags and branches, as in a build: git writes their names into some files
    # of an archive.
    made = ask(["git", "init", "--quiet", "--bare", "--", str(copy)])
    git, commit = ["git", f"--git-dir={copy}"], head.stdout.strip()
    copied = ask([*git, "fetch", "--quiet", "--depth=1", "--", Path(here).as_uri(), "HEAD"])
    if head.returncode or made.returncode or copied.returncode:
        return None, ()
    read = ask([*git, "read-tree", commit])
    compare = ["diff", "--name-only", "--no-ext-diff", "--ignore-submodules=all", commit]
    changes = ask([*git, "-c", "core.bare=false", f"--work-tree={here}", *compare, "--"])
    if read.returncode or changes.returncode or changes.stdout.strip():
        raise UsageError(
            f"'{folder}' has changes that no commit has, and a recipe names a commit.",
            resolution=f"Commit or drop them: git -C {shlex.quote(here)} status",
            details=changes.stdout.strip() or changes.stderr.strip() or None,
        )
    tar = draft / "source.tar"
    run([*git, "archive", "--format=tar", f"--output={tar}", commit], why="pin the source")
    listed = ask([*git, "ls-tree", "-r", commit]).stdout.splitlines()
    # MODE commit ID, a tab, and the path; submodules have the mode 160000.
    modules = tuple(line.partition("\t")[2] for line in listed if line.startswith("160000 "))
    return GitSource(url=url, commit=commit, sha256=sha256_file(tar)), modules


def _remote(remote: str, folder: Path) -> str:
    """Return the address of a clone's origin without a login, or of the clone itself."""
    url = re.sub(r"^(https?://)[^@/]*@", r"\1", remote)
    return url if is_repository(url) and redact(url) == url else folder.as_uri()
