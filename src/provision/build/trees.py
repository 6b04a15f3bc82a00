"""Gets the files of a kernel tree: from the host, from its other slot, or from an address.

Each file lies in the package store under its sha256, which the Pin names. Beside them lies a record
of each tree: the state of the folder that it was packed from, or its address. An unchanged tree is
neither packed nor downloaded again.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from provision.build.package_store import PackageStore
from provision.build.workspace import Settings
from provision.config import TreeConfig
from provision.distros.kernel_tree import read_config, release_address, require_symvers
from provision.documents import Frozen, load_json
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.fetch import download, download_summed
from provision.files import in_root, lock, sha256_file, sync_directory, write_atomic
from provision.host.boot_entries import pack_from_slot
from provision.host.kernels import kernel_release
from provision.pin import Pin, Sha256, TreePin
from provision.progress import Note, Progress, silent
from provision.run import run

# Names of files may be other bytes than UTF-8.
_CONFIG = ".config"
_PACK_SECONDS = 900.0
_AS_THEY_ARE = ("utf-8", "surrogateescape")
_GZIP = b"\x1f\x8b"
# Of a configuration or a Module.symvers; the largest of these have some 5 MB.
_LARGEST = 256 << 20
# The same files give the same bytes at any time and for any user.
SAME_BYTES = (
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--format=gnu",
)


class SeenTree(Frozen):
    """The record of a tree in the package store.

    Attributes:
        config: Text of the kernel's configuration in it; None: it was not looked for.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    fingerprint: str
    tree: Sha256
    size: int
    config: str | None = None


class TreeStore:
    """The files of kernel trees in the package store, by their sha256.

    Losing one costs a download, or packing it again.
    """

    def __init__(self, settings: Settings) -> None:
        store = PackageStore(settings.state)
        self._folder = store.files
        self._seen = store.trees

    def seen(self, origin: str, fingerprint: str | None = None) -> SeenTree | None:
        """Return the record of a tree whose file is there; None: it has to be fetched again.

        The file is not read: a build finds out whether it is damaged.

        Args:
            origin: The origin of the tree: an address, or a path on the host.
            fingerprint: The present fingerprint of the origin; None: any counts.
        """
        path = self._record(origin)
        try:
            found = load_json(path, SeenTree)
            size = self.path(found.tree).stat().st_size
        except (OSError, ProvisionError):
            return None
        if size != found.size or fingerprint not in {None, found.fingerprint}:
            return None
        # Garbage collection looks at the time of use.
        for used in (path, self.path(found.tree)):
            with suppress(OSError):
                os.utime(used)
        return found

    def remember(
        self, origin: str, fingerprint: str, tree: str, *, config: str | None = None
    ) -> SeenTree:
        """Write the record of a tree, for ``seen``."""
        size = self.path(tree).stat().st_size
        known = SeenTree(fingerprint=fingerprint, tree=tree, size=size, config=config)
        # An address may hold a password.
        text = known.model_dump_json(by_alias=True)
        write_atomic(self._record(origin), f"{text}\n", mode=0o600)
        return known

    def _record(self, origin: str) -> Path:
        return self._seen / f"{hashlib.sha256(origin.encode()).hexdigest()}.json"

    def path(self, sha256: str) -> Path:
        """Return the path of a file that is or would be there."""
        return self._folder / sha256

    def add(self, content: bytes) -> str:
        """Add a file with some content; return its sha256."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as stream:
            stream.write(content)
        return self.take(Path(stream.name))

    def take(self, draft: Path, *, sync: bool = True) -> str:
        """Move a file of the same file system into the store; return its sha256.

        Args:
            sync: Whether it has to survive a power cut; not needed if its sha256 is checked before
                each use.
        """
        digest = sha256_file(draft)
        self._folder.mkdir(parents=True, exist_ok=True)
        draft.chmod(0o644)
        if sync:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.replace(self.path(digest))
        if sync:
            sync_directory(self._folder)
        return digest

    def fetch(self, url: str, sha256: str, progress: Progress) -> str:
        """Download a file into the store; return its sha256."""
        download(url, sha256=sha256, destination=self.path(sha256), progress=progress)
        self.path(sha256).touch()
        return sha256

    def fetch_summed(self, url: str, progress: Progress) -> str:
        """Download a file that a checksum beside it verifies (``.md5``); return its sha256."""
        draft = self.draft()
        try:
            download_summed(url, destination=draft, progress=progress)
            return self.take(draft)
        finally:
            draft.unlink(missing_ok=True)

    def draft(self) -> Path:
        """Return a new empty file in the folder of the store."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as stream:
            return Path(stream.name)


