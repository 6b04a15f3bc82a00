"""Gets the files of a kernel tree: from the host, from its other slot, or from an address.

Each file lies in the package store under its sha256, which the Pin names.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.build.tree_files import (
    SAME_BYTES,
    SeenTree,
    TreeStore,
    config_in,
    fingerprint,
    pack,
    read_plain,
)
from provision.build.workspace import Settings
from provision.config import TreeConfig
from provision.distros.kernel_tree import read_config, release_address, require_symvers
from provision.errors import NotFoundError, UsageError
from provision.files import in_root, lock
from provision.host.boot_entries import pack_from_slot
from provision.host.kernels import kernel_release
from provision.pin import TreePin
from provision.progress import Note, Progress, silent

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
    architecture: str,
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
    place = release_address("cos", build_id, architecture, mirror=archive.mirror)
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
