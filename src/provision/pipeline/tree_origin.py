"""Where a kernel tree comes from: an address, a folder or file of the host, or its other slot."""

from __future__ import annotations

import shutil
from pathlib import Path

from provision.config import TreeConfig
from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root, lock
from provision.host.boot_entries import pack_from_slot
from provision.pipeline.tree_files import SeenTree, TreeStore, fingerprint
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress
from provision.run import run

_CONFIG = ".config"
_PACK_SECONDS = 900.0
# The same files give the same bytes, whenever and by whomever they are packed.
_SAME_BYTES = (
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--format=gnu",
)


class TreeOrigin:
    """Has a tree's tar file in the store, from where provision.toml says that the tree is.

    Args:
        settings: The host.
        store: Where the file goes.
        kernel: The kernel's release.
        has_config: Whether the kernel's configuration is in the tree, and wanted.
        update: Whether a tree is had again of which nothing seems to have changed.
    """

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

    def download(self, wanted: TreeConfig, progress: Progress) -> SeenTree:
        """Have a tree that has an address and a checksum."""
        url, sha256 = filled(str(wanted.url), self._kernel), str(wanted.sha256)
        seen = self._seen(url, sha256)
        return seen or self._taken(url, sha256, self._store.fetch(url, sha256, progress))

    def path(self, name: str, progress: Progress) -> SeenTree:
        """Have a tree that is a folder or a tar file of the host, or of its other slot.

        Raises:
            NotFoundError: It is nowhere.
        """
        name = filled(name, self._kernel)
        inside = name.removeprefix("/usr/")
        path = in_root(self._settings.root, name)
        usr = self._settings.usr
        # A kernel that boots next: the running /usr lacks its tree.
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
                _pack(path, draft)
            else:
                shutil.copyfile(path, draft)
            # The state of before: what changes meanwhile has another one the next time.
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
            state = pack_from_slot(self._settings.root, inside, draft, _SAME_BYTES, known=known)
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


def _pack(folder: Path, draft: Path) -> None:
    run(
        ["tar", "--create", *_SAME_BYTES, "--file", draft, "--directory", folder, "."],
        why="pack a kernel tree",
        timeout=_PACK_SECONDS,
    )


def config_in(tar: Path) -> str:
    """Return the .config of a prepared tree: of several in its archive, the one of the top.

    Raises:
        ProvisionError: It has none.
    """
    # Not those of the kernel's source that only end so: kernel/configs/hardening.config.
    listed = run(
        ["tar", "--list", "--no-anchored", "--file", tar, _CONFIG],
        why="look for the configuration in a kernel tree",
        check=False,
        timeout=_PACK_SECONDS,
    )
    names = [line for line in listed.stdout.splitlines() if line.rpartition("/")[2] == _CONFIG]
    if not names:
        raise ProvisionError(
            "The kernel tree has no .config, so it can't be said which compiler it takes.",
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


def filled(text: str, kernel: str) -> str:
    """Put a kernel's release in place of ``{kernel}``."""
    return text.replace("{kernel}", kernel)
