"""Which base image a Pin names, and where it comes from."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kit.files import write
from kit.probe import is_root, need
from provision.build.base_image import (
    BaseRequest,
    ensure_base,
    ensure_distro_base,
    find_base,
    named_base,
)
from provision.build.workspace import load_settings
from provision.distros.distro import find_distro
from provision.engine.docker_api import Image
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import BasePin
from provision.progress import Event
from unit.engine.fake_engine import FakeEngine, using

_ID = "sha256:" + "a" * 64
_REGISTRY = "sha256:" + "b" * 64
_DEBIAN = find_distro("debian:12")
_REQUEST = BaseRequest(_DEBIAN, "x86_64")
_LOCAL = Image(_ID, ("debian:bookworm",), architecture="amd64")
_PULLED = _LOCAL._replace(digests=(f"other@sha256:{'c' * 64}", f"debian@{_REGISTRY}"))


@pytest.fixture
def engine() -> FakeEngine:
    """An engine without images, which has Debian's after a pull."""
    engine = FakeEngine()
    engine.result = _LOCAL
    return engine


def test_without_an_engine_nothing_is_said_of_images(tmp_path: Path, events: list[Event]) -> None:
    write(tmp_path / "etc/provision/provision.toml", '[engine]\nhost = "unix:///none.sock"\n')
    with pytest.raises(NotFoundError):
        ensure_distro_base(load_settings(tmp_path), _REQUEST)
    assert events == []


@pytest.mark.parametrize(
    ("there", "reference", "expected"),
    [
        # A digest that is chosen is taken as it is.
        ([], f"my/base:1@{_REGISTRY}", BasePin(image="my/base:1", digest=_REGISTRY)),
        # From a registry by the registry's digest, and by its id if it is from none.
        ([_PULLED], None, BasePin(image="debian:bookworm", digest=_REGISTRY)),
        ([_LOCAL], None, BasePin(image="debian:bookworm", digest=_ID)),
        *(
            ([_LOCAL._replace(tags=(reference,))], reference, UsageError)
            for name in ("Debian:12", "debian 12", "-x", "a\nb")
            for reference in (name, f"{name}@{_REGISTRY}")
        ),
        *(
            ([], f"debian@{digest}", UsageError)
            for digest in ("sha256:abc", "sha256:" + "x" * 64, "md5:" + "b" * 64, "")
        ),
        ([_LOCAL._replace(architecture="arm64")], None, ProvisionError),
    ],
)
def test_a_base_image_is_found_by_name_or_digest(
    engine: FakeEngine,
    there: list[Image],
    reference: str | None,
    expected: BasePin | type[ProvisionError],
) -> None:
    for image in there:
        engine.have(image)
    request = _REQUEST._replace(reference=reference)
    if isinstance(expected, BasePin):
        assert (named_base(request) or find_base(engine, request)) == expected
    else:
        with pytest.raises(expected):
            _ = named_base(request) or find_base(engine, request)
    assert engine.calls == []


def test_a_machine_that_no_image_is_for_is_named(engine: FakeEngine) -> None:
    for _ in range(2):
        with pytest.raises(NotFoundError):
            find_base(engine, _REQUEST._replace(architecture="armv7l"))
        # Neither where it is there already.
        engine.have(_LOCAL)


def test_an_image_that_is_missing_is_pulled_for_the_architecture(
    engine: FakeEngine, notes: list[str]
) -> None:
    find_base(engine, _REQUEST)
    assert engine.calls == ["pull debian:bookworm linux/amd64"]
    nowhere = FakeEngine()
    nowhere.conversation = [{"error": "no such host"}]
    with pytest.raises(NotFoundError) as caught:
        find_base(nowhere, _REQUEST)
    assert "docker pull debian:bookworm" in (caught.value.resolution or "")
    assert "no such host" in str(notes)


