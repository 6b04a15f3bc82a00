"""Writes a driver.toml from a package, folder or address with a dkms.conf."""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import shlex
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from provision.build.archive import Archive
from provision.build.base_image import base_request, ensure_base
from provision.build.bootstrap import ensure_distro_base
from provision.build.package_store import PackageStore
from provision.build.request import choose_distro, own_kernel
from provision.build.resolve import kernel_pin
from provision.build.unpack_source import UnpackError, open_tar, unpack
from provision.build.workspace import Settings
from provision.distros import archive_of, uses_archive
from provision.distros.debian.archive import ArchiveIndex
from provision.distros.debian.relations import parse_depends
from provision.engine.containers import ContainerRequest
from provision.engine.docker_api import Engine
from provision.engine.scratch import scratch
from provision.errors import NotFoundError, ProvisionError, UsageError, redact
from provision.fetch import download_any
from provision.files import lock, sha256_file, write_atomic
from provision.host.facts import read_facts
from provision.pin import ArchiveSource, BasePin, DistroPin, GitSource, KernelPin
from provision.progress import Note, Output, report
from provision.run import find_program, run
from provision.shipped import templates_dir
from provision.sources.dkms import DkmsConf, Draft, Origin, draft_recipe, parse_variables, read_conf

# A source has some MB; the kernel's own graphics drivers have 300.
MAX_BYTES = 512 << 20
MAX_FILES = 100_000
_LIMIT_S = 600.0
_PAIR = re.compile(r"0x([0-9a-f]{4})\D+0x([0-9a-f]{4})")
_WORK = "/provision"
_TREE = f"{_WORK}/tree"
_OUT = f"{_WORK}/out"
_DEB = "package.deb"
_SOURCE = "source.tar"
# The caller ships, or fetches and checks, these files. Only the dkms.conf in them is run.
_UNPACK = {
    _DEB: f"dpkg-deb --extract {_WORK}/{_DEB} .",
    _SOURCE: f"tar --no-same-owner -xf {_WORK}/{_SOURCE}",
}


def inspect_source(
    engine: Engine, base: BasePin, path: Path, name: str, kernel: KernelPin, *, state: Path
) -> DkmsConf:
    """Evaluate the dkms.conf of a package or folder in a container of a base image."""
    file = _DEB if path.is_file() else _SOURCE
    script = (templates_dir() / "dkms/dkms.bash").read_bytes()
    files = {"dkms.bash": script, file: _packed(path, name)}
    owner = hashlib.sha256(f"inspect {name} {state.resolve()}".encode()).hexdigest()[:32]
    image = ensure_base(engine, base)
    request = ContainerRequest(image_id=image.id, owner=owner, network="none", limit=_LIMIT_S)
    report(Note(f"Evaluating the dkms.conf of {name}"))
    with (
        lock(state / "locks" / f"inspect-{owner}"),
        engine.container(request) as container,
    ):
        container.put(files, _WORK)
        ran = container.run(
            f"mkdir {_TREE} && cd {_TREE} && {_UNPACK[file]}"
            f" && bash {_WORK}/dkms.bash inspect {shlex.quote(kernel.release)}"
            f" {shlex.quote(kernel.architecture)} {_OUT}",
            on_line=lambda line: report(Output(line)),
        )
        if ran.status != 0:
            lines = ran.said.splitlines()
            said = [line.removeprefix("dkms: ") for line in lines if line.startswith("dkms: ")]
            reason = said[0].rstrip(".") if said else "it can't be evaluated"
            raise UsageError(
                f"The dkms.conf of '{name}' can't be taken: {reason}.",
                resolution="A dkms.conf only sets variables. Where the source has a template of it"
                " (dkms.conf.in), run the vendor's build first, and give the folder that this"
                " makes.",
                details="\n".join(lines[-20:]),
            )

        def said_of(what: str) -> list[str]:
            return container.read(f"{_OUT}/{what}").decode(errors="replace").splitlines()

        spdx = [line.partition(":")[2].strip() for line in said_of("spdx")]
        named = [m[1] for line in said_of("licences") if (m := re.search(r'"([^"]+)"', line))]
        pairs = [m for line in said_of("pci") if (m := _PAIR.search(line.lower()))]
        modules = [f'MODULE_LICENSE("{text}")' for text in named]
        return replace(
            read_conf(parse_variables(container.read(f"{_OUT}/variables"))),
            path="\n".join(said_of("conf")),
            kernel=kernel.release,
            licences=tuple(dict.fromkeys([*filter(None, spdx), *modules])),
            pci=tuple(dict.fromkeys((pair[1], pair[2]) for pair in pairs)),
            unset=tuple(dict.fromkeys(said_of("unset"))),
        )


