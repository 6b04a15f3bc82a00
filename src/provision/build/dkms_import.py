"""Writes a driver.toml from a package, folder or address with a dkms.conf.

``templates/dkms/dkms.bash`` evaluates it. Variables and defaults: dkms(8) of DKMS 3,
https://github.com/dkms-project/dkms/blob/main/dkms.8.in
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import shlex
import tarfile
import tomllib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal

from provision.build.archive import Archive
from provision.build.base_image import base_request, ensure_base
from provision.build.bootstrap import ensure_distro_base
from provision.build.dockerfile import fill_shipped
from provision.build.package_store import PackageStore
from provision.build.request import choose_distro, own_kernel
from provision.build.resolve import kernel_pin
from provision.build.unpack_source import UnpackError, check_link, inside, open_tar
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.distros import archive_of, uses_archive
from provision.distros.debian.archive import ArchiveIndex
from provision.distros.debian.relations import parse_depends
from provision.documents import parse_json
from provision.engine.docker_api import ContainerRequest, Engine
from provision.engine.scratch import scratch
from provision.errors import NotFoundError, ProvisionError, UsageError, redact
from provision.fetch import download_any
from provision.files import lock, sha256_file, write_atomic
from provision.host.facts import read_facts
from provision.pin import ArchiveSource, BasePin, DistroPin, GitSource, KernelPin
from provision.progress import Note, Output, report
from provision.run import find_program, run
from provision.shipped import templates_dir

# The largest known output, that of DAHDI with 32 modules, has 4 kB.
_LONGEST_VARIABLES = 1 << 20
# DKMS's own array of modules has no limit; the largest drivers have some forty.
_MAX_MODULES = 1000
_END = b"."
_INDEX = re.compile(r"[0-9]{1,6}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9.+~:_-]*")
_OF_MODULES = ("BUILT_MODULE_", "DEST_MODULE_")
_EXCLUSIVE = ("KERNEL", "KERNEL_MIN", "KERNEL_MAX", "ARCH", "CONFIG")
# What DKMS runs on the host, and a build does not.
_HOST_SCRIPTS = ("POST_ADD", "PRE_INSTALL", "POST_INSTALL", "POST_REMOVE")
_RESOLUTION = (
    "Correct the dkms.conf. A package's name or version in it may be a template that the vendor's"
    " own build fills in: run that build, and take the dkms.conf that it makes."
)

Variables = Mapping[tuple[str, int], str]


@dataclass(frozen=True, slots=True)
class BuiltModule:
    """One module of a dkms.conf."""

    # Path of the file that the build makes, relative to the source, with ``.ko``.
    built: str
    name: str
    # Folder below ``/lib/modules/KERNEL`` that DKMS installs it to.
    destination: str
    is_stripped: bool


@dataclass(frozen=True, slots=True)
class DkmsConf:
    """What a recipe or its author needs of a source with a dkms.conf; builds evaluate the rest."""

    name: str
    version: str
    modules: tuple[BuiltModule, ...]
    # ``BUILD_EXCLUSIVE_…`` by the rest of the name. An index other than 0 follows in brackets,
    # because the value is for one module then.
    exclusive: Mapping[str, str] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    host_scripts: Mapping[str, str] = field(default_factory=dict)
    path: str = "dkms.conf"
    kernel: str = ""
    # Those that the source names; only shown.
    licences: tuple[str, ...] = ()
    # Devices that the source names by numbers: vendor and device, four digits each.
    pci: tuple[tuple[str, str], ...] = ()
    # The variables that it uses and nothing sets.
    unset: tuple[str, ...] = ()


def parse_variables(data: bytes) -> Variables:
    """Return the variables that the script printed, by name and index.

    Each is NAME, INDEX and VALUE. Each of these ends with a NUL, which no value of bash can hold.
    """
    if len(data) > _LONGEST_VARIABLES:
        raise ProvisionError(
            f"The variables of the dkms.conf have more than {_LONGEST_VARIABLES} bytes.",
            resolution="Look at what it sets: a dkms.conf of this size is no ordinary one.",
        )
    parts = data.split(b"\0")
    texts = iter(parts[:-1])
    records = list(zip(texts, texts, texts, strict=False))
    if parts[-1] or not records or records[-1] != (_END, b"0", b""):
        raise ProvisionError(
            "The dkms.conf ends itself before all of it is read.",
            resolution="Remove 'exit' and 'exec' from it: a dkms.conf only sets variables.",
        )
    found: dict[tuple[str, int], str] = {}
    for name, index, value in takewhile(lambda record: record[0] != _END, records):
        # The keys of an associative array are no indices, and DKMS ignores such arrays.
        if _INDEX.fullmatch(number := index.decode(errors="replace")):
            text = value.decode(errors="replace").removesuffix("\r")
            found[name.decode(errors="replace"), int(number)] = text
    return found


def read_conf(variables: Variables) -> DkmsConf:
    """Return the dkms.conf of variables, with DKMS's defaults."""
    last = max((index for name, index in variables if name.startswith(_OF_MODULES)), default=-1)
    if last >= _MAX_MODULES:
        raise UsageError(
            f"The dkms.conf names a module with the index {last}.",
            resolution=f"Count from 0; there may be {_MAX_MODULES} modules.",
        )
    modules = _modules(variables, last + 1)
    problems = list(_problems(variables, modules))
    if problems:
        raise UsageError(
            f"The dkms.conf has {len(problems)} mistake{'' if len(problems) == 1 else 's'}.",
            resolution=_RESOLUTION,
            details="\n".join(problems),
        )
    return DkmsConf(
        name=variables["PACKAGE_NAME", 0],
        version=variables["PACKAGE_VERSION", 0],
        modules=modules,
        exclusive={
            part if index == 0 else f"{part}[{index}]": variables[name, index]
            for part in _EXCLUSIVE
            for name, index in variables
            if name == f"BUILD_EXCLUSIVE_{part}" and variables[name, index]
        },
        depends=tuple(
            dict.fromkeys(
                word
                for key in sorted(variables)
                if key[0] == "BUILD_DEPENDS"
                for word in variables[key].split()
                if word != variables["PACKAGE_NAME", 0]
            )
        ),
        host_scripts={
            name: " ".join(script.split())
            for name in _HOST_SCRIPTS
            if (script := variables.get((name, 0), "").strip())
        },
    )


