"""skopeo and a real registry: what is read and written, who gets in, and what is altered."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kit.artifact import make_pin
from kit.fileserver import Answering, guard, serving
from kit.media import image_of, tar_of
from kit.memory_registry import new_key
from kit.probe import need_programs
from kit.registry import LOGIN, RegistryServer, free_port
from provision.errors import (
    DeniedError,
    NotFoundError,
    ProvisionError,
    UnreachableError,
    WrongContentError,
)
from provision.registry import parse_reference, repositories
from provision.registry.find import ArtifactImage, read_image, tag_of, unpack_layers
from provision.registry.repositories import Registry, find_digest

PIN = make_pin()
TAG = tag_of(PIN).text
KEY, OTHER = new_key(), new_key()
USERSPACE = tar_of({"opt/driver/library": os.urandom(200_000)})
MODULES = tar_of({"opt/lib/modules/x/demo.ko": b"module"})


@dataclass
class Site:
    """A registry with one image of two layers."""

    # The registry.
    server: RegistryServer
    # Its repository.
    repository: Registry

    def have(self, tag: str = TAG) -> str:
        image = image_of(PIN, (USERSPACE, MODULES))
        return self.repository.put_image(tag, image.manifest, image.blobs)

    def stored(self, digest: str) -> Path:
        """The file in which the registry keeps a blob."""
        number = digest.removeprefix("sha256:")
        blobs = "data/docker/registry/v2/blobs/sha256"
        return self.server.folder / blobs / number[:2] / number / "data"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    need_programs("skopeo")
    with closing(RegistryServer(tmp_path / "registry")) as server:
        reference = parse_reference(f"{server.address}/drivers/demo:{TAG}")
        yield Site(server, Registry(reference))


def unpacked(
    image: ArtifactImage, folder: Path, *, is_complete: bool = False
) -> tuple[int, list[bytes]]:
    folder.mkdir(exist_ok=True)
    content: list[bytes] = []
    received = unpack_layers(
        image,
        folder,
        lambda stream: content.append(b"".join(iter(lambda: stream.read(1 << 16), b""))),
        is_complete=lambda: is_complete,
    )
    assert list(folder.iterdir()) == []
    return received, content


def test_what_was_written_is_read(site: Site) -> None:
    digest = site.have()
    repository = site.repository
    assert repository.tags() == (TAG,)
    assert repository.manifest(TAG) == repository.manifest(digest)
    image = read_image(repository, "x86_64")
    assert (image.pin, image.reference.digest) == (PIN, digest)
    repository.tag(digest, "other")
    assert find_digest(repository, "other") == digest
    assert find_digest(repository, "none") is None


def test_a_layer_that_the_host_has_is_not_transferred(site: Site, tmp_path: Path) -> None:
    site.have()
    image = read_image(site.repository, "x86_64")
    for is_complete, layers in ((True, 1), (False, 2)):
        before = site.server.sent("skopeo/").size
        received, content = unpacked(image, tmp_path / "layers", is_complete=is_complete)
        sizes = [layer.size for layer in image.manifest.layers[::-1]]
        assert received == sum(sizes[:layers])
        assert content == [MODULES, USERSPACE][:layers]
        assert received <= site.server.sent("skopeo/").size - before < received + 5000


def test_what_is_not_there_is_not_found(site: Site) -> None:
    with pytest.raises(NotFoundError):
        site.repository.tags()
    with pytest.raises(NotFoundError):
        site.repository.manifest("none")
    site.have()
    with pytest.raises(NotFoundError):
        site.repository.manifest("sha256:" + "0" * 64)


@pytest.mark.parametrize("part", ["config", "layer"])
def test_what_was_altered_is_refused(site: Site, tmp_path: Path, part: str) -> None:
    """As someone does who may write to the registry's disk."""
    site.have()
    image = read_image(site.repository, "x86_64")
    manifest = image.manifest
    path = site.stored((manifest.config if part == "config" else manifest.layers[-1]).digest)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    if part == "config":
        with pytest.raises(WrongContentError):
            read_image(site.repository, "x86_64")
    else:
        with pytest.raises(WrongContentError):
            unpacked(image, tmp_path / "layers")
        assert list((tmp_path / "layers").iterdir()) == []


