"""Managed files, which provision wrote outside of its store, and how they differ from foreign ones.

Why a foreign file is not replaced: docs/decisions/07-store-and-modules.md.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from provision.documents import Frozen, load_json
from provision.errors import ProvisionError
from provision.files import in_root, sync_directory, write_atomic
from provision.pin import Sha256


class Change(NamedTuple):
    """One change of a host."""

    # ``unpack`` an artifact, ``save`` a copy of a foreign file, ``write`` or ``remove`` a file,
    # ``switch`` a link, refresh the host's library cache (``ldconfig``), make its ``initramfs``
    # again, or ``mount`` the driver's root.
    kind: Literal["unpack", "save", "write", "remove", "switch", "ldconfig", "initramfs", "mount"]
    path: Path
    # The file's text, the link's target, the modules that the initramfs is without, or the entry
    # that is mounted (empty: none).
    value: str = ""
    mode: int = 0o644

    def __str__(self) -> str:
        match self.kind:
            case "switch":
                return f"switch {self.path} to {self.value}"
            case "save":
                return f"save a copy of {self.path} as {self.value}"
            case "ldconfig":
                return "refresh the library cache (ldconfig)"
            case "initramfs":
                return (
                    f"make the initramfs without {self.value}"
                    if self.value
                    else "make the initramfs"
                )
            case "mount":
                verb = "mount" if self.value else "unmount"
                return f"{verb} the driver's root ({self.path.name})"
            case _:
                return f"{self.kind} {self.path}"


class Record(Frozen):
    """The record of managed files, by which provision recognises them."""

    # The sha256 of each content that a file may have, by its path on the host: of the written
    # content, and during a write also of the one before.
    files: dict[str, tuple[Sha256, ...]] = Field(default_factory=dict)
    # The entry that the host's library cache was last refreshed for.
    library_cache: str | None = None
    # The modules that the host's initramfs was last made without.
    initramfs: str = ""
    # Why it could not be made without those of now.
    initramfs_problem: str | None = None
    # The entry that the driver's root was last mounted from.
    mounted: str | None = None


class ManagedFiles(NamedTuple):
    """The managed files of a driver or of the units, with their record on disk."""

    root: Path
    # The record.
    path: Path
    # Folder for copies of foreign files.
    saved: Path

    def load(self) -> Record:
        """Read the record; return an empty one if it is missing."""
        return load_json(self.path, Record) if self.path.exists() else Record()

    def store(self, record: Record) -> None:
        """Write the record."""
        write_atomic(self.path, record.model_dump_json(indent=2) + "\n")

    def file_changes(
        self, record: Record, path: Path, text: str | None, *, mode: int = 0o644
    ) -> list[Change]:
        """Return the changes that give a file its content, or remove it."""
        present = self._content(path)
        is_same = present == (None if text is None else text.encode())
        place = self.place(path)
        is_right = is_same and not place.is_symlink()
        if is_right and (text is None or place.stat().st_mode & 0o7777 == mode):
            return []
        change = Change("remove", path) if text is None else Change("write", path, text, mode)
        if present is None or self.standing(record, path) == "lost":
            return [change]
        digest = hashlib.sha256(present).hexdigest()
        if is_same or self.standing(record, path) == "ours":
            return [change]
        return [Change("save", path, str(self.saved / f"{path.name}.{digest[:12]}")), change]

    def standing(self, record: Record, path: Path) -> Literal["ours", "lost", "foreign"]:
        """Return whether a file is as it was written, is missing or was emptied, or is another's.

        What is lost is written again; what someone else has changed is never replaced unasked. A
        crash may leave an empty file; an empty link, as that which masks a unit, was made.
        """
        present, written = self._content(path), record.files.get(self._name(path), ())
        if present is None or (not present and written and not self.place(path).is_symlink()):
            return "lost"
        return "ours" if hashlib.sha256(present).hexdigest() in written else "foreign"

    def has_written(self, record: Record, path: Path) -> bool:
        """Return whether a file was written here, as far as the record says."""
        return self._name(path) in record.files

    def place(self, path: Path) -> Path:
        """Return where a file lies, with links of its folders resolved; it may be a link itself."""
        return in_root(self.root, self._name(path), follow=False)

    def make(self, change: Change) -> None:
        """Save, write or remove a file."""
        match change.kind:
            case "save":
                content = self._content(change.path) or b""
                write_atomic(Path(change.value), content, mode=0o600)
            case "write":
                self.write(change.path, change.value, mode=change.mode)
            case "remove":
                place = self.place(change.path)
                place.unlink()
                sync_directory(place.parent)

    def write(self, path: Path, text: str, *, mode: int = 0o644) -> None:
        """Write a file; the record lists the new content first, in case this process is killed."""
        name = self._name(path)
        record = self.load()
        content = self._content(path)
        present = [] if content is None else [hashlib.sha256(content).hexdigest()]
        new = hashlib.sha256(text.encode()).hexdigest()
        known = tuple(digest for digest in record.files.get(name, ()) if digest in present)
        files = {**record.files, name: (*known, new)}
        self.store(record.model_copy(update={"files": files}))
        write_atomic(self.place(path), text, mode=mode)

    def _content(self, path: Path) -> bytes | None:
        """Return a file's content, through links below the root; None if there is no such file.

        A link that leads nowhere, such as one that masks a unit, counts as an empty file.
        """
        real = in_root(self.root, self._name(path))
        if real.exists():
            return real.read_bytes()
        return b"" if self.place(path).is_symlink() else None

    def _name(self, path: Path) -> str:
        return f"/{path.relative_to(self.root)}"


def refuse_foreign(changes: Iterable[Change], resolution: str) -> None:
    """Refuse changes that would replace foreign files."""
    foreign = [str(change.path) for change in changes if change.kind == "save"]
    if foreign:
        raise ProvisionError(
            "A file that has to be written was written or changed by someone else.",
            resolution=resolution,
            details="\n".join(foreign),
        )
