"""Manifests, blobs and tags of one repository. All content is compared with its digest.

Source: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import WrongContentError
from provision.progress import Progress, Transfer, silent
from provision.registry.layers import Hashing
from provision.registry.manifests import ACCEPTED, LONGEST_MANIFEST, Content, Descriptor
from provision.registry.names import DIGEST, Reference
from provision.registry.transport import Transport, TroubleError, content_digest

if TYPE_CHECKING:
    import requests

T = TypeVar("T")
_TAGS_A_PAGE = 1000
_MOST_PAGES = 50
_LONGEST_PAGE = 4 << 20
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_NEXT = re.compile(r'<([^>]+)>;\s*rel="?next"?')
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]+|\*)")
_PARTIAL = 206
# A transfer that got this much further has its attempts again.
_WORTH_GOING_ON = 1 << 20


@dataclass(frozen=True, slots=True)
class Client:
    """One repository of a registry."""

    transport: Transport
    reference: Reference

    def at(self, reference: Reference) -> Client:
        """Return the same repository for another of its images."""
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest.

        Raises:
            NotFoundError: It is missing.
            WrongContentError: The content has another digest.
            UnreachableError: The registry kept failing.
            ProvisionError: It refuses, or the manifest is too large.
        """
        headers = {"Accept": ACCEPTED}
        data = self._get(f"manifests/{name}", LONGEST_MANIFEST, f"the manifest '{name}'", headers)
        digest = content_digest(data)
        if name.startswith("sha256:"):
            self._compare(name, digest)
        return Content(data, digest)

    def head(self, name: str) -> str | None:
        """Return the digest that the registry states for a manifest; None if it is missing.

        Nothing is verified: this only serves to decide whether there is something to do.

        Raises:
            UnreachableError: The registry kept failing.
            ProvisionError: It refuses.
        """

        def once() -> str:
            path = f"manifests/{name}"
            with self._request("HEAD", path, headers={"Accept": ACCEPTED}) as response:
                return response.headers.get("Docker-Content-Digest", "")

        try:
            digest = self._tried(f"the manifest '{name}'", once)
            # Not every registry sends the header; the bytes have the digest too.
            return digest if DIGEST.fullmatch(digest) else self.manifest(name).digest
        except NotFoundError:
            return None

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return a small blob.

        Raises:
            As ``manifest``.
        """
        if descriptor.size > limit:
            raise ProvisionError(
                f"'{self._shown}@{descriptor.digest}' is refused: it is larger than {limit} bytes.",
                resolution="Check the name: images of provision are smaller.",
            )
        what = f"the blob {descriptor.digest}"
        data = self._get(f"blobs/{descriptor.digest}", descriptor.size, what)
        self._compare(descriptor.digest, content_digest(data))
        return data

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a blob to a new file; a transfer that is cut off is resumed.

        On an error the file is removed.

        Raises:
            As ``manifest``; OSError: the disk is full.
        """
        try:
            with destination.open("xb") as stream:
                digest = self._download(descriptor, stream, progress)
                stream.flush()
            self._compare(descriptor.digest, digest)
        except BaseException:
            destination.unlink(missing_ok=True)
            raise

    def tags(self) -> tuple[str, ...]:
        """Return the repository's tags; no more than 50,000 are read.

        Raises:
            As ``manifest``.
        """
        found: list[str] = []
        path: str | None = f"tags/list?n={_TAGS_A_PAGE}"
        for _ in range(_MOST_PAGES):
            if path is None:
                break
            page, path = self._page(path)
            found += page
        return tuple(dict.fromkeys(found))

    def put_blob(self, data: bytes) -> Descriptor:
        """Upload a small blob, unless it is there; returns its descriptor without a media type.

        Raises:
            ProvisionError: The registry refuses or can't be reached.
        """
        digest = content_digest(data)
        descriptor = Descriptor(mediaType="", digest=digest, size=len(data))

        def send() -> None:
            self._complete_upload(self._begin_upload(), digest, data)

        try:
            with self._request("HEAD", f"blobs/{digest}"):
                return descriptor
        except (NotFoundError, TroubleError):
            self._tried("an upload", send)
        return descriptor

    def put_manifest(self, tag: str, data: bytes, media_type: str) -> str:
        """Upload a manifest under a tag; returns its digest.

        Raises:
            ProvisionError: The registry refuses or can't be reached.
        """

        def send() -> None:
            headers = {"Content-Type": media_type}
            with self._request("PUT", f"manifests/{tag}", body=data, headers=headers):
                return

        self._tried(f"an upload of '{tag}'", send)
        return content_digest(data)

    @property
    def _shown(self) -> str:
        return self.reference.name

    def _compare(self, expected: str, got: str) -> None:
        if got != expected:
            raise WrongContentError(
                f"'{self._shown}@{expected}' is not what was asked for: the registry serves"
                " different content.",
                resolution="Don't use it. The registry or a proxy before it is damaged or was"
                " altered; try a mirror of it, or push the image again.",
                details=f"expected {expected}\ngot      {got}",
            )

    def _begin_upload(self) -> str:
        with self._request("POST", "blobs/uploads/", body=b"") as response:
            return self._upload_place(response)

    def _complete_upload(self, place: str, digest: str, data: bytes) -> None:
        """Send the last bytes of an upload, and the digest that all of it has to have."""
        joined = "&" if urlsplit(place).query else "?"
        headers = {"Content-Type": "application/octet-stream"} if data else None
        query = urlencode({"digest": digest})
        with self._request("PUT", f"{place}{joined}{query}", body=data, headers=headers):
            return

    def _upload_place(self, response: requests.Response) -> str:
        """Return the address for the next part of an upload, which must be the registry itself."""
        url, location = response.url, response.headers.get("Location", "")
        try:
            place = urljoin(url, location)
        except ValueError:
            place = location
        if not place.startswith(f"{self.transport.base}/"):
            raise ProvisionError(
                f"The registry {self.transport.host} wants an upload to go to"
                f" '{place.partition('?')[0][:200]}', which is another host.",
                resolution="Set the registry's own address in its configuration (for docker-"
                "registry: http.host), or push with another tool and sign there.",
            )
        return place

    def _request(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> AbstractContextManager[requests.Response]:
        actions = {"GET": "pull", "DELETE": "delete"}.get(method, "pull,push")
        scope = f"repository:{self.reference.repository}:{actions}"
        if "://" not in path and not path.startswith("/"):
            path = f"/v2/{self.reference.repository}/{path}"
        return self.transport.request(method, path, scope=scope, headers=headers, body=body)

    def _tried(self, what: str, once: Callable[[], T]) -> T:
        for pause in self.transport.attempts():
            try:
                return once()
            except TroubleError as error:
                self.transport.give_up_or_wait(what, error, pause)
        raise AssertionError("the last attempt returns or raises")

    def _get(
        self, path: str, limit: int, what: str, headers: dict[str, str] | None = None
    ) -> bytes:
        def once() -> bytes:
            with self._request("GET", path, headers=headers) as response:
                return b"".join(self.transport.read(response, limit, what))

        return self._tried(what, once)

    def _page(self, path: str) -> tuple[list[str], str | None]:
        def once() -> tuple[bytes, str]:
            with self._request("GET", path) as response:
                data = b"".join(self.transport.read(response, _LONGEST_PAGE, "a list of tags"))
                return data, response.headers.get("Link", "")

        data, link = self._tried("its tags", once)
        try:
            document = json.loads(data)
            names = document["tags"] or []
            page = [name for name in names if isinstance(name, str) and _TAG.fullmatch(name)]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProvisionError(
                f"The registry {self.transport.host} did not return a list of tags.",
                resolution=f"See what answers there: curl -i https://{self.transport.host}/v2/",
            ) from error
        following = _NEXT.search(link)
        if following is None:
            return page, None
        # Only its query is used: a link may lead anywhere.
        query = following[1].partition("#")[0].partition("?")[2]
        return page, f"tags/list?{query}" if query else None

    def _download(self, descriptor: Descriptor, stream: IO[bytes], progress: Progress) -> str:
        """Write a blob, and return the digest of what was written."""
        what = f"the layer {descriptor.digest[:19]}"
        attempts = self.transport.attempts()
        with Hashing() as hashing:
            while True:
                before = stream.tell()
                pause = next(attempts)
                try:
                    for chunk in self._rest(descriptor, before, what):
                        if chunk is None:
                            stream.seek(0)
                            stream.truncate()
                            hashing.restart()
                            continue
                        stream.write(chunk)
                        hashing.update(chunk)
                        progress(Transfer(f"Pulling {what}", stream.tell(), descriptor.size))
                    _check_whole(stream.tell(), descriptor.size)
                except TroubleError as error:
                    if stream.tell() - before >= _WORTH_GOING_ON:
                        attempts = self.transport.attempts()
                        pause = next(attempts)
                    self.transport.give_up_or_wait(what, error, pause)
                else:
                    return hashing.digest()

    def _rest(self, descriptor: Descriptor, offset: int, what: str) -> Iterator[bytes | None]:
        """Yield a blob from an offset on; first None if the server starts from the beginning."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._request("GET", f"blobs/{descriptor.digest}", headers=headers) as response:
            if offset and not _continues(response, offset):
                yield None
                offset = 0
            yield from self.transport.read(response, descriptor.size - offset, what)


def _continues(response: requests.Response, offset: int) -> bool:
    """Return whether an answer begins at the requested offset."""
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return response.status_code == _PARTIAL and found is not None and int(found[1]) == offset


def _check_whole(received: int, size: int) -> None:
    if received < size:
        raise TroubleError(f"it ended after {received} of {size} bytes")
