"""One HTTP request to anyone who builds, when a registry lacks what this host needs.

It may be lost: the host's status says the same. So it is small, short, and never a failure.
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
    """When a notification was first sent in a day, how often, and whether it got through."""

    since: int
    attempts: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class _Record:
    """What was sent about one missing artifact in the last day; runs share the file."""

    path: Path
    key: str
    now: Callable[[], float]

    def begin(self) -> _Notified | None:
        """Record an attempt; None: it got through, or was tried often enough."""
        with lock(self.path.with_name(f".{_FILE}.lock")):
            sent = _read(self.path, self.now())
            before = sent.get(self.key, _Notified(int(self.now()), 0, is_done=False))
            if before.is_done or before.attempts >= _A_DAY:
                return None
            attempt = replace(before, attempts=before.attempts + 1)
            # Before the request: a run that is killed meanwhile does not begin again and again.
            _write(self.path, {**sent, self.key: attempt})
        return attempt

    def write(self, attempt: _Notified) -> None:
        """Record what became of an attempt."""
        with lock(self.path.with_name(f".{_FILE}.lock")):
            _write(self.path, {**_read(self.path, self.now()), self.key: attempt})


def look_for_or_notify(settings: Settings, wanted: DriverRequest, lookup: Lookup) -> Trusted | None:
    """As ``look_for``; notifies the address of provision.toml if no registry has it.

    One that can't be asked may have it: nothing is sent then.
    """
    progress = lookup.progress
    silence: list[ProvisionError] = []
    try:
        trusted = look_for(settings, wanted, replace(lookup, unanswered=silence.append))
    except MissingArtifactError as error:
        if error.sought is not None:
            notify(settings, error.sought, progress=progress)
        raise
    has_asked = trusted is None and asks_registries(settings) and not silence
    if has_asked and settings.config.registry.notify is not None:
        notify(settings, artifact_query(settings, wanted), progress=progress)
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

    Once a day for a driver and kernel; a second time if the first failed. No redirect is followed,
    and of the answer only the status counts.

    Args:
        settings: The host.
        sought: What is missing.
        session: Makes what sends requests; None: the library's own.
        now: Unix seconds.
        progress: Receives what could not be done; nothing is raised.

    Returns:
        Whether it got through now.
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
    """Return what is sent; nothing in it says which host asks."""
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
    """Send a request; returns what went wrong."""
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
                # A proxy has another loopback, and would see the token.
                sender.trust_env = False
            response = sender.post(
                url,
                data=json.dumps(document).encode(),
                headers=headers,
                # Else the library would add what ~/.netrc has.
                auth=_unchanged,
                allow_redirects=False,
                # Nothing of the body is read, however long it is.
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
        raise ProvisionError(f"the first line of '{path}' is no token")
    return line.decode()


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _read(path: Path, now: float) -> dict[str, _Notified]:
    """Return what was sent in the last day; what can't be read is forgotten."""
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
