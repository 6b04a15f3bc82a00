"""Files that OpenPGP keys have signed."""

from __future__ import annotations

from pathlib import Path

from provision.errors import ProvisionError
from provision.fetch.downloads import LARGEST, download_any
from provision.files import sync_directory
from provision.run import find_program, run

# A signature has some hundred bytes.
_MAX_SIGNATURE = 1 << 20


class SignatureError(ProvisionError):
    """A file is not signed by a key that is trusted for it."""


def download_signed(url: str, *, keyring: Path, destination: Path) -> None:
    """Download a file with a signature in ``URL.sig``.

    An existing file with a valid signature stays.

    Args:
        keyring: File with the keys that may sign it, in OpenPGP's binary form.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    signature = destination.with_name(f".{destination.name}.sig")
    draft = destination.with_name(f".{destination.name}.draft")
    try:
        download_any(f"{url}.sig", destination=signature, limit=_MAX_SIGNATURE)
        if destination.is_file():
            draft = destination
        else:
            download_any(url, destination=draft, limit=LARGEST)
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


def verify_detached(file: Path, signature: Path, *, keyring: Path, name: str) -> None:
    """Check a file by a separate file with its signature: with ``gpgv``, or else with ``sqv``.

    apt needs one of them, so every Debian has one.
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
