"""Claims by which builders that share only a registry build each thing once.

A registry has no compare-and-swap: of two who write a tag, the last one wins, and neither notices.
So a claim is taken by Fischer's algorithm: check that it is free, write one's own, wait longer than
others need between their check and their write, and check that it is still one's own.
Source: L. Lamport, A Fast Mutual Exclusion Algorithm, ACM TOCS 5(1), 1987, section 2.

The clocks of builders are never compared. A claim holds the registry's time of its renewal, and a
waiting builder also measures with its own clock how long a claim stays unchanged. A broken or
hostile registry can at worst cause a second build, or none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from provision.errors import NotFoundError, ProvisionError
from provision.registry.client import Client
from provision.registry.manifests import OCI_MANIFEST, parse_manifest
from provision.registry.transport import RefusedError

log = logging.getLogger(__name__)

# https://github.com/opencontainers/image-spec/blob/v1.1.0/manifest.md#guidelines-for-artifact-usage
_EMPTY = "application/vnd.oci.empty.v1+json"
_EMPTY_DATA = b"{}"
_KIND = "application/vnd.oci-decorator.provision.claim.v1"
_PREFIX = "provision.claim."
_HELD, _RELEASED = "held", "released"
_LONGEST_TEXT = 256


class ClaimedError(Exception):
    """Another builder has the claim.

    Attributes:
        host: Its host name, as it states it.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


@dataclass(frozen=True, slots=True)
class Pace:
    """Time limits, in seconds.

    Attributes:
        settle: Between writing a claim and checking it. A builder that needs more than half of it
            from the first check to the write doesn't trust the result, and waits for a renewal.
        renew: Between two renewals.
        expire: Without a renewal for so long, a claim is free.
    """

    settle: float = 2.0
    renew: float = 20.0
    expire: float = 90.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim as it is in the registry."""

    digest: str
    holder: str
    host: str
    state: str
    renewed: float | None


@dataclass
class Claims:
    """The claims of one builder in one repository.

    Attributes:
        client: The repository.
        pace: Time limits.
        clock: A monotonic clock, in seconds.
        sleep: Waits for seconds.
        holder: Identifies this builder.
    """

    client: Client
    pace: Pace = field(default_factory=Pace)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    # By tag: the claim of another that was seen, and when first.
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict, repr=False)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold the claim on a name; it is renewed until the block ends.

        Raises:
            ClaimedError: Another builder has it.
            ProvisionError: The registry can't be asked, or refuses claims.
        """
        tag = claim_tag(name)
        self._take(tag, name)
        renewal = _Renewal(self.pace, self.clock, lambda: self.write(tag, name, _HELD))
        try:
            yield
        finally:
            renewal.stop()
            self._release(tag, name)

    def _take(self, tag: str, name: str) -> None:
        begun = self.clock()
        self._refuse_living(tag)
        self.write(tag, name, _HELD)
        is_slow = self.clock() - begun > self.pace.settle / 2
        # Another builder may have been overwritten meanwhile: its next renewal shows it.
        self.sleep(self.pace.renew * 2 if is_slow else self.pace.settle)
        found = self._read(tag)
        if found is None or found.holder != self.holder:
            raise ClaimedError(found.host if found else "another machine")

    def _refuse_living(self, tag: str) -> None:
        found = self._read(tag)
        if found is None or found.state != _HELD or found.holder == self.holder:
            return
        digest, since = self._seen.get(tag, ("", 0.0))
        if digest != found.digest:
            since = self.clock()
            self._seen[tag] = (found.digest, since)
        if self.clock() - since > self.pace.expire:
            return
        now = self.client.time()
        age = 0.0 if now is None or found.renewed is None else now - found.renewed
        # HTTP's dates are whole seconds.
        if age <= self.pace.expire + 1:
            raise ClaimedError(found.host)

    def _read(self, tag: str) -> _Claim | None:
        try:
            content = self.client.manifest(tag)
        except NotFoundError:
            return None
        parse_manifest(content.data, f"the claim '{tag}'")
        said = json.loads(content.data).get("annotations")
        said = said if isinstance(said, dict) else {}

        def text(key: str) -> str:
            return str(said.get(f"{_PREFIX}{key}", ""))[:_LONGEST_TEXT]

        try:
            renewed = float(text("renewed"))
        except ValueError:
            renewed = None
        # Foreign line ends and escapes must not get into messages.
        host = "".join(c for c in text("host") if c.isprintable())
        return _Claim(content.digest, text("holder"), host, text("state"), renewed)

    def write(self, tag: str, name: str, state: str) -> str:
        """Write a claim, even over that of another builder; returns its digest.

        Raises:
            ProvisionError: The registry can't be reached, or refuses claims.
        """
        now = self.client.time()
        empty = self.client.put_blob(_EMPTY_DATA)
        descriptor = {"mediaType": _EMPTY, "digest": empty.digest, "size": empty.size}
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": _KIND,
            "config": descriptor,
            "layers": [descriptor],
            "annotations": {
                f"{_PREFIX}name": name,
                f"{_PREFIX}holder": self.holder,
                f"{_PREFIX}host": socket.gethostname(),
                f"{_PREFIX}state": state,
                f"{_PREFIX}renewed": "" if now is None else f"{now:.0f}",
                # Each renewal has bytes of its own, whatever the registry's clock says.
                f"{_PREFIX}number": uuid.uuid4().hex,
            },
        }
        data = json.dumps(document, sort_keys=True).encode()
        try:
            return self.client.put_manifest(tag, data, OCI_MANIFEST)
        except RefusedError as error:
            error.resolution = (
                "If the registry keeps tags from being written again, and only one machine at a"
                " time builds, do without claims: claims = false in fleet.toml."
            )
            raise

    def _release(self, tag: str, name: str) -> None:
        """Release a claim; if that fails, it expires by itself."""
        try:
            found = self._read(tag)
            if found is None or found.holder != self.holder:
                return
            if not self.client.delete(found.digest):
                self.write(tag, name, _RELEASED)
        except ProvisionError as error:
            log.info("the claim %s was not given back: %s", tag, error.message)


class _Renewal:
    """A thread that renews a claim. Losing it does not stop the build: it may be built twice."""

    def __init__(self, pace: Pace, clock: Callable[[], float], write: Callable[[], object]) -> None:
        self._pace, self._clock, self._write = pace, clock, write
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after its current request."""
        self._stop.set()
        self._thread.join()

    def _renew(self) -> None:
        last = self._clock()
        while not self._stop.wait(self._pace.renew):
            if self._clock() - last > self._pace.expire:
                # This machine stalled, and others may regard the claim as free.
                log.info("a claim is lost")
                return
            try:
                self._write()
                last = self._clock()
            except ProvisionError as error:
                log.info("a claim was not renewed: %s", error.message)


def claim_tag(name: str) -> str:
    """Return the tag of a claim, which differs from all tags that hosts look for."""
    return f"claim-{hashlib.sha256(name.encode()).hexdigest()[:24]}"
