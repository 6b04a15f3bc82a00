"""Repositories of images: in a registry, which skopeo reads and writes, or in a folder.

skopeo logs in, follows redirects, retries, compares each content with its digest, and knows what
admins have set up for their registries: ``auth.json``, ``registries.conf``, ``certs.d``. Digests
stay the same, so signatures do. Source: skopeo(1), containers-auth.json(5).

A folder is an OCI image layout, which hosts without skopeo read too. Signatures lie under their
tags, as in a registry. The medium is not trusted: only regular files are read, and all contents are
compared with their digests.
Source: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Protocol, Self

from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError, WrongContentError
from provision.explain import Kind, explain
from provision.files import lock, scratch, write_atomic
from provision.progress import Transfer, current_listener, report
from provision.registry import (
    BLOBS,
    DIGEST,
    LONGEST_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Content,
    Descriptor,
    ImageManifest,
    Index,
    Reference,
    blob_path,
    content_digest,
    parse_manifest,
)
from provision.run import HOSTILE_MEMORY, Completed, find_program, run

INDEX = "index.json"
MARKER = "oci-layout"
MARKER_TEXT = '{"imageLayoutVersion":"1.0.0"}'
# https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
REF_NAME = "org.opencontainers.image.ref.name"
# How `cosign save` marks what it writes: image and signatures, without names.
_COSIGN_KIND = "kind"
_COSIGN_SIGNATURES = "dev.cosignproject.cosign/sigs"
_CHUNK = 1 << 20


class Repository(Protocol):
    """A repository that images are read from and written to."""

    @property
    def reference(self) -> Reference:
        """The selected image."""

    def options(self, side: str) -> AbstractContextManager[list[str]]:
        """Yield what skopeo needs to reach it as ``src`` or ``dest`` of a copy, or by itself."""

    def name(self, name: str) -> str:
        """Return the name for skopeo of an image, given by its tag or digest."""

    def at(self, reference: Reference) -> Self:
        """Return the same repository for another of its images."""

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""

    def config(self, digest: str, manifest: ImageManifest) -> bytes:
        """Return the configuration of an image; the digest is of its manifest."""

    def fetch(
        self, digest: str, manifest: ImageManifest, layers: Collection[Descriptor], folder: Path
    ) -> None:
        """Put some layers of an image into a folder, at ``blob_path``, compared with their digests.

        Args:
            folder: An empty folder, or the one of an earlier call.
        """

    def tags(self) -> tuple[str, ...]:
        """Return the tags."""

    def put_image(self, tag: str, manifest: bytes, blobs: Sequence[bytes]) -> str:
        """Write an image under a tag; return its digest.

        Args:
            blobs: Those of its blobs that the repository may lack.
        """

    def tag(self, digest: str, tag: str) -> None:
        """Make a tag lead to an image that the repository has."""


def find_digest(repository: Repository, name: str) -> str | None:
    """Return the digest of a manifest; None if it is missing."""
    try:
        return repository.manifest(name).digest
    except NotFoundError:
        return None


def _open(folder: Path, path: str) -> IO[bytes]:
    """Open a regular file below a folder: neither it nor a folder on the way may be a link."""
    parts = PurePosixPath(path).parts
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            os.close(above)
            above = inner
        # Opening a FIFO would block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(parts[-1], flags, dir_fd=above)
    except FileNotFoundError as error:
        raise refused(folder, f"it has no file '{path}'") from error
    except OSError as error:
        raise refused(folder, f"'{path}' in it can't be read ({error.strerror})") from error
    finally:
        os.close(above)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise refused(folder, f"'{path}' in it is no regular file")
    return os.fdopen(handle, "rb")


def _read_small(folder: Path, path: str) -> bytes:
    with _open(folder, path) as stream:
        data = stream.read(LONGEST_MANIFEST + 1)
    if len(data) > LONGEST_MANIFEST:
        raise refused(folder, f"'{path}' in it is larger than {LONGEST_MANIFEST} bytes")
    return data


def refused(name: Path, why: str) -> ProvisionError:
    """Return the error for content of a medium that an image can't have."""
    return ProvisionError(
        f"'{name}' is refused: {why}.",
        resolution="Don't use it. Have it made again by those whom you trust, and copied once"
        " more.",
    )


