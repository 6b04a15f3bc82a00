"""Images of artifacts: found, examined before anything of them is used, and unpacked.

They are examined in this order: the manifest's bytes, their digest, the signature of that digest,
the signed facts, the image's configuration, and then its layers, all by their digests.
"""

from __future__ import annotations

import errno
import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from provision.build.request import VersionRequest
from provision.documents import parse_json
from provision.errors import ConfigError, ProvisionError, UntrustedError, WrongContentError
from provision.pin import PIN_LABEL, Pin
from provision.progress import Note, report
from provision.registry.manifests import (
    Content,
    Descriptor,
    Index,
    Manifest,
    Repository,
    blob_path,
    check_image,
    content_digest,
    parse_labels,
    parse_manifest,
)
from provision.registry.names import Reference
from provision.registry.signatures import Facts, VerifiedSignature
from provision.run import decompress

# Limit of a layer's unpacked bytes; a driver has some 1.5 GB.
LARGEST_CONTENT = 16 << 30
# Large enough that threads seldom wait for each other, small enough for a processor's cache.
_CHUNK = 256 << 10


@contextmanager
def layer_content(stored: IO[bytes], *, is_gzip: bool) -> Iterator[IO[bytes]]:
    """Yield the tar stream in a layer, which another thread decompresses ahead of its reader.

    zlib and the kernel let other threads run while they work, so two processors share the work. At
    the end, the bytes after the archive's end are read, which must be valid too.
    """
    reads, writes = os.pipe()

    def fill() -> None:
        left = LARGEST_CONTENT
        # Its reader may stop early.
        with suppress(BrokenPipeError), os.fdopen(writes, "wb") as pipe:
            source = gzip.GzipFile(fileobj=stored) if is_gzip else stored
            try:
                while data := source.read(_CHUNK):
                    left -= len(data)
                    if left < 0:
                        raise too_much()
                    pipe.write(data)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise damaged(str(error)) from error

    with ThreadPoolExecutor(1) as pool:
        filled = pool.submit(fill)
        try:
            with os.fdopen(reads, "rb") as content:
                yield content
                while content.read(_CHUNK):
                    pass
        finally:
            # Why a stream ends early, its reader does not know.
            filled.result()


def too_much() -> ProvisionError:
    """Return the error for a layer that unpacks to too many bytes."""
    return ProvisionError(
        f"A layer of the image unpacks to more than {LARGEST_CONTENT} bytes.",
        resolution="This is no artifact image that provision built: don't use it.",
    )


def damaged(details: str) -> ProvisionError:
    """Return the error for a layer that can't be decompressed; ``details`` says why."""
    return ProvisionError(
        "A layer of the image can't be decompressed.",
        resolution="Have the image pushed again by those who build it: provision registry push"
        " IMAGE",
        details=details or None,
    )


@dataclass(frozen=True, slots=True)
class ArtifactImage:
    """An artifact image of a repository, of which only manifest and configuration were read."""

    client: Repository
    # By its digest, which the bytes of the manifest have.
    reference: Reference
    manifest: Manifest
    labels: Mapping[str, str]
    # One of them.
    pin: Pin
    # Its verified signature; None if none is required.
    verified: VerifiedSignature | None = None
    # The version that was asked for. Naming a version or branch is trust to it: the image is
    # compared only with earlier ones that would have satisfied the same request.
    request: VersionRequest = field(default_factory=VersionRequest)

    @property
    def facts(self) -> Facts | None:
        """The signed facts."""
        return self.verified.facts if self.verified else None


def find(
    client: Repository,
    architecture: str,
    *,
    examine: Callable[[str], VerifiedSignature | None] | None = None,
) -> ArtifactImage:
    """Return the image of a client's reference, once its signature was examined.

    Args:
        architecture: As ``uname -m`` prints it; it selects an image of an index.
        examine: Verifies the signature of a manifest with this digest; None if none is required.

    Raises:
        NotFoundError: The registry does not have it, or not for this architecture.
        UntrustedError: It lacks the required signature.
    """
    name = str(client.reference)
    content, manifest = _manifest(client, architecture)
    reference = client.reference.with_digest(content.digest)
    verified = examine(content.digest) if examine else None
    check_image(manifest, name)
    labels = _labels(client, content.digest, manifest)
    pin = _pin(labels, name)
    if (
        verified is not None
        and verified.facts is not None
        and facts_of(pin, verified.facts.serial) != verified.facts
    ):
        raise UntrustedError(
            f"'{reference}' is refused: its Pin is not the one that is signed.",
            resolution="Sign it again: provision registry sign",
        )
    return ArtifactImage(client, reference, manifest, labels, pin, verified)