def test_a_pins_base_is_found_by_id_or_digest_or_pulled(engine: FakeEngine) -> None:
    engine.have(_LOCAL)
    assert ensure_base(engine, BasePin(image="moved:1", digest=_ID)) == _LOCAL
    engine.result = Image(_ID, (), (f"debian@{_REGISTRY}",))
    found = ensure_base(engine, BasePin(image="debian:bookworm", digest=_REGISTRY))
    assert found == engine.result
    assert engine.calls == [f"pull debian@{_REGISTRY} None"]


def _names_in(engine: FakeEngine) -> list[str]:
    """The files of the one image that was loaded, which is of the request's architecture."""
    with tarfile.open(fileobj=io.BytesIO(engine.loaded[0])) as archive:
        config = json.load(archive.extractfile("config.json") or io.BytesIO())
        assert (config["architecture"], config["os"]) == ("amd64", "linux")
        with tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer:
            return layer.getnames()


_DEBOOTSTRAP = """\
#!/bin/sh
# Stand-in for debootstrap(8): notes how it is called, and leaves what has to go from the tree.
cd "$(dirname "$0")"
for word; do
    echo "$word" >>words
    case $word in
        http*) tree=$last ;;
        --keyring=*) cp "${word#*=}" keyring ;;
    esac
    last=$word
done
mkdir -p "$tree/var/cache/apt/archives" "$tree/etc"
touch "$tree/var/cache/apt/archives/some.deb" "$tree/etc/os-release" "$tree/etc/hostname"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with debootstrap, and what it notes."""
    need(is_root(), "root", "a program that makes a base image gets namespaces of its own")
    folder = tmp_path / "programs"
    write(folder / "debootstrap", _DEBOOTSTRAP, 0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return folder


def _made(engine: FakeEngine, root: Path, mirror: str, **more: Any) -> BasePin:  # noqa: ANN401 - of the request
    """Have the base image made from a mirror."""
    write(root / "keys.gpg", "a key of the mirror")
    toml = f'[distros.debian.archive]\nmirror = "{mirror}"\nkeyring = "/keys.gpg"\n'
    write(root / "etc/provision/provision.toml", toml)
    settings = dataclasses.replace(load_settings(root), state=root / "state")
    request = _REQUEST._replace(is_published=False, **more)
    return ensure_distro_base(using(settings, engine), request)


def _words(programs: Path) -> list[str]:
    return (programs / "words").read_text().splitlines()


def test_a_mirrors_password_is_in_no_argument(
    programs: Path, engine: FakeEngine, tmp_path: Path
) -> None:
    """Every user can read the arguments of programs, and the image would keep the address."""
    with pytest.raises(UsageError) as caught:
        _made(engine, tmp_path, "https://me:hush@m.example:8443/debian")
    assert "hush" not in f"{caught.value.message} {caught.value.resolution}"
    assert not (programs / "words").exists()


def test_a_base_image_is_made_from_the_archive_and_tidy(
    programs: Path, engine: FakeEngine, tmp_path: Path
) -> None:
    pin = _made(engine, tmp_path, "http://mirror/debian")
    assert pin == BasePin(image="debian:bookworm", digest=_ID)
    words = _words(programs)
    assert (programs / "keyring").read_text() == "a key of the mirror"
    assert words[-1] == "http://mirror/debian"
    assert not Path(words[-2]).parent.exists()
    names = _names_in(engine)
    assert "./etc/os-release" in names
    assert "./etc/hostname" not in names
    assert "./var/cache/apt/archives" in names
    assert "./var/cache/apt/archives/some.deb" not in names


@pytest.mark.parametrize(
    ("script", "mirror", "word"),
    [
        # A release that debootstrap does not know is made by another one's script.
        ("gutsy", "http://mirror/ubuntu", "/usr/share/debootstrap/scripts/gutsy"),
        # Certificates have to be in the image.
        (None, "https://mirror/debian", "--include=ca-certificates"),
    ],
)
def test_what_a_release_or_mirror_needs_is_said_to_debootstrap(
    programs: Path,
    engine: FakeEngine,
    tmp_path: Path,
    script: str | None,
    mirror: str,
    word: str,
) -> None:
    _made(engine, tmp_path, mirror, script=script)
    assert {word, mirror} <= set(_words(programs))