def _packed(path: Path, name: str) -> bytes:
    """Return a package, or a tar file of a folder without what git keeps."""
    if path.is_file():
        if path.stat().st_size > MAX_BYTES:
            raise _too_large(name, "Give")
        return path.read_bytes()
    buffer = io.BytesIO()
    size = 0
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for count, file in enumerate(sorted(path.rglob("*"))):
            inside = file.relative_to(path)
            if inside.parts[0] == ".git" or not (file.is_symlink() or file.is_file()):
                continue
            size += file.lstat().st_size
            if size > MAX_BYTES or count > MAX_FILES:
                raise _too_large(name, "Give")
            archive.add(file, arcname=str(inside), recursive=False)
    return buffer.getvalue()


def _too_large(name: str, give: str) -> ProvisionError:
    return ProvisionError(
        f"'{name}' is too large to be inspected: unpacked, it has more than {MAX_BYTES >> 20} MiB"
        f" or {MAX_FILES} files.",
        resolution=f"{give} the folder with the driver's source and its dkms.conf only.",
    )


_NO_ARCHIVE = (
    UnpackError,
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    # For invalid or oversized numbers in its headers.
    ValueError,
    ArithmeticError,
)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
# Packages of DKMS itself, of every build's container, or of a host with DKMS.
_NEEDLESS = re.compile(
    r"dkms|debconf.*|kmod|make|patch|adduser|udev|systemd|init-system-helpers|linux-.*|gcc|.*-utils"
)
# A port of HTTP stays; a port of SSH has no meaning in an address for others.
_REMOTE = re.compile(
    r"(?:https?://(?:[^@/]*@)?(?P<host>[^/:@]+(?::[0-9]+)?)/(?P<path>.+)"
    r"|(?:git@|ssh://git@)(?P<ssh>[^/:]+)(?::[0-9]+/|[/:])(?P<ssh_path>.+))"
)


def import_dkms(
    settings: Settings, what: str, *, kernel: str | None = None, distro: str | None = None
) -> tuple[Draft, DkmsConf]:
    """Write the recipe of a driver whose source has a dkms.conf.

    Args:
        what: A package of the distro, a folder, or the address of an archive.
        distro: ``debian:12``: the distro of the package and of the container; None: the host's.
    """
    chosen = choose_distro(settings, distro)
    facts = read_facts(settings.root)
    target = kernel_pin(kernel or own_kernel(settings, facts), facts.arch or "")
    with _source(settings, what, chosen) as (path, origin):
        asked = base_request(settings, chosen)
        base = ensure_distro_base(settings, asked)
        conf = inspect_source(settings.engine(), base, path, what, target, state=settings.state)
    return draft_recipe(conf, origin), conf


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


@contextmanager
def _source(settings: Settings, what: str, distro: DistroPin) -> Iterator[tuple[Path, Origin]]:
    """Yield the package or folder that is meant, and its origin."""
    if re.match(r"https?://", what):
        with scratch(settings.state, "import") as folder:
            yield _downloaded(what, folder)
    elif Path(what).is_dir():
        with scratch(settings.state, "import") as folder:
            release, modules = _checkout(Path(what), folder)
            homepage = release.url.removesuffix(".git") if release else None
            origin = Origin(what, release=release, homepage=homepage, submodules=modules)
            yield Path(what), origin
    elif _PACKAGE.fullmatch(what):
        yield _packaged(settings, what, distro)
    else:
        raise NotFoundError(
            f"There is no folder '{what}', and it is neither an address nor a package's name.",
            resolution="Give a package (v4l2loopback-dkms), a folder or an archive's address.",
        )


def _downloaded(url: str, folder: Path) -> tuple[Path, Origin]:
    if url.endswith(".git"):
        raise UsageError(
            f"'{url}' is a repository, not an archive.",
            resolution=f"Clone it and give the folder: git clone {url} source && provision"
            " drivers import source.",
        )
    if redact(url) != url:
        raise UsageError(
            f"'{redact(url)}' holds a password or token, and every user may read a recipe.",
            resolution="Download and unpack it, and give the folder: provision drivers import"
            " FOLDER",
        )
    report(Note(f"Downloading {url}"))
    archive, tree = folder / "archive", folder / "tree"
    sha256 = download_any(url, destination=archive, limit=MAX_BYTES)
    tree.mkdir()
    _check_size(url, archive)
    try:
        unpack(archive, tree, 0)
    except UnpackError as error:
        raise ProvisionError(
            f"'{url}' can't be unpacked: {error}.",
            resolution="Give the address of a tar file, zip file or .deb, not of a page about it.",
        ) from error
    inside = list(tree.iterdir())
    # The source of a package is below usr/src, where it is looked for.
    has_top = len(inside) == 1 and inside[0].is_dir() and not (tree / "usr/src").is_dir()
    release = ArchiveSource(url=url, sha256=sha256, strip=int(has_top))
    return (inside[0] if has_top else tree), Origin(url, release=release)


