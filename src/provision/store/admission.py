"""Who admitted an artifact to the store, and whether the host would admit it today.

An artifact of an image that was not built here has a file with the key that signed the image, or
that none did. The file is a part of the entry, so that it appears and goes with it. The manifest
can't have this: it says what was built, not where it came from.

Keys are changed, and one command may have allowed what provision.toml does not. So this is looked
at again when an artifact is chosen. What is in use stays in use: a driver that fails to appear
after a reboot would be a worse answer to a changed key than a status that says so
(docs/decisions/06-registries.md).
"""

from __future__ import annotations

from pathlib import Path

from provision.config import Config, TrustRule
from provision.documents import Frozen, parse_json
from provision.errors import ProvisionError
from provision.files import in_root, write_atomic
from provision.manifest import ADMISSION
from provision.pem import fingerprints


class Admission(Frozen):
    """Who vouches for an artifact that was not built here."""

    # The image that it came from.
    image: str
    # Its repository, which selects the rule of [trust].
    repository: str
    # Name and fingerprint of the key that signed the image; None: nothing was verified.
    key: str | None = None
    fingerprint: str | None = None
    # Unix time of the signature.
    serial: int | None = None
    # Whether an option of one command allowed it: --public-key or --insecure.
    once: bool = False

    @property
    def by(self) -> str:
        """The key, for people."""
        return f"{self.key} ({self.fingerprint})"


class UnreadableAdmissionError(ProvisionError):
    """The record of who admitted an artifact to the store can't be read."""


def record_admission(entry: Path, admission: Admission | None) -> None:
    """Record who admitted an artifact to the store; None: it was built here.

    The entry is not complete yet. What the image has in this place goes.
    """
    if admission is None:
        (entry / ADMISSION).unlink(missing_ok=True)
    else:
        write_atomic(entry / ADMISSION, f"{admission.model_dump_json(indent=2)}\n")


def read_admission(entry: Path) -> Admission | None:
    """Return who admitted an artifact to the store; None: it was built here.

    Raises:
        UnreadableAdmissionError: The record can't be read.
    """
    path = entry / ADMISSION
    try:
        return parse_json(path.read_text(), Admission, name=str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ProvisionError) as error:
        raise UnreadableAdmissionError(
            f"'{path}' can't be read, which says who admitted the artifact to the store.",
            resolution=f"Make the artifact again: mv {entry} {entry}.unreadable; provision apply",
            details=str(error),
        ) from error


def unsigned_image(entry: Path) -> str | None:
    """Return the image that an artifact came from, if no signature of it was verified."""
    try:
        admission = read_admission(entry)
    except UnreadableAdmissionError:
        return None
    return admission.image if admission and admission.fingerprint is None else None


def distrust(config: Config, root: Path, driver: str, entry: Path) -> str | None:
    """Return why a host would not admit an artifact to its store today; None: it would."""
    try:
        admission = read_admission(entry)
    except UnreadableAdmissionError as error:
        return error.message
    if admission is None:
        return None
    rule = config.trust.rule(admission.repository, driver)
    return None if rule.insecure else _wrong(admission, rule, root)


def _wrong(admission: Admission, rule: TrustRule, root: Path) -> str | None:
    if admission.fingerprint is None:
        how = "--insecure allowed it once" if admission.once else "[trust] allowed it then"
        return f"it came from the unsigned image {admission.image}: {how}"
    trusted = fingerprints(in_root(root, rule.keys)) if rule.keys else frozenset()
    if admission.fingerprint not in trusted:
        how = "--public-key named once" if admission.once else "[trust] no longer has"
        return f"it was signed by {admission.by}, a key that {how}"
    if admission.serial is not None and admission.serial < rule.oldest:
        return f"{admission.by} signed it before the day of [trust] not_before"
    return None
