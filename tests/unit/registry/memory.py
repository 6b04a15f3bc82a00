"""A registry in memory, by hand after the OCI specification, so that it can be hostile.

docker-registry, skopeo and cosign are in the engine tests.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse

from provision.pin import PIN_LABEL, Pin
from provision.registry.artifact_images import facts_of
from provision.registry.attached_signatures import sign
from provision.registry.client import Client
from provision.registry.credentials import Credentials
from provision.registry.image_signature import Facts, PublicKey
from provision.registry.manifests import OCI_CONFIG, OCI_MANIFEST
from provision.registry.names import Reference, parse_reference
from provision.registry.tokens import Access
from provision.registry.transport import Transport

HOST = "registry.example"
REPOSITORY = "drivers/demo"
GZIP_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server says."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a server was asked."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc


# Answers in place of the registry; None: the registry does.
Handler = Callable[[Asked], Answer | None]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class MemoryRegistry(BaseAdapter):
    """One repository, as an adapter of ``requests``.

    Attributes:
        blobs: Contents by digest.
        manifests: Contents by tag or digest.
        asked: All requests, in their order.
        handlers: Tried before the registry itself answers, the last first.
        slept: For how long the client waited, each time.
        proxies: The proxies by scheme that each request would have gone through.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self.handlers: list[Handler] = []
        self.slept: list[float] = []
        self.proxies: list[object] = []
        self.now = 0.0
        # Cells of a matrix ask it at once, each in a thread of its own.
        self._answering = threading.Lock()

    def send(
        self, request: requests.PreparedRequest, *_: object, **options: object
    ) -> requests.Response:
        self.proxies.append(options.get("proxies"))
        body = request.body if isinstance(request.body, bytes) else b""
        asked = Asked(request.method or "", request.url or "", dict(request.headers), body)
        self.asked.append(asked)
        found = (handler(asked) for handler in reversed(self.handlers))
        answer = next((one for one in found if one is not None), None)
        if answer is None:
            with self._answering:
                answer = self.answer(asked)
        response = requests.Response()
        response.status_code = answer.status
        response.headers.update(answer.headers)
        response.raw = HTTPResponse(io.BytesIO(answer.body), preload_content=False)
        response.url = asked.url
        response.request = request
        return response

    def close(self) -> None:
        pass

    def answer(self, asked: Asked) -> Answer:
        """Answer as a registry does."""
        start = f"/v2/{REPOSITORY}/"
        if not asked.path.startswith(start) or asked.host != HOST:
            return self._root(asked)
        kind, _, name = asked.path.removeprefix(start).partition("/")
        if asked.method == "POST" and name == "uploads/":
            return Answer(202, headers={"Location": f"{start}blobs/uploads/1?state=x"})
        if asked.method == "PUT":
            return self._put(kind, name, asked)
        if kind == "tags":
            tags = [name for name in self.manifests if ":" not in name]
            return Answer(200, json.dumps({"name": REPOSITORY, "tags": tags}).encode())
        stored = (self.manifests if kind == "manifests" else self.blobs).get(name)
        if stored is None:
            return Answer(404)
        return self._stored(stored, asked)

    def _stored(self, stored: bytes, asked: Asked) -> Answer:
        wanted = re.fullmatch(r"bytes=([0-9]+)-", asked.headers.get("Range", ""))
        if wanted is None:
            return Answer(200, stored, {"Content-Length": str(len(stored))})
        start = int(wanted[1])
        place = f"bytes {start}-{len(stored) - 1}/{len(stored)}"
        return Answer(206, stored[start:], {"Content-Range": place})

    def _root(self, asked: Asked) -> Answer:
        if asked.path != "/v2/" or asked.host != HOST:
            return Answer(404)
        return Answer(200)

    def _put(self, kind: str, name: str, asked: Asked) -> Answer:
        if kind == "manifests":
            self.manifests[name] = self.manifests[digest_of(asked.body)] = asked.body
        else:
            self.blobs[parse_qs(urlsplit(asked.url).query)["digest"][0]] = asked.body
        return Answer(201)

    # What a test puts there.

    def have_blob(self, data: bytes) -> str:
        digest = digest_of(data)
        self.blobs[digest] = data
        return digest

    def have_manifest(self, document: Mapping[str, Any], tag: str = "1") -> str:
        data = json.dumps(document).encode()
        self.manifests[tag] = self.manifests[digest_of(data)] = data
        return digest_of(data)

    def have_image(
        self,
        pin: Pin,
        layers: Iterable[bytes],
        tag: str = "1",
        *,
        labels: Mapping[str, str] | None = None,
        **changes: object,
    ) -> str:
        """Have an image of tar files, and return its digest; ``changes`` are of its manifest."""
        tars = list(layers)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Labels": labels or {PIN_LABEL: pin.canonical_json()}},
                "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
            }
        ).encode()
        packed = [gzip.compress(tar, mtime=0) for tar in tars]
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {
                "mediaType": OCI_CONFIG,
                "digest": self.have_blob(config),
                "size": len(config),
            },
            "layers": [
                {"mediaType": GZIP_LAYER, "digest": self.have_blob(one), "size": len(one)}
                for one in packed
            ],
        }
        return self.have_manifest({**document, **changes}, tag)

    # How a test looks at it.

    def client(
        self,
        reference: str = f"{HOST}/{REPOSITORY}:1",
        *,
        access: Access | None = None,
        credentials: Credentials | None = None,
    ) -> Client:
        return Client(self.transport(reference, access, credentials), parse_reference(reference))

    def transport(
        self, reference: str, access: Access | None, credentials: Credentials | None
    ) -> Transport:
        parsed: Reference = parse_reference(reference)
        return Transport(
            parsed.api_host,
            access or Access(),
            lambda: credentials,
            session=self.session(),
            clock=self.clock,
            sleep=self.slept.append,
        )

    def session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        session.mount("https://", self)
        session.mount("http://", self)
        return session

    def clock(self) -> float:
        return self.now

    def sign(
        self,
        digest: str,
        facts: Facts,
        key: ec.EllipticCurvePrivateKey,
        client: Client | None = None,
    ) -> None:
        sign(client or self.client(), digest, facts, lambda data: key.sign(data, ECDSA))


ECDSA = ec.ECDSA(SHA256())


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public(key: ec.EllipticCurvePrivateKey, name: str = "fleet.pub") -> PublicKey:
    return PublicKey(name, key.public_key())


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def layer_of(folder: Path) -> bytes:
    """Return a folder's content as the layer of an image that has it at ``/opt``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname="opt")
    return buffer.getvalue()


def wanted_of(pin: Pin) -> dict[str, str]:
    """Return what a host asks for, which wants the artifact of a Pin."""
    facts = facts_of(pin, 0)
    names = ("driver", "version", "flavour", "distro", "kernel", "architecture")
    return {name: getattr(facts, name) for name in names}