def _modules(variables: Variables, count: int) -> tuple[BuiltModule, ...]:
    first = variables.get(("STRIP", 0), "")
    found = []
    for index in range(count):
        name = variables.get(("BUILT_MODULE_NAME", index), "")
        if not name and count == 1:
            name = variables.get(("PACKAGE_NAME", 0), "")
        folder = variables.get(("BUILT_MODULE_LOCATION", index), "").strip("/")
        folder = "" if folder == "." else folder.removeprefix("./")
        strip = variables.get(("STRIP", index), "") or first
        found.append(
            BuiltModule(
                built=f"{folder}/{name}.ko".lstrip("/"),
                name=variables.get(("DEST_MODULE_NAME", index), "") or name,
                destination=variables.get(("DEST_MODULE_LOCATION", index), ""),
                is_stripped=not strip.lower().startswith("n"),
            )
        )
    return tuple(found)


def _problems(variables: Variables, modules: Sequence[BuiltModule]) -> Iterator[str]:
    for name in ("PACKAGE_NAME", "PACKAGE_VERSION"):
        text = variables.get((name, 0), "")
        if not text:
            yield f"{name} is not set"
        elif not _NAME.fullmatch(text):
            yield f"{name} is {text!r}, which is a template"
    yield from _module_problems(variables, modules)
    for name, count in Counter(module.name for module in modules if module.name).items():
        if count > 1:
            yield f"two modules are called {name}"


def _module_problems(variables: Variables, modules: Sequence[BuiltModule]) -> Iterator[str]:
    if not modules:
        yield "neither BUILT_MODULE_NAME nor DEST_MODULE_LOCATION is set"
    for index, module in enumerate(modules):
        if not module.name:
            yield f"BUILT_MODULE_NAME[{index}] is not set"
        for name in ("BUILT_MODULE_NAME", "DEST_MODULE_NAME"):
            text = variables.get((name, index), "")
            if text.endswith((".o", ".ko")) or "/" in text:
                yield f"{name}[{index}] is {text!r}: a name without a folder and .ko"
        if not module.destination:
            yield f"DEST_MODULE_LOCATION[{index}] is not set"


# Both are in a recipe until its author corrects them. NOASSERTION is SPDX's word for "unknown".
UNKNOWN_LICENCE = "NOASSERTION"
_STAND_IN = ArchiveSource(url="https://vendor.example/source.tar.gz", sha256="0" * 64)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a source with a dkms.conf."""

    name: str
    package: str | None = None
    component: str = "main"
    release: ArchiveSource | GitSource | None = None
    # Tools that the build needs, as far as they are known.
    packages: tuple[str, ...] = ()
    homepage: str | None = None
    # Folders of the repository that other repositories fill.
    submodules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A recipe, and what its author has to check."""

    name: str
    text: str
    unknown: tuple[str, ...]
    ignored: tuple[str, ...]


