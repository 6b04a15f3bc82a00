"""Finding an engine, and saying so where there is none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from provision.errors import ExitCode, NotFoundError, ProvisionError
from provision.image import engine as module
from provision.image.engine import connect, split_reference


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("debian", ("debian", None)),
        ("debian:12", ("debian", "12")),
        ("host:5000/debian", ("host:5000/debian", None)),
        ("host:5000/debian:12", ("host:5000/debian", "12")),
        ("debian@sha256:ab", ("debian", "sha256:ab")),
        ("host:5000/a/debian:12@sha256:ab", ("host:5000/a/debian", "sha256:ab")),
    ],
)
def test_references_are_split_where_docker_splits_them(
    reference: str, parts: tuple[str, str | None]
) -> None:
    assert split_reference(reference) == parts


def test_no_engine_says_what_was_tried_and_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    hosts = (f"unix://{tmp_path}/docker.sock", f"unix://{tmp_path}/podman.sock")
    monkeypatch.setattr(module, "DEFAULT_HOSTS", hosts)
    with pytest.raises(NotFoundError) as caught:
        connect()
    assert all(host in (caught.value.details or "") for host in hosts)
    assert "apt install" in (caught.value.resolution or "")
    assert caught.value.exit_code == ExitCode.NOT_FOUND


def test_a_named_host_is_the_only_one_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/environment.sock")
    with pytest.raises(NotFoundError) as caught:
        connect(f"unix://{tmp_path}/config.sock")
    assert "config.sock" in (caught.value.details or "")
    assert "environment.sock" not in (caught.value.details or "")
    with pytest.raises(NotFoundError, match="No container engine") as caught:
        connect()
    assert "environment.sock" in (caught.value.details or "")


def test_a_socket_that_may_not_be_used_says_how_to_be_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_self: object, _address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(ProvisionError, match="may not use") as caught:
        connect("unix:///run/docker.sock")
    assert "group" in (caught.value.resolution or "")
    assert caught.value.exit_code == ExitCode.FAILED