class ImageLayout(NamedTuple):
    """The images of an OCI image layout; what is written is in a folder of ours."""

    folder: Path
    reference: Reference

    @property
    def names(self) -> Mapping[str, Descriptor]:
        """The entries of its index by tag; entries without a tag by digest."""
        return _names(self.folder)

    def options(self, _side: str) -> AbstractContextManager[list[str]]:
        """Return no options: a folder is reached without."""
        return nullcontext([])

    def name(self, name: str) -> str:
        """Return the name for skopeo of an image, given by its tag or digest."""
        if DIGEST.fullmatch(name):
            # skopeo finds what is in a folder by tags only.
            name = next(tag for tag, entry in self.names.items() if entry.digest == name)
        return f"oci:{self.folder}:{name}"

    def at(self, reference: Reference) -> Self:
        """Return the same layout for another of its images."""
        return self._replace(reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""
        digest = name
        if not DIGEST.fullmatch(name):
            entry = self.names.get(name)
            if entry is None:
                raise NotFoundError(
                    f"'{self.folder}' has no image '{name}'.",
                    resolution="Check the name: the folder's index.json lists the images.",
                )
            digest = entry.digest
        data = _read_small(self.folder, _blob(digest))
        self._compare(digest, content_digest(data))
        return Content(data, digest)

    def config(self, digest: str, manifest: ImageManifest) -> bytes:
        """Return the configuration of an image."""
        del digest
        return _read_small(self.folder, _blob(manifest.config.digest))

    def fetch(
        self, digest: str, manifest: ImageManifest, layers: Collection[Descriptor], folder: Path
    ) -> None:
        """As ``Repository.fetch``."""
        del digest, manifest
        (folder / BLOBS).mkdir(parents=True, exist_ok=True)
        for layer in layers:
            target = blob_path(folder, layer)
            if target.exists():
                continue
            sha256 = hashlib.sha256()
            try:
                with _open(self.folder, _blob(layer.digest)) as source, target.open("xb") as copied:
                    # The digest decides in the end; no more is written than the manifest says.
                    while chunk := source.read(min(_CHUNK, layer.size + 1 - copied.tell())):
                        copied.write(chunk)
                        sha256.update(chunk)
                        text = f"Reading {layer.digest[7:19]}"
                        report(Transfer(text, copied.tell(), layer.size))
                self._compare(layer.digest, f"sha256:{sha256.hexdigest()}")
            except BaseException:
                target.unlink(missing_ok=True)
                raise

    def tags(self) -> tuple[str, ...]:
        """Return the names in the index."""
        return tuple(self.names)

    def put_image(self, tag: str, manifest: bytes, blobs: Sequence[bytes]) -> str:
        """As ``Repository.put_image``."""
        for blob in (*blobs, manifest):
            digest = content_digest(blob)
            write_atomic(self.folder / _blob(digest), blob)
        self._set_tag(tag, digest, manifest)
        return digest

    def tag(self, digest: str, tag: str) -> None:
        """As ``Repository.tag``."""
        self._set_tag(tag, digest, self.manifest(digest).data)

    def _set_tag(self, tag: str, digest: str, manifest: bytes) -> None:
        index = self.folder / INDEX
        entry = {
            "mediaType": json.loads(manifest).get("mediaType") or OCI_MANIFEST,
            "digest": digest,
            "size": len(manifest),
            "annotations": {REF_NAME: tag},
        }
        with lock(self.folder / MARKER):
            kept = [
                one
                for one in json.loads(index.read_text())["manifests"]
                if one.get("annotations", {}).get(REF_NAME) != tag
            ]
            _write_index(index, [*kept, entry])

    def _compare(self, expected: str, got: str) -> None:
        if got != expected:
            raise WrongContentError(
                f"'{self.folder}' is damaged: what it has under {expected} is another content.",
                resolution="Copy it again, or have it made again by those whom you trust.",
                details=f"expected {expected}\ngot      {got}",
            )


def _blob(digest: str) -> str:
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def _names(folder: Path) -> dict[str, Descriptor]:
    index = parse_manifest(_read_small(folder, INDEX), f"{folder}: {INDEX}")
    if not isinstance(index, Index):
        raise refused(folder, f"'{INDEX}' in it is no index")
    found: dict[str, Descriptor] = {}
    signatures = []
    for one in index.manifests:
        tag = one.annotations.get(REF_NAME)
        if one.annotations.get(_COSIGN_KIND) == _COSIGN_SIGNATURES and tag is None:
            signatures.append(one)
            continue
        # Some programs write the whole name there.
        tag = one.digest if tag is None else tag.rpartition("/")[2].rpartition(":")[2]
        if found.get(tag, one).digest != one.digest:
            raise refused(folder, f"two images in it are called '{tag[:80]}'")
        found[tag] = one
    if len(signatures) == 1 and len(found) == 1:
        (image,) = found.values()
        found[f"{image.digest.replace(':', '-')}.sig"] = signatures[0]
    return found


def folder_layout(reference: Reference) -> ImageLayout:
    """Return the repository of a reference in a folder, of which nothing is trusted."""
    folder = Path(str(reference.layout))
    if not (folder / MARKER).is_file():
        raise NotFoundError(
            f"'{folder.parent}' has no images of {folder.name}.",
            resolution=f"See what is there: ls {folder.parent}. 'provision build {folder.name}"
            f" --push oci:{folder.parent} --sign' adds an image.",
        )
    return ImageLayout(folder, reference)


def writable_layout(folder: Path, reference: Reference) -> ImageLayout:
    """Return the layout in a folder of our own; made where it is missing."""
    (folder / BLOBS).mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        write_atomic(folder / MARKER, MARKER_TEXT)
    if not (folder / INDEX).exists():
        _write_index(folder / INDEX, [])
    return ImageLayout(folder, reference)


def _write_index(path: Path, manifests: Sequence[object]) -> None:
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(manifests)}
    write_atomic(path, json.dumps(document, indent=1) + "\n")


