"""The files of a bundle for an air gap, which are verified before anything of them is used.

``SHA256SUMS`` names every file with its checksum, and ``SHA256SUMS.sig`` is its signature: ECDSA
over P-256, in DER. Programs that every distro has verify both, before anything of ours is there:
``openssl dgst -sha256 -verify fleet.pub -signature SHA256SUMS.sig SHA256SUMS`` and
``sha256sum --check SHA256SUMS``.

A bundle brings no trust: the host that reads it decides which keys count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision.build.workspace import Settings
from provision.errors import NotFoundError, ProvisionError
from provision.progress import Note, Progress, Transfer, silent
from provision.registry.registries import BUNDLE_IMAGES, TrustOverride, trusted_keys
from provision.registry.signatures import UntrustedError
from provision.registry.storage import Files, open_files, read_small, refused

SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
# No blanks, no '..', nothing hidden: names that every file system and shell takes.
_PART = r"[A-Za-z0-9_][A-Za-z0-9._+~:-]*"
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_PART}(?:/{_PART})*)")
_LONGEST_SUMS = 16 << 20
_LONGEST_SIGNATURE = 4096


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose list of files has a valid signature."""

    files: Files
    # Their checksums (sha256), by path.
    sums: Mapping[str, str]
    # The key that signed the list; None if no signature was required.
    signed_by: str | None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.files.name

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers that it has images of."""
        parts = (path.split("/") for path in self.sums)
        return tuple(sorted({each[1] for each in parts if each[0] == BUNDLE_IMAGES and each[1:]}))

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
        if path not in self.sums:
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


def open_bundle(settings: Settings, path: Path, consent: TrustOverride) -> Bundle:
    """Return a bundle once the signature of its list of files is verified; reads no other file."""
    files = open_files(path)
    try:
        sums = read_small(files, SUMS, _LONGEST_SUMS)
    except NotFoundError as error:
        raise NotFoundError(
            f"'{path}' is no bundle: {error.message}",
            resolution="Name the folder or archive that 'provision bundle create' wrote. If that"
            " command was interrupted, run it again to continue.",
        ) from error
    signed_by = _verified(settings, files, sums, consent)
    return Bundle(files, _parse_sums(files.name, sums), signed_by)


def check_files(bundle: Bundle, *, progress: Progress = silent) -> None:
    """Compare every file of a bundle with its checksum."""
    progress(Note(f"Verifying {len(bundle.sums)} files of {bundle.name}"))
    wrong = []
    for number, (path, sha256) in enumerate(bundle.sums.items(), 1):
        progress(Transfer("Verifying files", number, len(bundle.sums)))
        try:
            with bundle.open(path) as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type] # any binary stream
        except ProvisionError as error:
            wrong.append(f"{path}: {error.message}")
        except OSError as error:
            wrong.append(f"{path}: it can't be read: {error.strerror}")
        else:
            if found != sha256:
                wrong.append(f"{path}: its content is not what is signed")
    if wrong:
        raise ProvisionError(
            f"The bundle '{bundle.name}' is damaged: {len(wrong)} of its {len(bundle.sums)}"
            " files are not what is signed. Nothing of it was used.",
            resolution="Copy it again, and check the medium for damage. 'provision bundle create'"
            " with the same folder replaces what is missing.",
            details="\n".join(wrong),
        )


def sums_text(files: Mapping[str, str]) -> bytes:
    """Return checksums by path in the format of ``sha256sum --check``."""
    return "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(files.items())).encode()


def _verified(settings: Settings, files: Files, sums: bytes, consent: TrustOverride) -> str | None:
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
