"""The files of a build context that are not rendered: packages, sources, commits, kernel trees.

They lie in the package store. So do the parts of NVIDIA's .run, which are made only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from pydantic import Field

from provision.build.dockerfile import RenderedContext
from provision.build.package_store import PackageStore, closure_key
from provision.build.resolve import Resolved
from provision.build.workspace import Settings
from provision.documents import Frozen, load_json
from provision.errors import ProvisionError
from provision.files import lock, mark_used, scratch, write_atomic
from provision.pin import RunfileSource, Sha256
from provision.progress import Event, Note, Tally, current_listener, listening, report
from provision.sources.runfile import repack


class _Index(Frozen):
    """The record of the parts of a .run in the store: sha256 by part."""

    schema_version: int = Field(default=1, alias="schema")
    parts: dict[str, Sha256]


def ensure_parts(
    settings: Settings, source: RunfileSource, fetch: Callable[[], Path]
) -> Mapping[str, Path]:
    """Return the parts of a .run by name, made and put into the package store if necessary.

    Args:
        fetch: Returns the verified file; called only if its parts are missing.
    """
    key = closure_key(source.model_dump(mode="json", exclude={"url"}))
    store = PackageStore(settings.state)
    index = store.runfiles / f"{key}.json"
    waiting = "Another process is taking the same file apart; waiting for it"
    with lock(settings.state / "locks" / f"runfile-{key[:32]}", waiting=waiting):
        with suppress(ProvisionError):
            found = {part: store.whole(one) for part, one in load_json(index, _Index).parts.items()}
            whole = {part: path for part, path in found.items() if path is not None}
            if len(whole) == len(found):
                mark_used(index)
                return whole
        run = fetch()
        report(Note(f"Taking {source.url.rpartition('/')[2]} apart, without running it"))
        with scratch(settings.state, f"parts-{key[:32]}") as draft:
            parts = repack(run, source, draft)
            kept = {name: store.take(path, sync=False) for name, path in parts.items()}
        text = _Index(parts=kept).model_dump_json(by_alias=True, indent=1)
        write_atomic(index, f"{text}\n")
        return {name: store.path(digest) for name, digest in kept.items()}


def downloaded_files(
    settings: Settings, resolved: Resolved, context: RenderedContext
) -> dict[str, Path]:
    """Return the files of a build context that are not rendered, in the package store."""
    store = PackageStore(settings.state)
    fetched = _fetched(store, resolved, context.downloads)
    for source in resolved.pin.sources:
        if context.parts and isinstance(source, RunfileSource):
            name = source.url.rpartition("/")[2]
            fetch = partial(store.fetch, source.sha256, (source.url,), name=name)
            parts = ensure_parts(settings, source, fetch)
            fetched |= {path: parts[part] for path, part in context.parts.items()}
    return fetched


def _fetched(store: PackageStore, resolved: Resolved, files: Mapping[str, str]) -> dict[str, Path]:
    """Return the files of a Pin, given the sha256 of each path; download what is missing."""
    sizes = {package.sha256: package.size for package in resolved.pin.closure}
    sources = {s.sha256: s.address for s in resolved.pin.sources if s.address}
    there = {path: store.whole(sha256) for path, sha256 in files.items()}
    missing = [path for path, found in there.items() if found is None]
    fetched = {path: found for path, found in there.items() if found is not None}
    if missing:
        sized = [sizes[files[path]] for path in missing if files[path] in sizes]
        more = " and others" if len(sized) < len(missing) else ""
        size = f" ({sum(sized) / 1_000_000:.1f} MB{more})" if sized else ""
        report(Note(f"Downloading {len(missing)} file{'s' * (len(missing) > 1)}{size}"))

    listener = current_listener()

    def without_notes(event: Event) -> None:
        # No line for each of many files.
        if not isinstance(event, Note):
            listener(event)

    for number, path in enumerate(missing):
        sha256 = files[path]
        urls = (sources[sha256],) if sha256 in sources else tuple(resolved.urls.get(sha256, ()))
        # The context names some files by their checksums; an address has a name for people.
        name = unquote((urls[0] if urls else path).rpartition("/")[2])
        size = f" ({sizes[sha256] / 1_000_000:.1f} MB)" if sha256 in sizes else ""
        report(Tally(len(missing), {"downloaded": number}, (f"{name}{size}",)))
        with listening(without_notes):
            fetched[path] = store.fetch(sha256, urls, name=name, size=sizes.get(sha256))
    if missing:
        report(Tally(0))
    return fetched
