"""Images of artifacts: found, examined before anything of them is used, and unpacked.

In this order: the manifest's bytes, their digest, the signature of that digest, what the signature
says, the image's configuration, and then its layers, all by their digests.
"""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from provision.documents import parse_json
from provision.errors import ConfigError, ProvisionError
from provision.pin import PIN_LABEL, Pin
from provision.progress import Note, Progress, silent
from provision.registry.client import Content
from provision.registry.documents import (
    LONGEST_MANIFEST,
    ImageConfig,
    Index,
    Manifest,
    check_image,
    parse_config,
    parse_manifest,
)
from provision.registry.names import Reference
from provision.registry.repository import Repository
from provision.registry.signature import Facts, UntrustedError, Verified

# What a layer may unpack to; a driver has some 1.5 GB.
_LARGEST_CONTENT = 16 << 30
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """An image of a registry, of which nothing but manifest and configuration was read.

    Attributes:
        client: Its repository.
        reference: Its name, with the digest.
        manifest: Its manifest, whose bytes have that digest.
        config: Its configuration, by the digest that the manifest names.
        pin: The Pin in the configuration.
    """

    client: Repository
    reference: Reference
    manifest: Manifest
    config: ImageConfig
    pin: Pin


@dataclass(frozen=True, slots=True)
class Trusted:
    """An image that is signed as it has to be, or whose owner said that it need not be.

    Attributes:
        image: The image.
        verified: Who signed it, and what is signed; None: nothing was asked for.
    """

    image: Found
    verified: Verified | None

    @property
    def facts(self) -> Facts | None:
        """What is signed."""
        return self.verified.facts if self.verified else None


def find(
    client: Repository,
    architecture: str,
    *,
    examine: Callable[[str], Verified | None] | None = None,
) -> Trusted:
    """Return the image of a client's reference, once its signature was examined.

    Args:
        client: Its repository, and the name that is looked for.
        architecture: As ``uname -m`` prints it, where the name is of several images.
        examine: Verifies the signature of a manifest with this digest; None: nothing is asked for.

    Raises:
        NotFoundError: The registry does not have it, or not for this architecture.
        UntrustedError: It is not signed as it has to be.
        UnreachableError: The registry kept failing.
        ProvisionError: It is no artifact image.
    """
    name = str(client.reference)
    content, manifest = _manifest(client, architecture)
    reference = client.reference.with_digest(content.digest)
    verified = examine(content.digest) if examine else None
    check_image(manifest, name)
    config = parse_config(client.blob(manifest.config, LONGEST_MANIFEST), manifest, name)
    image = Found(client, reference, manifest, config, _pin(config, name))
    if verified is not None and verified.facts is not None:
        _same(verified.facts, image)
    return Trusted(image, verified)


def _manifest(client: Repository, architecture: str) -> tuple[Content, Manifest]:
    """Return the manifest of an image, chosen from an index where the name is of one."""
    name = str(client.reference)
    content = client.manifest(client.reference.digest or client.reference.tag or "latest")
    found = parse_manifest(content.data, name)
    if isinstance(found, Index):
        content = client.manifest(found.of(architecture, name).digest)
        found = parse_manifest(content.data, name)
    if isinstance(found, Index):
        raise ProvisionError(f"'{name}' is refused: it is an index of indexes.")
    return content, found


def _pin(config: ImageConfig, name: str) -> Pin:
    try:
        return parse_json(config.labels[PIN_LABEL], Pin, name=f"{name}: {PIN_LABEL}")
    except (KeyError, ConfigError) as error:
        raise ProvisionError(
            f"'{name}' is no artifact image: it has no Pin in its label {PIN_LABEL}.",
            resolution="Name an image that 'provision build --push' or 'provision push' put there.",
            details=error.details if isinstance(error, ConfigError) else None,
        ) from error


def facts_of(pin: Pin, serial: int) -> Facts:
    """Return what is said of the artifact of a Pin when its image is signed."""
    return Facts(
        pin=pin.digest,
        driver=pin.driver.name,
        version=pin.driver.version,
        flavour=pin.driver.flavour,
        distro=f"{pin.distro.id}:{pin.distro.version}",
        kernel=pin.kernel.release,
        architecture=pin.kernel.architecture,
        serial=serial,
    )


def _same(facts: Facts, image: Found) -> None:
    """See that an image is what its signature says.

    Raises:
        UntrustedError: It is another.
    """
    if facts_of(image.pin, facts.serial) != facts:
        raise UntrustedError(
            f"'{image.reference}' is refused: its Pin is not the one that is signed.",
            resolution="Sign it again: provision sign",
        )


def unpack_layers(
    image: Found,
    folder: Path,
    unpack: Callable[[IO[bytes]], None],
    *,
    progress: Progress = silent,
) -> None:
    """Download an image's layers and unpack each once it is known to be right.

    Args:
        image: The image.
        folder: Where a layer lies meanwhile; it is gone afterwards.
        unpack: Unpacks a tar stream; it is called once a layer.
        progress: Told what is received.

    Raises:
        WrongContentError: A layer is not what its digest says.
        UnreachableError: The registry kept failing.
        ProvisionError: A layer can't be decompressed, or unpacks to too much.
        OSError: The disk is full.
    """
    progress(Note(f"Pulling {image.reference}"))
    for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True):
        with tempfile.TemporaryDirectory(prefix=".layer-", dir=folder) as name:
            file = Path(name, "layer")
            image.client.download(layer, file, progress=progress)
            with file.open("rb") as stored:
                plain = gzip.GzipFile(fileobj=stored) if layer.is_gzip else stored
                stream = _Bounded(cast("IO[bytes]", plain), _LARGEST_CONTENT)
                unpack(cast("IO[bytes]", stream))
                stream.finish()
        if stream.digest != diff_id:
            raise ProvisionError(
                f"'{image.reference}' is refused: a layer does not unpack to what the image's"
                " configuration says.",
                resolution="Push the image again.",
            )


class _Bounded:
    """Reads a stream, counting and hashing what comes.

    Raises:
        ProvisionError: It can't be decompressed, or is too long.
    """

    def __init__(self, source: IO[bytes], limit: int) -> None:
        self._source = source
        self._left = limit
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of everything that was read."""
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, size: int) -> bytes:
        try:
            data = self._source.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ProvisionError(
                "A layer of the image can't be decompressed.", details=str(error)
            ) from error
        self._left -= len(data)
        if self._left < 0:
            raise ProvisionError(
                f"A layer of the image unpacks to more than {_LARGEST_CONTENT} bytes.",
                resolution="This is no artifact image that provision built: don't use it.",
            )
        self._hash.update(data)
        return data

    def finish(self) -> None:
        """Read what follows the archive's end."""
        while self.read(_CHUNK):
            pass