def test_who_has_no_password_does_not_get_in(tmp_path: Path) -> None:
    need_programs("skopeo")
    guarded = guard(tmp_path, LOGIN)
    with closing(RegistryServer(tmp_path / "registry", guarded)) as server:
        reference = parse_reference(f"{server.address}/drivers/demo:{TAG}")

        def site(ca: Path | None, password: str | None) -> Site:
            file = tmp_path / "auth.json"
            # As `docker login` writes it.
            login = base64.b64encode(f"fleet:{password}".encode()).decode()
            auths = {server.address: {"auth": login}} if password else {}
            file.write_text(json.dumps({"auths": auths}))
            return Site(server, Registry(reference, ca, auth_file=file))

        digest = site(guarded.authority, "of a test").have()
        assert site(guarded.authority, "of a test").repository.manifest(TAG).digest == digest
        for password in (None, "wrong"):
            with pytest.raises(DeniedError, match="Access to the registry"):
                site(guarded.authority, password).repository.manifest(TAG)
        # Neither is an authority that the system does not know taken for a good one.
        (tmp_path / "empty").mkdir()
        other = guard(tmp_path / "empty", LOGIN)
        with pytest.raises(UnreachableError, match="can't be reached"):
            site(other.authority, "of a test").repository.manifest(TAG)


def test_a_registry_that_does_not_answer_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    need_programs("skopeo")
    monkeypatch.setattr(repositories, "_REQUEST_S", 2.0)

    def repository(port: int) -> Registry:
        reference = parse_reference(f"127.0.0.1:{port}/demo:1")
        return Registry(reference)

    with pytest.raises(UnreachableError):
        repository(free_port()).manifest("1")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnreachableError):
        repository(silent.getsockname()[1]).manifest("1")


def test_without_skopeo_it_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ProvisionError, match="'skopeo' is not installed") as caught:
        site.repository.manifest(TAG)
    assert not isinstance(caught.value, NotFoundError)


def test_a_registry_does_not_write_on_the_terminal() -> None:
    need_programs("skopeo")

    class Writer(Answering):
        def do_GET(self) -> None:  # noqa: N802 - http.server
            body = json.dumps({"errors": [{"code": "X", "message": "\x1b[2Jgone"}]}).encode()
            self.answer(200 if self.path == "/v2/" else 418, body)

    with serving(Writer) as url:
        reference = parse_reference(f"{url.removeprefix('http://')}/demo:1")
        with pytest.raises(ProvisionError) as caught:
            Registry(reference).manifest("1")
    assert "gone" in (caught.value.details or "")
    assert "\x1b" not in f"{caught.value} {caught.value.details}"


def test_tags_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 256 << 20
    monkeypatch.setattr(repositories, "HOSTILE_MEMORY", limit)
    tags = json.dumps([f"{'t' * 110}{number:012d}" for number in range(8000)])
    page = f'{{"name": "x", "tags": {tags}}}'.encode()

    class Endless(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            is_list = self.path.startswith("/v2/x/tags/list")
            self.send_response(200)
            if is_list:
                self.send_header("Link", '</v2/x/tags/list?last=1>; rel="next"')
            self.send_header("Content-Length", str(len(page) if is_list else 2))
            self.end_headers()
            self.wfile.write(page if is_list else b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            registry = Registry(parse_reference(f"127.0.0.1:{server.server_port}/x"))
            with pytest.raises(WrongContentError) as caught:
                registry.tags()
        finally:
            server.shutdown()
            thread.join()
    # In a line or two, without the state of Go's threads.
    assert len((caught.value.details or "").splitlines()) < 5
