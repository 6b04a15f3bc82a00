"""Claims on what builders build that share nothing but a registry: each is built once.

A registry has no compare-and-swap: of two who write a tag, the last one wins, and neither notices.
So a claim is taken by Fischer's algorithm: look that no other has it, write one's own, wait for
longer than others need from their look to their write, and look whether it is still one's own.
Source: L. Lamport, A Fast Mutual Exclusion Algorithm, ACM TOCS 5(1), 1987, section 2.

The clocks of builders are never compared. A claim says when it was renewed by the registry's clock,
and anyone who waits for it besides measures with a clock of its own for how long it stays the same.
What a broken or hostile registry can do is to have something built twice, or not at all.
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
        host: The machine that it says it is.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


@dataclass(frozen=True, slots=True)
class Pace:
    """How long everything takes, in seconds.

    Attributes:
        settle: From writing a claim to the look whether it is still there. Who needs more than half
            of it from look to write does not trust the result, and waits for a renewal.
        renew: From one renewal to the next.
        expire: After so long without a renewal a claim is free.
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
        pace: How long everything takes.
        clock: Seconds that only ever grow.
        sleep: Waits for seconds.
        holder: Tells this builder from all others.
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
        # Another one may have got it meanwhile, and was overwritten: its next renewal says so.
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
        # Line ends and escapes of others have no place in messages.
        host = "".join(c for c in text("host") if c.isprintable())
        return _Claim(content.digest, text("holder"), host, text("state"), renewed)

    def write(self, tag: str, name: str, state: str) -> str:
        """Write a claim, anyone who has it; returns its digest.

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
        except ProvisionError as error:
            if error.resolution is None:
                error.resolution = (
                    "If the registry keeps tags from being written again, and only one machine at a"
                    " time builds, do without claims: claims = false in fleet.toml."
                )
            raise

    def _release(self, tag: str, name: str) -> None:
        """Give a claim back; one that stays expires by itself."""
        try:
            found = self._read(tag)
            if found is None or found.holder != self.holder:
                return
            if not self.client.delete(found.digest):
                self.write(tag, name, _RELEASED)
        except ProvisionError as error:
            log.info("the claim %s was not given back: %s", tag, error.message)


class _Renewal:
    """A thread that renews a claim; who loses one builds on: at worst it is built twice."""

    def __init__(self, pace: Pace, clock: Callable[[], float], write: Callable[[], object]) -> None:
        self._pace, self._clock, self._write = pace, clock, write
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; a request that is under way is waited for."""
        self._stop.set()
        self._thread.join()

    def _renew(self) -> None:
        last = self._clock()
        while not self._stop.wait(self._pace.renew):
            if self._clock() - last > self._pace.expire:
                # This machine stood still, and others had to take the claim to be free.
                log.info("a claim is lost")
                return
            try:
                self._write()
                last = self._clock()
            except ProvisionError as error:
                log.info("a claim was not renewed: %s", error.message)


def claim_tag(name: str) -> str:
    """Return the tag that a claim lies under: none that hosts look for."""
    return f"claim-{hashlib.sha256(name.encode()).hexdigest()[:24]}"
