"""Failures: what the state records of an error, and whether a retry makes sense."""

from __future__ import annotations

from pathlib import Path

from provision.build.diagnosis import BuildError, kind_of
from provision.errors import ProvisionError
from provision.kmod.load import ModuleInUseError
from provision.pin import Pin
from provision.registry.signatures import UntrustedError
from provision.store.artifact_lookup import MissingArtifactError
from provision.store.state import IN_USE, Failure


class RejectedError(ProvisionError):
    """The artifact would be one that was rolled back from."""


def failure_of(error: ProvisionError, inputs: str, *, before: Failure | None, time: int) -> Failure:
    """Return the record of an error for the state.

    A compiler that refused a source refuses it again until an input changes. Other errors may
    disappear, so every run retries; a build is retried after a pause that grows.

    Args:
        error: The error.
        inputs: Fingerprint of the artifact's inputs.
        before: The failure before this one.
        time: Unix time.
    """
    is_same = before is not None and before.inputs == inputs
    attempts = before.attempts + 1 if before is not None and is_same else 1
    reason = reason_of(error)
    return Failure(
        reason=reason,
        message=error.message,
        resolution=error.resolution,
        details=error.details,
        inputs=inputs,
        time=time,
        attempts=attempts,
        final=reason in {"compile", "rejected"},
        log=str(error.log) if isinstance(error, BuildError) and error.log else None,
    )


def reason_of(error: ProvisionError) -> str:
    """Return the kind of an error, as status and metrics name it."""
    match error:
        case RejectedError():
            return "rejected"
        case UntrustedError():
            return "untrusted"
        case MissingArtifactError():
            return "no-artifact"
        case ModuleInUseError():
            return IN_USE
        case _:
            return kind_of(error)


def removed_again(entry: Path) -> ProvisionError:
    """Return the error about an artifact that is removed from the store repeatedly."""
    return ProvisionError(
        f"'{entry}' is removed again and again while it is installed.",
        resolution="Look for a 'provision gc' that runs repeatedly: pgrep -af 'provision gc'",
    )


def older(pin: Pin, version: str) -> ProvisionError:
    """Return the error about a Pin whose version is older than the installed one."""
    driver, release = pin.driver, pin.kernel.release
    return ProvisionError(
        f"{driver.name} {version} for {release} would be replaced by {driver.version}, which is"
        f" older: {version} is no longer offered, or the recipe does not list it for this kernel.",
        resolution="To go back on purpose, set the version in /etc/provision/provision.toml:"
        f' [drivers.{driver.name}] version = "{driver.version}".',
    )


def rejected(digest: str, driver: str, kernel: str) -> RejectedError:
    """Return the error about an artifact that was rolled back from."""
    return RejectedError(
        f"The artifact of {driver} for {kernel} would again be {digest}, which"
        " was rolled back from.",
        resolution="Set another version in provision.toml, or accept this artifact:"
        " provision apply --retry",
    )