def draft_recipe(conf: DkmsConf, origin: Origin) -> Draft:
    """Write the recipe of a driver that brings a dkms.conf."""
    name = re.sub(r"[^a-z0-9._-]+", "-", conf.name.lower()).strip("-._")
    if not name:
        raise UsageError(
            f"No driver can be called after PACKAGE_NAME, which is '{conf.name}'.",
            resolution="Give the package a name with letters or digits in its dkms.conf.",
        )
    devices: dict[str, list[str]] = {}
    for vendor, device in conf.pci:
        devices.setdefault(vendor, []).append(device)
    text = fill_shipped(
        "drivers/driver.toml.j2",
        title=re.sub(r"[^ -~]", "?", f"{conf.name} {conf.version}. Made from {conf.path}."),
        name=name,
        conf=conf,
        origin=origin,
        devices=devices,
        release=origin.release or _STAND_IN,
        licence=UNKNOWN_LICENCE,
        flag="OCI_" + re.sub(r"[^A-Z0-9]+", "_", name.upper()),
    )
    # The text must be readable; mistakes name this command's input.
    parse_json(json.dumps(tomllib.loads(text)), Recipe, name=f"recipe of {origin.name}")
    return Draft(name, text, tuple(_unknown(conf, origin)), tuple(_ignored(conf)))


def _unknown(conf: DkmsConf, origin: Origin) -> Iterator[str]:
    said = f" The source says: {'; '.join(conf.licences)}." if conf.licences else ""
    yield f"licences: the licences of the modules, as SPDX expressions.{said}"
    yield "container.features: the device nodes that the modules make, below /dev, and features."
    if not conf.pci:
        yield "hardware.pci: the devices that the driver is for; none are named by numbers."
    yield (
        "host.conflicts: the kernel's own modules for the same hardware, which must not be loaded."
    )
    yield "vendor, summary, homepage: what people read."
    if origin.package is None and origin.release is None:
        yield (
            "source.releases: where the source can be downloaded, and its sha256. What stands there"
            " is a stand-in."
        )
    if origin.submodules:
        yield (
            f"source.releases.submodules: {', '.join(origin.submodules)} of the repository stay"
            " empty: those that the build needs, each with path, url, commit and sha256."
        )
    if origin.package is None:
        yield "source.packages: tools that the build needs besides compiler, make and headers."
    if conf.unset:
        yield (
            f"The dkms.conf uses {', '.join(conf.unset)}, which nothing sets: check whether the"
            " build needs it."
        )


def _ignored(conf: DkmsConf) -> Iterator[str]:
    for name, script in conf.host_scripts.items():
        yield (
            f"{name} ({script}) is not run: say in [host] and [[files]] what the host needs of it."
        )
    if conf.depends:
        yield (
            f"BUILD_DEPENDS names {', '.join(conf.depends)}: such a driver is refused, because one"
            " recipe builds one source. Build the sources together instead: kind 'git' with"
            " submodules, or an archive that holds both, and a 'command' of your own."
        )