def fingerprint(path: Path) -> str:
    """Return the fingerprint of a folder or file, without reading any content.

    It covers name, kind, size, inode, mtime and ctime of each file. Each change of the content sets
    ctime, which no program can set back.
    """
    digest = hashlib.sha256()
    waiting = [(path.resolve(), "")]
    while waiting:
        folder, name = waiting.pop()
        status = folder.lstat()
        said = (name, status.st_mode, status.st_size, status.st_ino)
        digest.update(f"{said} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode(*_AS_THEY_ARE))
        if folder.is_symlink() or not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), f"{name}/{entry.name}"))
                continue
            status = entry.stat(follow_symlinks=False)
            said = (f"{name}/{entry.name}", status.st_mode, status.st_size, status.st_ino)
            times = f"{status.st_mtime_ns} {status.st_ctime_ns}\n"
            digest.update(f"{said} {times}".encode(*_AS_THEY_ARE))
    return digest.hexdigest()


def kept_files(settings: Settings, pin: Pin, tree: TreePin) -> Mapping[str, Path]:
    """Return the files of a Pin's kernel tree in the store, by path in the build context."""
    store = PackageStore(settings.state)
    names = {
        "tree.tar": tree.tree,
        "config": tree.config,
        "Module.symvers": tree.symvers,
        "compiler.tar": tree.compiler,
    }
    files = {f"kernel/{name}": store.path(digest) for name, digest in names.items() if digest}
    # Admins copy files here, and nothing in the build compares them with the Pin.
    lacking = [str(path) for path in files.values() if not store.whole(path.name)]
    if lacking:
        raise NotFoundError(
            f"The kernel tree of {pin.kernel.release} that the Pin names is not in the package"
            " store of this machine, or is damaged there.",
            resolution="Copy the files from the machine that resolved it, to the same paths, or"
            " resolve again where the tree is.",
            details="\n".join(lacking),
        )
    return files


def config_in(tar: Path) -> str:
    """Return the .config of a prepared tree: the topmost, if its archive has several."""
    # Not files of the kernel's source with that ending: kernel/configs/hardening.config.
    listed = run(
        ["tar", "--list", "--no-anchored", "--file", tar, _CONFIG],
        why="look for the configuration in a kernel tree",
        check=False,
        timeout=_PACK_SECONDS,
    )
    names = [line for line in listed.stdout.splitlines() if line.rpartition("/")[2] == _CONFIG]
    if not names:
        raise ProvisionError(
            "The kernel tree has no .config, so the compiler that it needs is unknown.",
            resolution="Name the kernel's configuration as 'config' of [[trees]] in"
            " /etc/provision/provision.toml.",
            details=listed.stderr.strip() or None,
        )
    return run(
        ["tar", "--extract", "--to-stdout", "--file", tar, min(names, key=_depth)],
        why="read the configuration in a kernel tree",
        timeout=_PACK_SECONDS,
    ).stdout


def _depth(name: str) -> int:
    return name.count("/")


