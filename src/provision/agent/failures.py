"""What to remember of an error, and whether trying again makes sense."""

from __future__ import annotations

from pathlib import Path

from provision.build.diagnosis import BuildError, kind_of
from provision.errors import ProvisionError
from provision.pin import Pin
from provision.pipeline.artifact_lookup import MissingArtifactError
from provision.registry.image_signature import UntrustedError
from provision.store.state import Failure


class RejectedError(ProvisionError):
    """What would be made is what someone rolled back from."""


def failure_of(error: ProvisionError, inputs: str, *, before: Failure | None, time: int) -> Failure:
    """Return what to remember of an artifact that could not be had.

    A compiler that refused a source will do so again, until one of the inputs changes. Everything
    else may pass: it is tried again by every run, a build after a pause that grows.

    Args:
        error: What happened.
        inputs: Fingerprint of what was tried.
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
        case _:
            return kind_of(error)


def removed_again(entry: Path) -> ProvisionError:
    """Return the error about an artifact that never stays in the store."""
    return ProvisionError(
        f"'{entry}' is removed again and again.",
        resolution="Look for a second 'provision gc' that runs all the time.",
    )


def older(pin: Pin, version: str) -> ProvisionError:
    """Return the error about a Pin whose version is older than the one that serves."""
    driver, release = pin.driver, pin.kernel.release
    return ProvisionError(
        f"{driver.name} {version} for {release} would be replaced by {driver.version}, which is"
        f" older: {version} is not offered any more, or not known to build there.",
        resolution="To go back on purpose, name the version in /etc/provision/provision.toml:"
        f' [drivers.{driver.name}] version = "{driver.version}".',
    )


def rejected(digest: str, driver: str, kernel: str) -> RejectedError:
    """Return the error about an artifact that was rolled back from."""
    return RejectedError(
        f"What would be made of {driver} for {kernel} is the artifact {digest}, which"
        " was rolled back from.",
        resolution="Ask for another version in provision.toml, or take it all the same:"
        " provision apply --retry.",
    )