# Variables that say where skopeo finds credentials and settings.
_SETTINGS = (
    "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "DOCKER_CONFIG",
    "CONTAINERS_REGISTRIES_CONF",
)
# For requests of some kB, and what a copy may take for each byte on a slow line.
_REQUEST_S = 120.0
_END_S = 10.0
_SECONDS_A_BYTE = 1 / (64 << 10)
_RETRIES = 3
# skopeo does not retry after it.
_SERVER_ERROR = "received unexpected HTTP status: 500"
_PAUSES_S = (0.3, 1.0, 3.0)
_LOOK_S = 0.5
_SPARE_BYTES = 1 << 20
# Some 100,000 tags, or four of the largest manifests.
_MOST_OUTPUT = 16 << 20
# What Go prints after the reason for which it ends.
_TRACE = re.compile(r"^(runtime stack|goroutine \d+)", re.MULTILINE)
# Of the one image in a layout that is made for a copy.
_TAG = "image"


class Registry(NamedTuple):
    """A repository of a registry, read and written by skopeo.

    What its methods raise: NotFoundError, WrongContentError (another content than its digest says),
    DeniedError, UnreachableError, and ProvisionError for all else; OSError: the disk is full.
    """

    reference: Reference
    # File with the authorities of its certificate; None: skopeo's and the system's.
    ca: Path | None = None
    plain_http: bool = False
    # File with its credentials; None: those that skopeo finds.
    auth_file: Path | None = None

    @contextmanager
    def options(self, side: str) -> Iterator[list[str]]:
        """Yield the options that reach it as the source (``src``) or target (``dest``) of a copy.

        Other commands know no sides: ``side`` is empty.
        """
        prefix = f"--{side}-" if side else "--"
        found = [f"{prefix}authfile={self.auth_file}"] if self.auth_file else []
        is_local = self.reference.is_loopback and self.ca is None
        if self.plain_http or is_local:
            found.append(f"{prefix}tls-verify=false")
        if self.ca is None:
            yield found
            return
        with tempfile.TemporaryDirectory(prefix="provision-ca-") as folder:
            Path(folder, "registry.crt").symlink_to(self.ca)
            yield [*found, f"{prefix}cert-dir={folder}"]

    def name(self, name: str) -> str:
        """Return the name for skopeo of an image, given by its tag or digest."""
        separator = "@" if name.startswith("sha256:") else ":"
        return f"docker://{self.reference.name}{separator}{name}"

    def at(self, reference: Reference) -> Self:
        """Return the same repository for another of its images."""
        return self._replace(reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""
        data = self._output(("inspect", "--raw"), self.name(name)).encode()
        digest = content_digest(data)
        if name.startswith("sha256:") and name != digest:
            raise WrongContentError(
                f"'{self.reference.name}@{name}' does not match its digest: the registry serves"
                " different content.",
                resolution="Don't use it: try a mirror of the registry, or push the image again.",
            )
        return Content(data, digest)

    def config(self, digest: str, manifest: ImageManifest) -> bytes:
        """Return the configuration of an image."""
        del manifest
        return self._output(("inspect", "--config", "--raw"), self.name(digest)).encode()

    def tags(self) -> tuple[str, ...]:
        """Return the tags."""
        listing = self._output(("list-tags",), f"docker://{self.reference.name}")
        return tuple(json.loads(listing)["Tags"] or ())

    def fetch(
        self, digest: str, manifest: ImageManifest, layers: Collection[Descriptor], folder: Path
    ) -> None:
        """As ``Repository.fetch``."""
        (folder / BLOBS).mkdir(parents=True, exist_ok=True)
        # skopeo does not copy a blob that is there: this is how it leaves out layers.
        left_out = [
            path
            for layer in manifest.layers
            if layer not in layers and not (path := blob_path(folder, layer)).exists()
        ]
        for path in left_out:
            path.touch()
        size = sum(layer.size for layer in layers)
        text, hear = f"Pulling {self.reference}", current_listener()
        try:
            copy(
                self,
                digest,
                ImageLayout(folder, self.reference),
                _TAG,
                size=size,
                on_bytes=lambda done: hear(Transfer(text, min(done, size), size)),
            )
        finally:
            for path in left_out:
                path.unlink()

    def put_image(self, tag: str, manifest: bytes, blobs: Sequence[bytes]) -> str:
        """As ``Repository.put_image``."""
        with tempfile.TemporaryDirectory(prefix="provision-push-") as name:
            layout = writable_layout(Path(name), self.reference)
            digest = layout.put_image(_TAG, manifest, blobs)
            copy(layout, _TAG, self, tag)
        return digest

    def tag(self, digest: str, tag: str) -> None:
        """As ``Repository.tag``."""
        copy(self, digest, self, tag)

    def _output(self, command: tuple[str, ...], name: str) -> str:
        with self.options("") as options:
            argv = [*command, f"--retry-times={_RETRIES}", *options, name]
            done = _run(argv, why="read registries", timeout=_REQUEST_S)
        if done.returncode:
            raise _error(f"Could not read {name.removeprefix('docker://')}.", done, self)
        return done.stdout


def copy(
    source: Repository,
    name: str,
    target: Repository,
    tag: str,
    *,
    size: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Copy an image, or all images of an index, to a tag.

    Args:
        name: Its tag or digest in the source.
        size: How many bytes it has: no file that skopeo writes gets larger, and a slow line gets
            the time that it needs; 0: not known.
        on_bytes: Called now and then with the bytes that a layout's folder has.
    """
    argv = ["copy", "--quiet", "--all", "--preserve-digests", f"--retry-times={_RETRIES}"]
    with ExitStack() as stack:
        for side, place in (("src", source), ("dest", target)):
            argv += stack.enter_context(place.options(side))
        argv += [source.name(name), target.name(tag)]
        if isinstance(target, ImageLayout) and on_bytes is not None:
            stack.enter_context(_watched(target.folder, on_bytes))
        limit = _REQUEST_S + size * _SECONDS_A_BYTE if size else _REQUEST_S * 30
        done = _run(argv, why="copy images", timeout=limit, largest=size)
    if done.returncode:
        registry = source if isinstance(source, Registry) else target
        raise _error(f"Could not copy {argv[-2]} to {argv[-1]}.", done, registry)


def push_image(engine: Engine, image_id: str, target: Repository, *, state: Path) -> str:
    """Copy an image of an engine to the tag of a repository's reference; return its digest there.

    An engine that pushes it by itself would do so with credentials and settings of its own.
    """
    with scratch(state, "engine-image") as folder, ExitStack() as stack:
        saved, digest = folder / "saved.tar", folder / "digest"
        with saved.open("wb") as stream:
            for chunk in engine.save(image_id):
                stream.write(chunk)
        argv = ["copy", "--quiet", f"--retry-times={_RETRIES}", f"--digestfile={digest}"]
        argv += stack.enter_context(target.options("dest"))
        argv += [f"docker-archive:{saved}", target.name(str(target.reference.tag))]
        done = _run(argv, why="copy images", timeout=_REQUEST_S * 30)
        if done.returncode:
            raise _error(f"'{target.reference}' could not be pushed.", done, target)
        return digest.read_text().strip()


def _run(argv: list[str], *, why: str, timeout: float, largest: int = 0) -> Completed:
    if find_program("skopeo") is None:
        # No NotFoundError: a caller must not take this for a missing image.
        raise ProvisionError(
            f"The program 'skopeo' is not installed, which is needed to {why}.",
            resolution="Install it: apt-get install skopeo (dnf, zypper: the same name). On a host"
            " without packages, the DaemonSet's image has it ('provision export daemonset').",
        )
    # What this machine's policy.json demands is not what we verify.
    argv = ["skopeo", "--insecure-policy", f"--command-timeout={timeout:.0f}s", *argv]
    known = {key: os.environ[key] for key in _SETTINGS if key in os.environ}
    for pause_s in (*_PAUSES_S, None):
        done = run(
            argv,
            why=why,
            check=False,
            env=known,
            timeout=timeout + _END_S,
            memory=HOSTILE_MEMORY,
            most_output=_MOST_OUTPUT,
            largest_file=largest + _SPARE_BYTES if largest else None,
        )
        # Docker's registry answers so to those who read or write what another is writing.
        if pause_s is None or done.returncode == 0 or _SERVER_ERROR not in done.stderr:
            break
        time.sleep(pause_s)
    return done


@contextmanager
def _watched(folder: Path, on_bytes: Callable[[int], None]) -> Iterator[None]:
    """Report the bytes below a folder while something is written there."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            on_bytes(sum(path.stat().st_blocks * 512 for path in folder.rglob("*")))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _error(message: str, done: Completed, place: Repository) -> ProvisionError:
    output = done.stderr.strip()
    host = place.reference.registry if isinstance(place, Registry) else ""
    found = explain("skopeo", output, {"host": host})
    if found and found.kind is Kind.DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    details = _essence(output) or None
    if found is None:
        by_hand = f"Look into the registry's log, or try it by hand: {' '.join(done.argv)}"
        return ProvisionError(message, resolution=by_hand, details=details)
    cause = f"{found.cause}." if found.cause else message
    return found.kind.error(cause, resolution=found.what_to_do, details=details)


def _essence(stderr: str) -> str:
    """Return what skopeo says, without time and level."""
    lines = []
    trace = _TRACE.search(stderr)
    stderr = stderr[: trace.start()].strip() if trace else stderr
    for line in stderr.splitlines():
        _, marker, text = line.partition(' msg="')
        lines.append(text.removesuffix('"').replace('\\"', '"') if marker else line)
    return "\n".join(lines)
