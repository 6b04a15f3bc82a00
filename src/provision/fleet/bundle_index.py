"""The index of a bundle for an air gap, and its verification before anything of it is used.

``SHA256SUMS`` names every file with its checksum, and ``SHA256SUMS.sig`` is its signature: ECDSA
over P-256, in DER. Programs that every distro has verify both, before anything of ours is there:
``openssl dgst -sha256 -verify fleet.pub -signature SHA256SUMS.sig SHA256SUMS`` and
``sha256sum --check SHA256SUMS``. ``bundle.json`` says what the files are.

A bundle brings no trust: the host that reads it decides which keys count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import Field, StringConstraints

from provision.documents import Frozen, parse_json
from provision.errors import NotFoundError, ProvisionError
from provision.pin import ImageDigest, Sha256
from provision.pipeline.registries import Consent, trusted_keys
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, Transfer, silent
from provision.registry.image_signature import UntrustedError
from provision.registry.storage import Files, open_files, read_small, refused

INDEX = "bundle.json"
SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
_LONGEST_SUMS = 16 << 20
_LONGEST_SIGNATURE = 4096
_CHUNK = 1 << 20
# No blanks, no '..', nothing hidden: names that every file system and shell takes.
_PART = r"[A-Za-z0-9_][A-Za-z0-9._+~:-]*"
FilePath = Annotated[str, StringConstraints(pattern=rf"^{_PART}(/{_PART})*$", max_length=512)]


class BundleArtifact(Frozen):
    """An artifact image: its purpose and its names.

    Attributes:
        pin: Digest of its Pin.
        digest: Of its manifest.
        within: Digest of the index that its tags lead to, if that has several architectures.
        size: Bytes of its layers.
    """

    driver: str
    version: str
    flavour: str
    distro: str
    kernel: str
    architecture: str
    pin: ImageDigest
    digest: ImageDigest
    within: ImageDigest
    tags: tuple[str, ...]
    size: int


class BundleBase(Frozen):
    """A base image of builds, as an archive that engines load."""

    image: str
    digest: str
    file: FilePath


class BundleKey(Frozen):
    """A key that signed an artifact of the bundle: by its file's name and its fingerprint."""

    name: str
    fingerprint: Sha256


class BundleFile(Frozen):
    """A file of the bundle."""

    path: FilePath
    sha256: Sha256
    size: int = Field(ge=0)


