"""Wishes that can't be fulfilled."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.errors import NotFoundError, UsageError
from provision.export.ignition.served_folder import DAEMON_JSON, prepare
from provision.export.ignition.wheels import BundleOrigin
from unit.export.ignition.archives import make_options, write_hook


def test_a_wish_is_prepared(tmp_path: Path) -> None:
    prepared = prepare(make_options(tmp_path, url="https://files.example/provision/"))
    assert prepared.url == "https://files.example/provision"
    assert prepared.provision_toml == "[drivers.nvidia]\n"
    assert DAEMON_JSON in prepared.texts


def test_engines_are_those_of_the_distro_or_those_that_are_named(tmp_path: Path) -> None:
    flatcar = prepare(make_options(tmp_path, variant="flatcar")).texts
    assert DAEMON_JSON in flatcar
    assert not [path for path in flatcar if "containers" in path]
    podman = prepare(make_options(tmp_path, variant="flatcar", engines=("podman",))).texts
    assert DAEMON_JSON not in podman
    assert prepare(make_options(tmp_path, hook=None)).texts == {}


def test_without_an_archive_one_is_to_be_made_from_the_source(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("")
    bundle = prepare(make_options(tmp_path, bundle=None)).bundle
    assert isinstance(bundle, BundleOrigin)
    assert bundle.python.glibc == "2.36"


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "files.example"},
        {"url": "https://me:secret@files.example"},
        {"hook": None, "engines": ("docker",)},
        {"hook": None, "docker_default": True},
        {"engines": ("podman",), "docker_default": True},
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        prepare(make_options(tmp_path, **changes))
    assert caught.value.resolution


def test_a_program_for_another_machine_is_refused(tmp_path: Path) -> None:
    wish = make_options(tmp_path)
    write_hook(tmp_path, machine=183)
    with pytest.raises(UsageError):
        prepare(wish)
    (tmp_path / "oci-decorator").write_text("#!/bin/sh\n")
    with pytest.raises(UsageError):
        prepare(wish)
    (tmp_path / "oci-decorator").unlink()
    with pytest.raises(NotFoundError):
        prepare(wish)