def read_plain(path: Path) -> bytes:
    """Return the content of a file that may be packed by gzip."""
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        try:
            with gzip.open(file) if is_packed else file as stream:
                content: bytes = stream.read(_LARGEST + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ProvisionError(
                f"'{path}' is a damaged gzip file: {error}.", resolution="Copy it again."
            ) from error
    if len(content) > _LARGEST:
        raise ProvisionError(
            f"'{path}' has more than {_LARGEST >> 20} MiB: it is neither the configuration of a"
            " kernel nor its Module.symvers.",
            resolution="Name the right file under [[trees]] in /etc/provision/provision.toml.",
        )
    return content


def pack(folder: Path, draft: Path) -> None:
    """Write a folder as a tar file; the same files give the same bytes."""
    run(
        ["tar", "--create", *SAME_BYTES, "--file", draft, "--directory", folder, "."],
        why="pack a kernel tree",
        timeout=_PACK_SECONDS,
    )


_COS_HEADERS = "kernel-headers.tgz"
_COS_COMPILER = "toolchain.tar.xz"


@dataclass(frozen=True, slots=True)
class Tree:
    """A kernel tree whose files are there.

    Attributes:
        config: The kernel's configuration; None: it lies in the tree, which only the build reads.
    """

    pin: TreePin
    files: Mapping[str, Path] = field(default_factory=dict)
    config: Mapping[str, str] | None = None


def have_tree(
    settings: Settings,
    tree_config: TreeConfig,
    kernel: str,
    *,
    update: bool = False,
    progress: Progress = silent,
) -> Tree:
    """Return a tree of provision.toml with its files in the package store."""
    store = TreeStore(settings)
    has_config = tree_config.kind == "prepared" and tree_config.config is None
    origin = TreeOrigin(settings, store, kernel, has_config=has_config, update=update)
    seen = (
        origin.download(tree_config, progress)
        if tree_config.url
        else origin.path(str(tree_config.path), progress)
    )
    if has_config:
        files = {"tree.tar": store.path(seen.tree)}
        config = read_config(seen.config or "", name=f"{_named(tree_config, kernel)}, .config")
        return Tree(TreePin(kind="prepared", tree=seen.tree), files, config)
    return _with_config(settings, store, tree_config, kernel, seen.tree)


def _with_config(
    settings: Settings, store: TreeStore, tree_config: TreeConfig, kernel: str, tree: str
) -> Tree:
    """Return a tree with files of its own for configuration and symbols; errors as ``have_tree``.

    ``tree`` is the sha256 of its tar file.
    """
    config_file = _config_file(settings, tree_config, kernel)
    plain = read_plain(config_file)
    config = read_config(plain.decode(errors="replace"), name=str(config_file))
    added = {"config": store.add(plain)}
    symvers = _symvers_file(settings, tree_config, kernel)
    require_symvers(
        config, kernel, has_symvers=symvers is not None or tree_config.kind == "prepared"
    )
    if symvers is not None and config.get("CONFIG_MODVERSIONS") == "y":
        added["Module.symvers"] = store.add(read_plain(symvers))
    pin = TreePin(
        kind=tree_config.kind,
        tree=tree,
        config=added["config"],
        symvers=added.get("Module.symvers"),
    )
    files = {name: store.path(digest) for name, digest in {"tree.tar": tree, **added}.items()}
    return Tree(pin, files, config)


def have_cos_tree(
    settings: Settings,
    build_id: str,
    *,
    update: bool = False,
    progress: Progress = silent,
) -> Tree:
    """Return the tree of a build of Container-Optimized OS: its headers and compiler.

    Published files never change, so they are downloaded once.

    Args:
        settings: The host; ``[distros.cos.archive] mirror`` names another address, ``sha256`` the
            files' checksums.
    """
    if not build_id:
        raise NotFoundError(
            "The os-release of this host has no BUILD_ID, so the files of its kernel can't be"
            " found.",
            resolution="Name the build: --distro cos:BUILD_ID, such as cos:18613.164.68.",
        )
    store = TreeStore(settings)
    archive = settings.config.distro("cos").archive
    place = release_address("cos", build_id, settings.architecture, mirror=archive.mirror)
    files_there = _CosFiles(store, place, build_id, archive.sha256, progress)
    headers = files_there.have(_COS_HEADERS, update=update, has_config=True)
    compiler = files_there.have(_COS_COMPILER, update=update)
    config = read_config(headers.config or "", name=f"{place}/{_COS_HEADERS}, .config")
    pin = TreePin(kind="prepared", tree=headers.tree, compiler=compiler.tree)
    files = {"tree.tar": store.path(headers.tree), "compiler.tar": store.path(compiler.tree)}
    return Tree(pin, files, config)


@dataclass(frozen=True, slots=True)
class _CosFiles:
    """The published files of a build of Container-Optimized OS.

    Attributes:
        sums: The sha256 of files by build and name, from provision.toml.
    """

    store: TreeStore
    place: str
    build_id: str
    sums: Mapping[str, str]
    progress: Progress

    def have(self, name: str, *, update: bool, has_config: bool = False) -> SeenTree:
        """Return one of them, and download it if necessary; errors as ``have_cos_tree``."""
        store = self.store
        url, known = f"{self.place}/{name}", self.sums.get(f"{self.build_id}/{name}")
        seen = None if update else store.seen(url)
        if seen is not None and known in {None, seen.tree}:
            return seen
        try:
            digest = (
                store.fetch(url, known, self.progress)
                if known
                else store.fetch_summed(url, self.progress)
            )
        except UsageError as error:
            raise _no_checksum(error, f"{self.build_id}/{name}") from error
        config = config_in(store.path(digest)) if has_config else None
        return store.remember(url, "", digest, config=config)


def _no_checksum(error: UsageError, name: str) -> UsageError:
    return UsageError(
        error.message,
        resolution="In /etc/provision/provision.toml, name a mirror that begins with https://, or"
        f' the checksum of the file: [distros.cos.archive] sha256 = {{ "{name}" = "…" }} (sha256sum'
        " says it, of a copy that you trust).",
    )


def _config_file(settings: Settings, tree_config: TreeConfig, kernel: str) -> Path:
    if tree_config.config is not None:
        names = [filled(tree_config.config, kernel)]
    else:
        runs = kernel == kernel_release(settings.root)
        names = [*(["proc/config.gz"] if runs else []), f"boot/config-{kernel}"]
    found = next((p for name in names if (p := in_root(settings.root, name)).is_file()), None)
    if found is None:
        raise NotFoundError(
            f"The configuration of the kernel {kernel} is not there.",
            resolution="Name it as 'config' of [[trees]] in /etc/provision/provision.toml. A kernel"
            " that runs says it in /proc/config.gz (modprobe configs); of another, its build or its"
            " release has it, such as flatcar_production_image_kernel_config.txt.",
            details="\n".join(f"looked for /{name.lstrip('/')}" for name in names),
        )
    return found


def _symvers_file(settings: Settings, tree_config: TreeConfig, kernel: str) -> Path | None:
    if tree_config.symvers is None:
        path = in_root(settings.root, f"boot/symvers-{kernel}.gz")
        return path if path.is_file() else None
    path = in_root(settings.root, filled(tree_config.symvers, kernel))
    if not path.is_file():
        raise NotFoundError(
            f"There is no '{path}', which [[trees]] names as the Module.symvers of {kernel}.",
            resolution="Copy it from the folder in which the kernel was built.",
        )
    return path


def _named(tree_config: TreeConfig, kernel: str) -> str:
    return filled(str(tree_config.url or tree_config.path), kernel)


class TreeOrigin:
    """Puts the tar file of a tree into the store, from the origin that provision.toml names."""

    def __init__(
        self,
        settings: Settings,
        store: TreeStore,
        kernel: str,
        *,
        has_config: bool,
        update: bool,
    ) -> None:
        self._settings = settings
        self._store = store
        self._kernel = kernel
        self._has_config = has_config
        self._update = update

    def download(self, tree_config: TreeConfig, progress: Progress) -> SeenTree:
        """Return the tree of an address with a checksum; download it if necessary."""
        url, sha256 = filled(str(tree_config.url), self._kernel), str(tree_config.sha256)
        seen = self._seen(url, sha256)
        return seen or self._taken(url, sha256, self._store.fetch(url, sha256, progress))

    def path(self, name: str, progress: Progress) -> SeenTree:
        """Return the tree of a folder or tar file of the host or of its other slot."""
        name = filled(name, self._kernel)
        inside = name.removeprefix("/usr/")
        path = in_root(self._settings.root, name)
        usr = self._settings.usr
        # The running /usr lacks the tree of a kernel that boots next.
        if not path.exists() and usr is not None and (usr / inside).is_dir():
            path = usr / inside
        with lock(self._settings.state / "locks/trees"):
            if path.is_dir() or path.is_file():
                return self._packed(path)
            found = self._of_slot(inside, progress) if inside != name else None
        if found is None:
            raise NotFoundError(
                f"There is no tree of the kernel {self._kernel}: '{name}' is missing, on this"
                " system and in the slot that boots next.",
                resolution="For a kernel that boots next, its update has to be complete: see"
                " 'update_engine_client -status'. For any other, name the tree under [[trees]] in"
                " /etc/provision/provision.toml.",
            )
        return found

    def _packed(self, path: Path) -> SeenTree:
        origin, state = str(path), fingerprint(path)
        if seen := self._seen(origin, state):
            return seen
        draft = self._store.draft()
        try:
            if path.is_dir():
                pack(path, draft)
            else:
                shutil.copyfile(path, draft)
            # The earlier fingerprint: a folder that changes meanwhile has another one next time.
            return self._taken(origin, state, self._store.take(draft))
        finally:
            draft.unlink(missing_ok=True)

    def _of_slot(self, inside: str, progress: Progress) -> SeenTree | None:
        progress(Note(f"Looking for the tree of {self._kernel} in the slot that boots next"))
        origin = f"slot:{self._settings.root}:{inside}"
        seen = self._seen(origin)
        known = seen.fingerprint if seen else None
        draft = self._store.draft()
        try:
            state = pack_from_slot(self._settings.root, inside, draft, SAME_BYTES, known=known)
            if state is None or state == known:
                return seen if state else None
            return self._taken(origin, state, self._store.take(draft))
        finally:
            draft.unlink(missing_ok=True)

    def _seen(self, origin: str, state: str | None = None) -> SeenTree | None:
        seen = None if self._update else self._store.seen(origin, state)
        return seen if seen and (seen.config is not None or not self._has_config) else None

    def _taken(self, origin: str, state: str, tree: str) -> SeenTree:
        config = config_in(self._store.path(tree)) if self._has_config else None
        return self._store.remember(origin, state, tree, config=config)


def filled(text: str, kernel: str) -> str:
    """Put a kernel's release in place of ``{kernel}``."""
    return text.replace("{kernel}", kernel)