class BundleIndex(Frozen):
    """A bundle's ``bundle.json``.

    Attributes:
        created: When it was made, in Unix seconds.
        registry: Where its images are from.
        artifacts: The artifact images.
        bases: Base images.
        keys: The keys by which the artifacts were verified when the bundle was made.
        files: All files but this one, ``SHA256SUMS`` and its signature.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    created: int
    registry: str
    artifacts: tuple[BundleArtifact, ...] = ()
    bases: tuple[BundleBase, ...] = ()
    keys: tuple[BundleKey, ...] = ()
    files: tuple[BundleFile, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose list of files has a valid signature.

    Attributes:
        files: Its files.
        index: What it says of them.
        signed_by: The key that signed it; None if no signature was required.
        listed: Files by path.
    """

    files: Files
    index: BundleIndex
    signed_by: str | None
    listed: Mapping[str, BundleFile] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.files.name

    def size(self, path: str) -> int:
        """Return the bytes of a file that is listed; errors as ``Files.size``."""
        self._check(path)
        return self.files.size(path)

    def open(self, path: str) -> IO[bytes]:
        """Open a file that is listed; errors as ``Files.open``."""
        self._check(path)
        return self.files.open(path)

    def below(self, folder: str) -> Folder:
        """Return the files of a folder in it."""
        return Folder(self, folder)

    def _check(self, path: str) -> None:
        if path not in self.listed:
            raise NotFoundError(
                f"The bundle '{self.name}' has no file '{path}'.",
                resolution="Copy the bundle again from where it was made.",
            )


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a folder of a bundle, as ``Files``."""

    bundle: Bundle
    path: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.bundle.name}/{self.path}"

    def size(self, path: str) -> int:
        """Return the bytes of a file."""
        return self.bundle.size(f"{self.path}/{path}")

    def open(self, path: str) -> IO[bytes]:
        """Open a file."""
        return self.bundle.open(f"{self.path}/{path}")


def open_bundle(settings: Settings, path: Path, consent: Consent) -> Bundle:
    """Return a bundle once the signature of its list of files is verified; reads no other file.

    Args:
        settings: This host, whose keys count ([trust] keys).
        path: Its folder, or tar archive.
        consent: What the caller allows.

    Raises:
        NotFoundError: There is no such bundle.
        UntrustedError: No trusted key has signed it.
        ProvisionError: It is no bundle, or provision.toml does not say whom to trust.
    """
    files = open_files(path)
    try:
        sums = read_small(files, SUMS, _LONGEST_SUMS)
        index = read_small(files, INDEX, _LONGEST_SUMS)
    except NotFoundError as error:
        raise NotFoundError(
            f"'{path}' is no bundle: {error.message}",
            resolution="Name the folder or archive that 'provision bundle create' wrote. If that"
            " command was interrupted, run it again to continue.",
        ) from error
    signed_by = _verified(settings, files, sums, consent)
    known = _parse_sums(files.name, sums)
    if known.pop(INDEX, None) != hashlib.sha256(index).hexdigest():
        raise refused(files.name, f"'{INDEX}' in it is not the one that is signed")
    parsed = parse_json(index.decode(errors="replace"), BundleIndex, name=f"{path}: {INDEX}")
    if known != {file.path: file.sha256 for file in parsed.files}:
        raise refused(files.name, f"'{SUMS}' and '{INDEX}' in it list different files")
    return Bundle(files, parsed, signed_by, {file.path: file for file in parsed.files})


def check_files(bundle: Bundle, *, progress: Progress = silent) -> None:
    """Compare every file of a bundle with its checksum.

    Raises:
        ProvisionError: Files are missing or damaged; the error lists all of them.
    """
    total, done = bundle.index.size, 0
    progress(Note(f"Verifying {len(bundle.index.files)} files of {bundle.name}"))
    wrong = []
    for file in bundle.index.files:
        try:
            if bundle.size(file.path) != file.size:
                wrong.append(f"{file.path}: it has another size than is signed")
                continue
            digest = hashlib.sha256()
            with bundle.open(file.path) as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    done += len(chunk)
                    progress(Transfer("Verifying", done, total))
        except ProvisionError as error:
            wrong.append(f"{file.path}: {error.message}")
            continue
        except OSError as error:
            wrong.append(f"{file.path}: it can't be read: {error.strerror}")
            continue
        if digest.hexdigest() != file.sha256:
            wrong.append(f"{file.path}: its content is not what is signed")
    if wrong:
        raise ProvisionError(
            f"The bundle '{bundle.name}' is damaged: {len(wrong)} of its {len(bundle.index.files)}"
            " files are not what is signed. Nothing of it was used.",
            resolution="Copy it again, and check the medium for damage. 'provision bundle create'"
            " with the same folder replaces what is missing.",
            details="\n".join(wrong),
        )


def sums_text(files: Mapping[str, str]) -> bytes:
    """Return checksums by path in the format of ``sha256sum --check``."""
    return "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(files.items())).encode()


def _verified(settings: Settings, files: Files, sums: bytes, consent: Consent) -> str | None:
    """Return the key that signed a list of files; None if no signature is required."""
    keys = trusted_keys(settings, "file:bundle", "", consent)
    if keys is None:
        return None
    try:
        signature = read_small(files, SIGNATURE, _LONGEST_SIGNATURE)
    except NotFoundError:
        why = "it is not signed"
    else:
        for key in keys:
            if key.has_signed(sums, signature):
                return key.name
        why = f"no key that this host trusts has signed it ({', '.join(k.name for k in keys)})"
    raise UntrustedError(
        f"The bundle '{files.name}' is refused: {why}.",
        resolution="Don't use it. Get a bundle that your signing key has signed ('provision bundle"
        " create --key'), or name the right public key: --public-key FILE",
    )


def _parse_sums(name: str, data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            raise refused(name, f"'{SUMS}' in it has a line that is no checksum: '{line[:80]}'")
        found[match[2]] = match[1]
    return found
