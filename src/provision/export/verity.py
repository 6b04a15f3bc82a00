"""Disk images whose file system is protected by dm-verity, with a signature of its root hash.

Sources: https://uapi-group.org/specifications/specs/discoverable_partitions_specification/ for the
types of partitions, their UUIDs and the signature's JSON; veritysetup(8); sfdisk(8).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs7

from provision.errors import NotFoundError, UsageError
from provision.run import LONG_LIMIT_S, run

# Type UUIDs of a root file system, its verity hashes and their signature, by architecture.
_TYPES = {
    "x86_64": (
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
        "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5",
        "41092b05-9fc8-4523-994f-2def0408b176",
    ),
    "aarch64": (
        "b921b045-1df0-41c3-af44-4c6f280d3fae",
        "df3300ce-d69f-4c92-978c-9bfb0f38d820",
        "6db69de6-29f4-4758-a7a5-962190f00ce3",
    ),
    "ppc64le": (
        "c31c45e6-3f39-412e-80fb-4809c4980599",
        "906bd944-4589-4aae-a4e4-dd983917446a",
        "d4a236e7-e873-4c07-bf1d-bf6cf7f1c3c6",
    ),
    "s390x": (
        "5eead9a9-fe09-4a1e-a1d7-520d00531306",
        "b325bfbe-c7be-4ab8-8357-139e652d2f6b",
        "c80187a5-73a3-491a-901a-017c3fa953e9",
    ),
    "riscv64": (
        "72ec70a6-cf74-40e6-bd49-4bda08e8f224",
        "b6ed5582-440b-4209-b8da-5ff7c419ea3d",
        "efe0f087-ea8d-4469-821a-4c2a96a8386a",
    ),
}
_LABELS = ("root", "root-verity", "root-verity-sig")
_ROOT_HASH = re.compile(r"^Root hash:\s+([0-9a-f]{64})$", re.MULTILINE)
_SECTOR = 512
_BLOCK = 4096
_MIB = 1 << 20
_LARGEST = 1 << 20
_CHUNK = 1 << 20

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class VerityKey:
    """The key that signs the root hash, and the certificate that hosts have in /etc/verity.d."""

    key: PrivateKey
    certificate: x509.Certificate


def load_verity_key(key: Path, certificate: Path, password: bytes | None = None) -> VerityKey:
    """Read a key and its certificate, both as PEM.

    Raises:
        NotFoundError: A file is missing.
        UsageError: A file is not one of those, or they don't belong together.
    """
    try:
        private = serialization.load_pem_private_key(_read(key), password)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"'{key}' can't be read as a private key: {error}.",
            resolution="Name a PEM file of an RSA or EC key; --password-file has its password.",
        ) from error
    try:
        public = x509.load_pem_x509_certificate(_read(certificate))
    except ValueError as error:
        raise UsageError(
            f"'{certificate}' is no certificate: {error}.", resolution="Name a PEM file of one."
        ) from error
    if not isinstance(private, PrivateKey):
        raise UsageError(
            f"'{key}' is of a kind that can't sign here.", resolution="Take an RSA or an EC key."
        )
    if private.public_key() != public.public_key():
        raise UsageError(
            f"The certificate '{certificate}' is not of the key '{key}'.",
            resolution="Name the certificate that was made with that key.",
        )
    return VerityKey(private, public)


def signature_json(signer: VerityKey, root_hash: str) -> bytes:
    """Return the content of the signature partition.

    The hash is signed as text, without attributes, so that RSA keys give the same bytes each time.
    """
    builder = pkcs7.PKCS7SignatureBuilder().set_data(root_hash.encode())
    options = [
        pkcs7.PKCS7Options.DetachedSignature,
        pkcs7.PKCS7Options.Binary,
        pkcs7.PKCS7Options.NoAttributes,
    ]
    signed = builder.add_signer(signer.certificate, signer.key, hashes.SHA256()).sign(
        serialization.Encoding.DER, options
    )
    document = {
        "rootHash": root_hash,
        "certificateFingerprint": signer.certificate.fingerprint(hashes.SHA256()).hex(),
        "signature": base64.b64encode(signed).decode(),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def make_signed(data: Path, image: Path, architecture: str, signer: VerityKey) -> str:
    """Make a disk image of a file system, its verity hashes, and their signature.

    Salt and UUIDs come from the content, so that the same file system gives the same bytes.

    Args:
        data: The file system.
        image: The disk image.
        architecture: As ``uname -m`` prints it.
        signer: Signs the root hash.

    Returns:
        The root hash, as 64 hexadecimal digits.

    Raises:
        ProvisionError: A program failed.
        OSError: The disk is full.
    """
    _pad(data, _BLOCK)
    salt = _digest(data)
    tree = data.with_suffix(".verity")
    fixed = (f"--salt={salt}", f"--uuid={_uuid(salt, 'tree')}")
    words: list[str | Path] = ["veritysetup", "format", data, tree, *fixed]
    said = run(words, why="hash the file system", timeout=LONG_LIMIT_S).stdout
    found = _ROOT_HASH.search(said)
    if found is None:
        raise UsageError(
            f"veritysetup names no root hash: {said.strip()[:200]}",
            resolution="Update the program: apt-get install cryptsetup-bin",
        )
    _pad(tree, _BLOCK)
    signature = data.with_suffix(".signature")
    signature.write_bytes(signature_json(signer, found[1]))
    _pad(signature, _BLOCK)
    # The UUIDs of the first two are halves of the hash, by which systemd pairs them.
    uuids = (found[1][:32], found[1][32:], _uuid(salt, "signature"))
    parts = list(zip((data, tree, signature), map(uuid.UUID, uuids), strict=True))
    _partition(image, parts, _TYPES[architecture], salt)
    return found[1]


def _partition(
    image: Path, parts: list[tuple[Path, uuid.UUID]], types: tuple[str, ...], salt: str
) -> None:
    lines = ["label: gpt", f"label-id: {_uuid(salt, 'disk')}", "unit: sectors", ""]
    starts, at = [], _MIB
    for (file, name), kind, label in zip(parts, types, _LABELS, strict=True):
        size = file.stat().st_size
        starts.append(at)
        lines.append(
            f"start={at // _SECTOR}, size={size // _SECTOR}, type={kind}, uuid={name},"
            f' name="{label}", attrs="GUID:60"'
        )
        at += -(-size // _MIB) * _MIB
    with image.open("wb") as stream:
        stream.truncate(at + _MIB)
    run(["sfdisk", "--quiet", image], why="partition the image", stdin="\n".join(lines).encode())
    with image.open("r+b") as stream:
        for (file, _name), start in zip(parts, starts, strict=True):
            stream.seek(start)
            with file.open("rb") as content:
                while chunk := content.read(_CHUNK):
                    stream.write(chunk)


def _pad(path: Path, unit: int) -> None:
    with path.open("r+b") as stream:
        size = path.stat().st_size
        stream.truncate(-(-size // unit) * unit)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _uuid(salt: str, what: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{salt} {what}"))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(_LARGEST)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no file '{path}'.", resolution="Name a PEM file that is there."
        ) from error