# A source has some MB; the kernel's own graphics drivers have 300.
MAX_BYTES = 512 << 20
MAX_FILES = 100_000
_LIMIT_S = 600.0
_PAIR = re.compile(r"0x([0-9a-f]{4})\D+0x([0-9a-f]{4})")
_WORK = "/provision"
_TREE = f"{_WORK}/tree"
_OUT = f"{_WORK}/out"
_DEB: Final = "package.deb"
_SOURCE: Final = "source.tar"
# The caller ships, or fetches and checks, these files. Only the dkms.conf in them is run.
_UNPACK = {
    _DEB: f"dpkg-deb --extract {_WORK}/{_DEB} .",
    _SOURCE: f"tar --no-same-owner -xf {_WORK}/{_SOURCE}",
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A source as the container gets it; only there is it unpacked."""

    file: Literal["package.deb", "source.tar"]
    content: bytes


def inspect_source(
    engine: Engine, base: BasePin, source: Packed, name: str, kernel: KernelPin, *, state: Path
) -> DkmsConf:
    """Evaluate the dkms.conf of a source in a container of a base image."""
    script = (templates_dir() / "dkms/dkms.bash").read_bytes()
    files = {"dkms.bash": script, source.file: source.content}
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
            f"mkdir {_TREE} && cd {_TREE} && {_UNPACK[source.file]}"
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


def _package(path: Path, name: str) -> Packed:
    if path.stat().st_size > MAX_BYTES:
        raise _too_large(name, "Give")
    return Packed(_DEB, path.read_bytes())


def _folder(path: Path, name: str) -> Packed:
    """Return the files of a folder without what git keeps."""
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
    return Packed(_SOURCE, buffer.getvalue())


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
    # For a password, or a compression that Python lacks.
    RuntimeError,
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
    source, origin = _source(settings, what, chosen)
    base = ensure_distro_base(settings, base_request(settings, chosen))
    conf = inspect_source(settings.engine(), base, source, what, target, state=settings.state)
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


def _source(settings: Settings, what: str, distro: DistroPin) -> tuple[Packed, Origin]:
    """Return the package, folder or archive that is meant, and its origin."""
    if re.match(r"https?://", what):
        with scratch(settings.state, "import") as draft:
            return _downloaded(what, draft)
    if Path(what).is_dir():
        with scratch(settings.state, "import") as draft:
            release, modules = _checkout(Path(what), draft)
        homepage = release.url.removesuffix(".git") if release else None
        origin = Origin(what, release=release, homepage=homepage, submodules=modules)
        return _folder(Path(what), what), origin
    if _PACKAGE.fullmatch(what):
        return _packaged(settings, what, distro)
    raise NotFoundError(
        f"There is no folder '{what}', and it is neither an address nor a package's name.",
        resolution="Give a package (v4l2loopback-dkms), a folder or an archive's address.",
    )


def _downloaded(url: str, draft: Path) -> tuple[Packed, Origin]:
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
    archive = draft / "archive"
    sha256 = download_any(url, destination=archive, limit=MAX_BYTES)
    try:
        strip = _leading_parts(archive, url)
        source = _repacked(archive, strip)
    except _NO_ARCHIVE as error:
        raise ProvisionError(
            f"'{url}' can't be unpacked: {error}.",
            resolution="Give the address of a tar file, zip file or .deb, not of a page about it.",
        ) from error
    return source, Origin(url, release=ArchiveSource(url=url, sha256=sha256, strip=strip))


def _leading_parts(archive: Path, name: str) -> int:
    """Return how many leading parts a build drops of every path: those that all files share.

    An archive that is too large when unpacked is refused.
    """
    size = 0
    paths = []
    for count, (entry, _) in enumerate(_members(archive)):
        size += entry.size
        if size > MAX_BYTES or count > MAX_FILES:
            raise _too_large(name, "Unpack it, and give")
        if not entry.isdir():
            paths.append(PurePosixPath(entry.name).parts)
    if not paths:
        raise UnpackError("it has no files")
    # The source of a package is below usr/src, where it is looked for.
    is_package = any(parts[:2] == ("usr", "src") for parts in paths)
    has_top = len({parts[0] for parts in paths}) == 1 and all(len(parts) > 1 for parts in paths)
    return int(has_top and not is_package)


def _repacked(archive: Path, strip: int) -> Packed:
    """Return an archive's files as a tar file for the container.

    Nothing of it becomes a file of this host, where root would write what the archive names, with
    owners that it names too.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry, content in _members(archive):
            if (name := inside(entry.name, strip)) is None or entry.isdir():
                continue
            entry.name = str(name)
            if entry.islnk():
                entry.linkname = str(inside(entry.linkname, strip))
            tar.addfile(entry, content)
    return Packed(_SOURCE, buffer.getvalue())


def _members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield an archive's members, of which nobody is the owner, and the content of its files."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for one in file.infolist():
                # zipfile reads no more than this, whatever a file holds.
                kind = tarfile.DIRTYPE if one.is_dir() else tarfile.REGTYPE
                with file.open(one) as content:
                    yield _entry(one.filename, kind, one.file_size), content
        return
    with open_tar(archive) as tar:
        for member in tar:
            if member.issym():
                check_link(inside(member.name, 0) or PurePosixPath(), member.linkname)
            elif not (member.isreg() or member.islnk() or member.isdir()):
                raise UnpackError(f"'{member.name}' is neither file, folder nor link")
            kind = tarfile.REGTYPE if member.isreg() else member.type
            entry = _entry(member.name, kind, member.size if member.isreg() else 0)
            entry.linkname = member.linkname
            yield entry, tar.extractfile(member) if member.isreg() else None


def _entry(name: str, kind: bytes, size: int) -> tarfile.TarInfo:
    # Refused before anything else looks at it.
    entry = tarfile.TarInfo(str(inside(name, 0) or "."))
    entry.type, entry.size, entry.mode = kind, size, 0o755
    return entry


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


def _packaged(settings: Settings, name: str, distro: DistroPin) -> tuple[Packed, Origin]:
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
    return _package(file, name), Origin(
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
