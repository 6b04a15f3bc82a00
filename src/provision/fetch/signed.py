"""Documents and files that OpenPGP keys have signed, such as the indexes of Debian archives."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from provision.errors import ProvisionError
from provision.fetch.downloads import LARGEST, download_any
from provision.fetch.http import content, request, retried
from provision.files import sync_directory
from provision.progress import Progress, silent
from provision.run import Completed, find_program, run

_BEGIN = b"-----BEGIN PGP SIGNED MESSAGE-----"
# An InRelease has some 150 kB.
_MAX_SIGNED = 16 << 20
_WHY = "check the signature of a package index"


class SignatureError(ProvisionError):
    """A document is not signed by a key that is trusted for it."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A document with a verified signature.

    Attributes:
        payload: The signed text, without the signature or other text.
        etag: The server's ETag of this content, if it sent one.
        last_modified: The server's date of this content, if it sent one.
    """

    payload: bytes
    etag: str | None = None
    last_modified: str | None = None


def get_signed(
    url: str, *, keyrings: Sequence[Path], known: Signed | None = None, patient: bool = True
) -> Signed:
    """Download a clear-signed text and return the signed part.

    Args:
        url: Its address.
        keyrings: Files with the keys that may sign it, in OpenPGP's binary form.
        known: The last known document; the server need not send an unchanged one again.
        patient: Whether to make several attempts after connection trouble.

    Returns:
        The document, or ``known`` itself if that is current.

    Raises:
        NotFoundError: The server doesn't have it, or no program that checks signatures is there.
        UnreachableError: The server can't be reached, or kept failing.
        SignatureError: It has no good signature by one of the keys.
    """
    headers = {}
    if known is not None and known.etag:
        headers["If-None-Match"] = known.etag
    if known is not None and known.last_modified:
        headers["If-Modified-Since"] = known.last_modified

    def read() -> Signed:
        with request(url, headers) as response:
            if known is not None and response.status_code == HTTPStatus.NOT_MODIFIED:
                return known
            text = b"".join(content(response, limit=_MAX_SIGNED))
            found = response.headers
        payload = verify_signed(text, keyrings=keyrings, name=url)
        return Signed(payload, found.get("ETag"), found.get("Last-Modified"))

    return retried(url, read, patient=patient)


def download_signed(
    url: str, *, keyring: Path, destination: Path, progress: Progress = silent
) -> None:
    """Download a file with a signature in ``URL.sig``.

    An existing file with a valid signature stays.

    Args:
        url: Its address.
        keyring: File with the keys that may sign it, in OpenPGP's binary form.
        destination: Path of the new file; its folder is made if it is missing.
        progress: Receives the bytes received.

    Raises:
        NotFoundError: The server lacks the file or its signature.
        UnreachableError: The server can't be reached, or kept failing.
        SignatureError: It has no good signature by one of the keys.
        OSError: The folder can't be written, or the disk is full.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    signature = destination.with_name(f".{destination.name}.sig")
    draft = destination.with_name(f".{destination.name}.draft")
    try:
        download_any(f"{url}.sig", destination=signature, limit=_MAX_SIGNED, progress=progress)
        if destination.is_file():
            draft = destination
        else:
            download_any(url, destination=draft, limit=LARGEST, progress=progress)
        verify_detached(draft, signature, keyring=keyring, name=url)
        draft.replace(destination)
        sync_directory(destination.parent)
    except SignatureError:
        destination.unlink(missing_ok=True)
        raise
    finally:
        signature.unlink(missing_ok=True)
        if draft != destination:
            draft.unlink(missing_ok=True)


def verify_signed(text: bytes, *, keyrings: Sequence[Path], name: str) -> bytes:
    """Return the signed part of a clear-signed text.

    One valid signature suffices, because a document is signed with old and new keys while keys
    change. ``gpgv`` checks it, or else ``sqv``: apt needs one of them, so every Debian has one.

    Args:
        text: The whole text.
        keyrings: Files with the keys that may sign it, in OpenPGP's binary form.
        name: Its name in messages.

    Raises:
        NotFoundError: Neither program is installed.
        SignatureError: It has no good signature by one of the keys.
    """
    # The programs skip text before the signed part; a published document has none.
    if not text.startswith(_BEGIN) or text.count(_BEGIN) != 1:
        raise SignatureError(
            f"'{name}' is not a signed document.",
            resolution="Something else answered in its place: a proxy's page, or a broken mirror.",
        )
    verify = _sqv if find_program("gpgv") is None and find_program("sqv") else _gpgv
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        signed, payload = Path(folder, "signed"), Path(folder, "payload")
        signed.write_bytes(text)
        good, done = verify(signed, payload, keyrings)
        if not good or not payload.exists():
            raise SignatureError(
                f"'{name}' has no valid signature by a key of"
                f" {', '.join(str(ring) for ring in keyrings)}.",
                resolution="Upgrade the package that holds that keyring, or name the keyring of"
                " your mirror in /etc/provision/provision.toml. Don't go on without: the index"
                " may have been altered.",
                details=done.stderr.strip() or None,
            )
        return payload.read_bytes()


def verify_detached(file: Path, signature: Path, *, keyring: Path, name: str) -> None:
    """Check a file by a separate file with its signature.

    Args:
        file: The signed file.
        signature: The signature, in OpenPGP's binary form.
        keyring: File with the keys that may sign it, in the same form.
        name: Its name in messages.

    Raises:
        NotFoundError: Neither gpgv nor sqv is installed.
        SignatureError: It has no good signature by one of the keys.
    """
    if find_program("gpgv") is None and find_program("sqv"):
        words = ["sqv", "--keyring", str(keyring), "--signature-file", str(signature), str(file)]
    else:
        words = ["gpgv", "--keyring", str(keyring), str(signature), str(file)]
    done = run(words, why="check the signature of a download", check=False)
    if done.returncode != 0:
        raise SignatureError(
            f"'{name}' has no valid signature by a key of {keyring}.",
            resolution="Don't use it: it may have been altered. Download it again, and see that the"
            " key is the publisher's.",
            details=done.stderr.strip() or None,
        )


def _gpgv(signed: Path, payload: Path, keyrings: Sequence[Path]) -> tuple[bool, Completed]:
    """Check with GnuPG, which exits with an error also for a further signature by an unknown key.

    Source: GnuPG's doc/DETAILS, "General status codes".
    """
    options = [option for ring in keyrings for option in ("--keyring", ring)]
    done = run(
        ["gpgv", "--status-fd", "1", *options, "--output", payload, signed], why=_WHY, check=False
    )
    codes = set(re.findall(r"^\[GNUPG:\] ([A-Z]+)", done.stdout, re.MULTILINE))
    return "GOODSIG" in codes and "BADSIG" not in codes, done


def _sqv(signed: Path, payload: Path, keyrings: Sequence[Path]) -> tuple[bool, Completed]:
    """Check with Sequoia: sqv(1)."""
    options = [option for ring in keyrings for option in ("--keyring", ring)]
    done = run(["sqv", *options, "--cleartext", "--output", payload, signed], why=_WHY, check=False)
    return done.returncode == 0, done