def _check_size(url: str, archive: Path) -> None:
    """Refuse an archive that is too large when unpacked, before a file of it is written."""
    size = 0
    # The unpacker reports damaged files and files that are no archives.
    with suppress(*_NO_ARCHIVE):
        for count, of_file in enumerate(_sizes(archive)):
            size += of_file
            if size > MAX_BYTES or count > MAX_FILES:
                raise _too_large(url, "Unpack it, and give")


def _sizes(archive: Path) -> Iterator[int]:
    if zipfile.is_zipfile(archive):
        # zipfile unpacks no more than this, whatever a file holds.
        with zipfile.ZipFile(archive) as file:
            yield from (member.file_size for member in file.infolist())
    else:
        with open_tar(archive) as tar:
            yield from (member.size for member in tar)


def _checkout(folder: Path, draft: Path) -> tuple[GitSource | None, tuple[str, ...]]:
    """Return the commit of a git checkout, and the folders of its submodules.

    There is no commit without an address that others can use. The settings in a checkout may name
    programs that git runs (filters, monitors), so a copy with git's own settings is compared and
    packed.
    """
    if find_program("git") is None or not (folder / ".git").exists():
        return None, ()
    ask = partial(run, why="pin the source", check=False)
    here, copy = str(folder.resolve()), draft / "git"
    head = ask(["git", "-C", here, "rev-parse", "HEAD"])
    remote = ask(["git", "-C", here, "remote", "get-url", "origin"])
    url = public_address(remote.stdout.strip())
    # One commit without tags and branches, as in a build: git writes their names into some files
    # of an archive.
    made = ask(["git", "init", "--quiet", "--bare", "--", str(copy)])
    git, commit = ["git", f"--git-dir={copy}"], head.stdout.strip()
    copied = ask([*git, "fetch", "--quiet", "--depth=1", "--", Path(here).as_uri(), "HEAD"])
    if head.returncode or url is None or made.returncode or copied.returncode:
        return None, ()
    read = ask([*git, "read-tree", commit])
    compare = ["diff", "--name-only", "--no-ext-diff", "--ignore-submodules=all", commit]
    changes = ask([*git, "-c", "core.bare=false", f"--work-tree={here}", *compare, "--"])
    # A checkout with changed files is not the commit that was evaluated.
    if read.returncode or changes.returncode or changes.stdout.strip():
        return None, ()
    tar = draft / "source.tar"
    run([*git, "archive", "--format=tar", f"--output={tar}", commit], why="pin the source")
    listed = ask([*git, "ls-tree", "-r", commit]).stdout.splitlines()
    # MODE commit ID, a tab, and the path; submodules have the mode 160000.
    modules = tuple(line.partition("\t")[2] for line in listed if line.startswith("160000 "))
    return GitSource(url=url, commit=commit, sha256=sha256_file(tar)), modules


def public_address(remote: str) -> str | None:
    """Return the address at which others can clone a remote of git, if it has one."""
    match = _REMOTE.fullmatch(remote)
    if match is None:
        return None
    return f"https://{match['host'] or match['ssh']}/{match['path'] or match['ssh_path']}"


def _packaged(settings: Settings, name: str, distro: DistroPin) -> tuple[Path, Origin]:
    if not uses_archive(distro):
        raise NotFoundError(
            f"'{name}' can't be looked for: {distro.id} {distro.version} has no archive that apt"
            " reads.",
            resolution="Name the distro that has the package (--distro debian:12), or give a folder"
            " or an address.",
        )
    components = archive_of(distro).components
    words = (name, f"{_similar(name)}*")
    with Archive(settings, distro, words=words, components=components) as archive:
        index = archive.index
        package = index.package(name)
        if package is None:
            found = index.packages_matching(_similar(name))
            near = [one.name for one in found if one.name.endswith("-dkms")][:8]
            there = f" Packages with a similar name: {', '.join(near)}." if near else ""
            raise NotFoundError(
                f"{distro.id} {distro.version} has no package '{name}'.",
                resolution=f"'apt-cache search dkms' lists such packages.{there}",
                details="\n".join(["looked in:", *(f"  {place}" for place in index.addresses)]),
            )
        tools = tuple(_tools(index, package.depends))
    file = PackageStore(settings.state).fetch(
        package.sha256, [package.url], name=name, size=package.size
    )
    homepage = f"https://tracker.debian.org/pkg/{name}" if distro.id == "debian" else None
    return file, Origin(
        name,
        package=name,
        component=package.component,
        packages=tools,
        homepage=homepage,
    )


def _similar(name: str) -> str:
    """Return the beginning of a package's name with which those of similar ones begin too."""
    return name.removesuffix("-dkms")[:4]


def _tools(index: ArchiveIndex, depends: str) -> Iterator[str]:
    """Yield the dependencies of a package that neither DKMS nor every build has."""
    needed = [names for names in parse_depends(depends) if not any(map(_NEEDLESS.fullmatch, names))]
    index.ask(*(name for names in needed for name in names))
    for names in needed:
        found = next((name for name in names if index.package(name)), None)
        if found is not None:
            yield found
