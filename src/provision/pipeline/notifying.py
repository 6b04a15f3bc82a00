"""Sends one HTTP request to those who build, if no registry has the artifact that this host needs.

The request may be lost, because the host's status says the same. So it is small and short, and its
failure is no failure of the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from provision import __version__
from provision.errors import ProvisionError
from provision.files import in_root, lock, write_atomic
from provision.pipeline.artifact_lookup import (
    MissingArtifactError,
    artifact_query,
    asks_registries,
    look_for,
)
from provision.pipeline.driver_request import DriverRequest
from provision.pipeline.registry_search import ArtifactQuery, Lookup
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, silent
from provision.registry.artifact_images import Trusted
from provision.registry.names import is_loopback

if TYPE_CHECKING:
    import requests

SCHEMA = 1
_FILE = "notified.json"
_DAY = 86_400
# The first request about something, and one more if that failed.
_A_DAY = 2
_MOST_KEYS = 512
_LONGEST_FILE = 1 << 20
_LONGEST_TOKEN = 4096
_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 5.0
_REDIRECT = 300


@dataclass(frozen=True, slots=True)
class _Notified:
    """The attempts to send a notification in a day: the first, their number, and the success."""

    since: int
    attempts: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class _Record:
    """The record of notifications about one missing artifact; all runs share the file."""

    path: Path
    key: str
    now: Callable[[], float]

    def begin(self) -> _Notified | None:
        """Record an attempt and return it; None: an earlier one succeeded, or there were enough."""
        with lock(self.path.with_name(f".{_FILE}.lock")):
            sent = _read(self.path, self.now())
            before = sent.get(self.key, _Notified(int(self.now()), 0, is_done=False))
            if before.is_done or before.attempts >= _A_DAY:
                return None
            attempt = replace(before, attempts=before.attempts + 1)
            # Before the request, so that a run that is killed meanwhile counts too.
            _write(self.path, {**sent, self.key: attempt})
        return attempt

    def write(self, attempt: _Notified) -> None:
        """Record the result of an attempt."""
        with lock(self.path.with_name(f".{_FILE}.lock")):
            _write(self.path, {**_read(self.path, self.now()), self.key: attempt})


def look_for_or_notify(
    settings: Settings, request: DriverRequest, lookup: Lookup
) -> Trusted | None:
    """As ``look_for``; also notify the address of provision.toml if no registry has the artifact.

    Nothing is sent if a registry did not answer, because that one may have it.
    """
    progress = lookup.progress
    silence: list[ProvisionError] = []
    try:
        trusted = look_for(settings, request, replace(lookup, unanswered=silence.append))
    except MissingArtifactError as error:
        if error.sought is not None:
            notify(settings, error.sought, progress=progress)
        raise
    has_asked = trusted is None and asks_registries(settings) and not silence
    if has_asked and settings.config.registry.notify is not None:
        notify(settings, artifact_query(settings, request), progress=progress)
    return trusted


def notify(
    settings: Settings,
    sought: ArtifactQuery,
    *,
    session: Callable[[], requests.Session] | None = None,
    now: Callable[[], float] = time.time,
    progress: Progress = silent,
) -> bool:
    """Notify the address of provision.toml, if there is one, that an artifact is missing.

    This happens once a day for a driver and kernel, and a second time if the first failed. No
    redirect is followed, and only the status of the answer counts.

    Args:
        settings: The host.
        sought: The missing artifact.
        session: Makes the session that sends the request; None: a bounded one.
        now: Unix seconds.
        progress: Receives failures; nothing is raised.

    Returns:
        Whether the notification succeeded now.
    """
    registry = settings.config.registry
    if registry.notify is None:
        return False
    document = message_of(settings, sought)
    record = _Record(settings.state / _FILE, json.dumps(document, sort_keys=True), now)
    said = f"was notified: {sought.driver} for {sought.kernel} is missing"
    trouble: object = None
    try:
        attempt = record.begin()
        if attempt is None:
            return False
        trouble = _send(settings, registry.notify, document, session)
        if trouble is None:
            record.write(replace(attempt, is_done=True))
    except (OSError, ProvisionError) as error:
        trouble = error
    if trouble is not None:
        said = f"was not notified of a missing artifact: {trouble}"
    progress(Note(f"{registry.notify} {said}"))
    return trouble is None


def message_of(settings: Settings, sought: ArtifactQuery) -> dict[str, object]:
    """Return the body of the request, which does not identify the host."""
    return {
        "schema": SCHEMA,
        "event": "missing",
        "registry": settings.config.registry.address,
        "driver": sought.driver,
        "version": sought.version.name,
        "flavour": sought.flavour,
        "kernel": sought.kernel,
        "distro": sought.distro,
        "architecture": sought.architecture,
    }


def _send(
    settings: Settings,
    url: str,
    document: dict[str, object],
    session: Callable[[], requests.Session] | None,
) -> str | None:
    """Send a request; return the reason if it failed."""
    import requests  # noqa: PLC0415 - 0.15 s that only this case pays

    from provision.fetch.sessions import bounded_session  # noqa: PLC0415 - as above

    headers = {"Content-Type": "application/json", "User-Agent": f"provision/{__version__}"}
    token_file = settings.config.registry.notify_token_file
    if token_file is not None:
        headers["Authorization"] = f"Bearer {_token(in_root(settings.root, token_file))}"
    registry = settings.config.registry
    ca = str(in_root(settings.root, registry.ca)) if registry.ca else None
    try:
        with session() if session else bounded_session(_ANSWER_SECONDS) as sender:
            if is_loopback(urlsplit(url).netloc):
                # A proxy would take its own loopback, and see the token.
                sender.trust_env = False
            response = sender.post(
                url,
                data=json.dumps(document).encode(),
                headers=headers,
                # Otherwise the library would add a login from ~/.netrc.
                auth=_unchanged,
                allow_redirects=False,
                # The body is not read, whatever its length.
                stream=True,
                timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS),
                verify=ca or True,
            )
            response.close()
    except (requests.RequestException, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    if not response.ok or response.status_code >= _REDIRECT:
        return f"it answered {response.status_code}"
    return None


def _token(path: Path) -> str:
    """Return the token of a file.

    Raises:
        ProvisionError: It has none.
        OSError: It can't be read.
    """
    with path.open("rb") as stream:
        line = stream.readline(_LONGEST_TOKEN + 1).strip()
    if (
        not line
        or len(line) > _LONGEST_TOKEN
        or not line.isascii()
        or not line.decode().isprintable()
    ):
        raise ProvisionError(
            f"the first line of '{path}' is no token",
            resolution="Write the token into it, and nothing else:"
            f" install -m 600 TOKEN_FILE {path}",
        )
    return line.decode()


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _read(path: Path, now: float) -> dict[str, _Notified]:
    """Return the notifications of the last day; a damaged file counts as empty."""
    try:
        with path.open("rb") as stream:
            found = json.loads(stream.read(_LONGEST_FILE))
        sent = {
            str(key): _Notified(int(one["since"]), int(one["attempts"]), is_done=bool(one["done"]))
            for key, one in found.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return {key: one for key, one in sent.items() if 0 <= now - one.since < _DAY}


def _write(path: Path, sent: dict[str, _Notified]) -> None:
    newest = sorted(sent.items(), key=lambda item: item[1].since, reverse=True)[:_MOST_KEYS]
    document = {
        key: {"since": one.since, "attempts": one.attempts, "done": one.is_done}
        for key, one in newest
    }
    write_atomic(path, json.dumps(document) + "\n")
