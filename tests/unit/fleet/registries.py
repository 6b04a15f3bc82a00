"""Several registries in memory, each with repositories, behind the requests of a real one."""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import requests
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse

from provision.build.workspace import Settings
from provision.registry.client import Client
from provision.registry.names import Reference
from provision.registry.tokens import Access
from provision.registry.transport import Transport
from unit.registry.memory import digest_of

_PATH = re.compile(r"/v2/(.+?)/(manifests|blobs|tags)/(.+)")


@dataclass
class Stored:
    """What a repository has."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)


class Registries(BaseAdapter):
    """Registries by host; repositories come into being when they are written to.

    Attributes:
        stored: By ``host/repository``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored] = defaultdict(Stored)
        self._uploads: dict[str, bytes] = {}

    def close(self) -> None:
        pass

    def connect(self, settings: Settings, reference: Reference) -> Client:
        """Return the client of a repository, in place of one over a network."""
        del settings
        session = requests.Session()
        session.trust_env = False
        session.mount("https://", self)
        transport = Transport(
            reference.api_host,
            Access(),
            lambda: None,
            session=session,
            sleep=lambda _: None,
        )
        return Client(transport, reference)

    def send(
        self, request: requests.PreparedRequest, *_: object, **__: object
    ) -> requests.Response:
        body = request.body if isinstance(request.body, bytes) else b""
        status, data, headers = self._answer(request.method or "", request.url or "", body)
        response = requests.Response()
        response.status_code = status
        response.headers.update(headers)
        response.raw = HTTPResponse(io.BytesIO(data), preload_content=False)
        response.url = str(request.url)
        response.request = request
        return response

    def _answer(self, method: str, url: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(url)
        match = _PATH.fullmatch(parts.path)
        if match is None:
            return 404, b"", {}
        repository, kind, name = match.groups()
        place = f"{parts.netloc}/{repository}"
        if method in {"POST", "PUT"}:
            return self._write(method, place, kind, name, parts.query, body)
        if place not in self.stored:
            return 404, b"", {}
        found = self.stored[place]
        if kind == "tags":
            tags = [tag for tag in found.manifests if ":" not in tag]
            return 200, json.dumps({"tags": tags}).encode(), {}
        data = (found.manifests if kind == "manifests" else found.blobs).get(name)
        return (404, b"", {}) if data is None else (200, b"" if method == "HEAD" else data, {})

    def _write(
        self, method: str, place: str, kind: str, name: str, query: str, body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        repository = place.partition("/")[2]
        asked = {key: values[0] for key, values in parse_qs(query).items()}
        if kind == "manifests":
            self.stored[place].manifests[name] = body
            self.stored[place].manifests[digest_of(body)] = body
            return 201, b"", {}
        if method == "POST":
            upload = f"/v2/{repository}/blobs/uploads/{len(self._uploads) + 1}"
            self._uploads[upload] = b""
            return 202, b"", {"Location": upload}
        upload = f"/v2/{repository}/blobs/{name}"
        self._uploads[upload] += body
        data = self._uploads.pop(upload)
        if digest_of(data) != asked["digest"]:
            return 400, b"digest", {}
        self.stored[place].blobs[asked["digest"]] = data
        return 201, b"", {}