def _manifest(client: Repository, architecture: str) -> tuple[Content, Manifest]:
    """Return the manifest of an image; of an index, that for the architecture."""
    name = str(client.reference)
    content = client.manifest(client.reference.digest or client.reference.tag or "latest")
    found = parse_manifest(content.data, name)
    if isinstance(found, Index):
        content = client.manifest(found.of(architecture, name).digest)
        found = parse_manifest(content.data, name)
    if isinstance(found, Index):
        raise ProvisionError(
            f"'{name}' is refused: it is an index of indexes.",
            resolution="Push the image itself: provision registry push IMAGE",
        )
    return content, found


def _labels(client: Repository, digest: str, manifest: Manifest) -> Mapping[str, str]:
    """Return the labels in the configuration of an image."""
    data = client.config(digest, manifest)
    if content_digest(data) != manifest.config.digest:
        raise WrongContentError(
            f"'{client.reference.name}@{digest}' is damaged: its configuration is another one than"
            " its manifest names.",
            resolution="Have it pushed again by those who build it: provision registry push IMAGE",
        )
    return parse_labels(data, manifest, str(client.reference))


def _pin(labels: Mapping[str, str], name: str) -> Pin:
    try:
        return parse_json(labels[PIN_LABEL], Pin, name=f"{name}: {PIN_LABEL}")
    except (KeyError, ConfigError) as error:
        raise ProvisionError(
            f"'{name}' is no artifact image: it has no Pin in its label {PIN_LABEL}.",
            resolution="Name an image that 'provision build --push' or 'provision registry push'"
            " put there.",
            details=error.details if isinstance(error, ConfigError) else None,
        ) from error


def facts_of(pin: Pin, serial: int) -> Facts:
    """Return the facts to sign for the artifact of a Pin."""
    return Facts(
        pin=pin.digest,
        driver=pin.driver.name,
        version=pin.driver.version,
        flavour=pin.driver.flavour,
        distro=pin.distro.name,
        kernel=pin.kernel.release,
        architecture=pin.kernel.architecture,
        serial=serial,
    )


def unpack_layers(
    image: ArtifactImage,
    folder: Path,
    unpack: Callable[[IO[bytes]], None],
    *,
    is_complete: Callable[[], bool] = lambda: False,
) -> int:
    """Download an image's layers, the last first, and unpack each after its digest was compared.

    Their order does not matter: no file of an artifact is in two of them.

    Args:
        folder: Folder for the layers; nothing stays in it.
        unpack: Unpacks a tar stream; it is called once a layer.
        is_complete: Whether the content of the other layers is there already; called once the last
            one is unpacked.

    Returns:
        The bytes of the layers that were downloaded.
    """
    report(Note(f"Pulling {image.reference}"))
    digest, manifest = str(image.reference.digest), image.manifest
    *others, last = manifest.layers
    received = 0
    with tempfile.TemporaryDirectory(prefix=".layers-", dir=folder) as name:
        for layers in ([last], others[::-1]):
            if not layers or (received and is_complete()):
                break
            image.client.fetch(digest, manifest, layers, Path(name))
            for layer in layers:
                received += layer.size
                _unpack_layer(layer, blob_path(Path(name), layer), unpack, str(image.reference))
    return received


def _unpack_layer(
    layer: Descriptor, file: Path, unpack: Callable[[IO[bytes]], None], name: str
) -> None:
    plain = _unzstd(file, name) if layer.is_zstd else file
    with plain.open("rb") as stored, layer_content(stored, is_gzip=layer.is_gzip) as content:
        unpack(content)
    if plain != file:
        plain.unlink()


def _unzstd(file: Path, name: str) -> Path:
    target = file.with_name("plain")
    try:
        decompress(file, target, limit=LARGEST_CONTENT, why=f"unpack a layer of {name}")
    except ValueError as error:
        raise damaged(str(error)) from error
    except OSError as error:
        raise too_much() if error.errno == errno.EFBIG else error from error
    return target
