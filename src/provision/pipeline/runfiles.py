"""NVIDIA's .run: the vendor's checksums, and its parts in the package store, made only once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from provision.build.package_store import PackageStore, closure_key
from provision.documents import Frozen, load_json
from provision.errors import ProvisionError
from provision.files import in_root, is_writable, lock, write_atomic
from provision.pin import RunfileSource, Sha256
from provision.pipeline.tree_files import TreeStore
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, silent
from provision.sources import PublishedSum
from provision.sources.repack import repack
from provision.sources.upstream import SumRecord
from provision.store.layout import STORE


class _Index(Frozen):
    """Which files of the store are the parts of a .run: sha256 by part."""

    schema_version: int = Field(default=1, alias="schema")
    parts: dict[str, Sha256]


def vendor_sums(
    settings: Settings, *, again: bool = False, progress: Progress = silent
) -> PublishedSum:
    """Return what asks vendors for checksums, or knows what they said.

    The record lies beside the store: what is in the state folder may be deleted at any time. A user
    who may not write there, and only looks what would be built, has a record in the state folder.

    Args:
        settings: The host.
        again: Ask although it is known, and compare.
        progress: Receives what goes on.
    """
    store = in_root(settings.root, STORE)
    state = store if is_writable(store) else settings.state
    return SumRecord(state, again=again, progress=progress).sum_of


def have_parts(
    settings: Settings,
    source: RunfileSource,
    fetch: Callable[[], Path],
    *,
    progress: Progress = silent,
) -> Mapping[str, Path]:
    """Have the parts of a .run in the package store, by name.

    Args:
        settings: The host.
        source: What the Pin says of the file.
        fetch: Has the file itself, checked; not called where its parts are there.
        progress: Receives what goes on.

    Raises:
        NotFoundError: The file is nowhere, or a program that unpacks it is missing.
        ProvisionError: The file is not what the Pin says, or damaged.
        OSError: The disk is full.
    """
    key = closure_key(source.model_dump(mode="json", exclude={"url"}))
    store = PackageStore(settings.state)
    folder = store.runfiles
    index = folder / f"{key}.json"

    def waiting() -> None:
        progress(Note("Another process is taking the same file apart; waiting for it"))

    with lock(settings.state / "locks" / f"runfile-{key[:32]}", on_wait=waiting):
        known = _known(store, index)
        if known:
            return known
        run = fetch()
        progress(Note(f"Taking {source.url.rpartition('/')[2]} apart, without running it"))
        kept = _taken_apart(TreeStore(settings), run, source, folder / f".{key}")
        text = _Index(parts=kept).model_dump_json(by_alias=True, indent=1)
        write_atomic(index, f"{text}\n")
        return {name: store.path(digest) for name, digest in kept.items()}


def _taken_apart(trees: TreeStore, run: Path, source: RunfileSource, draft: Path) -> dict[str, str]:
    """Put the parts of a .run into a store, and return their sha256; errors as ``have_parts``."""
    # What a killed run left.
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        parts = repack(run, source, draft)
        return {name: trees.take(path, sync=False) for name, path in parts.items()}
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _known(store: PackageStore, index: Path) -> dict[str, Path] | None:
    """Return the parts that were made before; None where one is missing or damaged."""
    with suppress(ProvisionError):
        parts = load_json(index, _Index).parts
        found = {name: store.whole(digest) for name, digest in parts.items()}
        whole = {name: path for name, path in found.items() if path is not None}
        if len(whole) == len(found):
            # Garbage collection goes by the time of use.
            with suppress(OSError):
                os.utime(index)
            return whole
    return None
