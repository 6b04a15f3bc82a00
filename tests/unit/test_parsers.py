"""Whatever the bytes are, a parser reads them or refuses them with an error of its own.

The bytes come from users' files, archives, vendors and other programs. Each row has a sample that
is read; what is tried is the sample with bytes changed, cut or repeated, text, and noise.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.artifact import make_artifact, make_pin
from provision import documents
from provision.catalogue import Recipe
from provision.config import Config
from provision.distros.archive import parse_depends, parse_packages
from provision.distros.dnf import Dnf
from provision.distros.prepare_tree import major_of, parse_config
from provision.distros.repositories import binary_key, parse_lines, parse_paragraphs
from provision.documents import Frozen, load_json, load_toml
from provision.elf import read_elf
from provision.errors import ConfigError, NotFoundError, ProvisionError
from provision.fleet import Fleet
from provision.host.devices import (
    parse_capability,
    parse_information,
    parse_unique_id,
    parse_version,
)
from provision.manifest import Manifest
from provision.pin import Pin
from provision.registry import parse_reference
from provision.sources.runfile import parse_file_list, read_head
from provision.sources.upstream import git_tags, nvidia_releases
from provision.sources.vendor_sums import parse_sums
from provision.store.state import parse_state
from unit.distros import test_apt, test_rpm
from unit.fake_archive import answer, stanza
from unit.recipes import RECIPE
from unit.sources.libraries import library

Parser = Callable[[bytes], object]
_FLEET = b"""\
registry = "r.example/drivers"
distros = ["debian:12"]
kernels = ["archive"]
[[builds]]
drivers = ["demo"]
"""
_FILE_LIST = b'[{"name": "libcuda.so.1", "category": ["cuda"]}]'
_KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{}\n-----END PGP PUBLIC KEY BLOCK-----\n"


def _text(parse: Callable[[str], object]) -> Parser:
    return lambda data: parse(data.decode(errors="replace"))


def _file(load: Callable[[Path, type[Frozen]], Frozen], model: type[Frozen]) -> Parser:
    def parse(data: bytes) -> object:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return load(Path(file.name), model)

    return parse


def _manifest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return make_artifact(Path(folder)).model_dump_json(by_alias=True).encode()


# Parser, a sample that it reads, and the errors that it may refuse with.
_PARSERS: dict[str, tuple[Parser, bytes, type[Exception]]] = {
    "driver.toml": (_file(load_toml, Recipe), RECIPE.encode(), ProvisionError),
    "provision.toml": (_file(load_toml, Config), b"[policy]\nkeep = 1\n", ProvisionError),
    "fleet.toml": (_file(load_toml, Fleet), _FLEET, ProvisionError),
    "pin.json": (_file(load_json, Pin), make_pin().canonical_json().encode(), ProvisionError),
    "manifest.json": (_file(load_json, Manifest), _manifest(), ProvisionError),
    "state.json": (parse_state, b'{"schema": 1, "kernels": {}}', ProvisionError),
    "an image's name": (_text(parse_reference), b"r.example/drivers/demo:1", ProvisionError),
    "sums": (_text(parse_sums), f"{'a' * 64}  driver.run\n".encode(), ProvisionError),
    "NVIDIA's file list": (_text(parse_file_list), _FILE_LIST, ProvisionError),
    "a .run file": (
        lambda d: read_head(io.BytesIO(d), "a"),
        b"#!/bin/sh\nskip=3\n",
        ProvisionError,
    ),
    "a library": (lambda d: read_elf(io.BytesIO(d)), library("libx.so.1", bits=32), ValueError),
    "relations": (_text(parse_depends), b"gcc (>= 12) | clang, make", ProvisionError),
    "sources.list": (
        _text(lambda text: list(parse_lines(text))),
        b"deb [signed-by=/k] http://h bookworm main\n",
        ProvisionError,
    ),
    "deb822 sources": (
        _text(lambda text: list(parse_paragraphs(text))),
        b"Types: deb\nURIs: http://h\nSuites: bookworm\nComponents: main\n",
        ProvisionError,
    ),
    "an OpenPGP key": (
        lambda data: binary_key(data, name="f"),
        _KEY.format("AAAA").encode(),
        ProvisionError,
    ),
    "Packages": (
        lambda data: parse_packages(data, {}),
        answer({("bookworm", "main"): stanza("a", "1")}, ("a",)),
        ProvisionError,
    ),
    "apt's closure": (test_apt.APT.parse, test_apt.LISTING, ProvisionError),
    "dnf's closure": (Dnf().parse, test_rpm.LISTING.encode(), ProvisionError),
    "NVIDIA's releases": (
        lambda data: nvidia_releases(data, url="u", machine="x86_64"),
        b'{"595": {"type": "", "driver_info": [{"release_version": "595.84"}]}}',
        ProvisionError,
    ),
    "tags": (
        _text(lambda text: git_tags(text, url="u", pattern="(.*)")),
        f"{'1' * 40}\trefs/tags/1.0\n".encode(),
        ProvisionError,
    ),
    "a compiler's text": (
        _text(partial(test_apt.APT.compiler, test_apt.UBUNTU)),
        b"gcc (GCC) 11.4.1",
        ProvisionError,
    ),
    "a kernel's .config": (_text(parse_config), b"CONFIG_A=y\n", ProvisionError),
    "a compiler's version": (_text(major_of), b"gcc (GCC) 11.4.1", ProvisionError),
    "a GPU's information": (_text(parse_information), b"Device Minor: 0\n", ProvisionError),
    "a GPU's capability": (_text(parse_capability), b"DeviceFileMinor: 1\n", ProvisionError),
    "a driver's version": (_text(parse_version), b"NVRM version: 535.1\n", ProvisionError),
    "a GPU's unique id": (_text(parse_unique_id), b"0x1\n", ProvisionError),
}
_ODD = [
    b"\x00",
    b"\xff\xfe",
    "é".encode(),
    b"9" * 5000,
    b"[" * 5000,
    b"2026-99-99",
    b"nan",
    b"1e999",
    b"31 Dec 9999 23:59:59 -2359",
    json.dumps({"a": [None, -1]}).encode(),
]


@pytest.mark.parametrize("name", _PARSERS)
@given(data=st.data())
@settings(max_examples=100)
def test_anything_is_read_or_refused(name: str, data: st.DataObject) -> None:
    parse, sample, refusal = _PARSERS[name]
    noise = data.draw(st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
    noise = data.draw(st.sampled_from([noise, *_ODD]))
    start = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(start, len(sample)))
    for damaged in (noise, sample[:start] + noise + sample[end:]):
        with suppress(refusal):
            parse(damaged)


@pytest.mark.parametrize("name", _PARSERS)
def test_the_sample_is_read(name: str) -> None:
    parse, sample, _refusal = _PARSERS[name]
    assert parse(sample)


class Inner(Frozen):
    size: int


class Outer(Frozen):
    name: str
    parts: tuple[Inner, ...] = ()


def mistakes(error: ConfigError) -> list[str]:
    return [str(mistake) for mistake in error.mistakes]


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        (b"name = \n", "not valid TOML: Invalid value (at line 1, column 8)"),
        # A date is a text and not a crash.
        (b"name = 2026-11-20\nparts = 1979-05-27\n", "parts: Input should be a valid array"),
        (b"\xef\xbb\xbfname = 1\n", "begins with a byte order mark; save it as UTF-8 without BOM"),
        (rb'a = ["x", { b = "/x\u0000y" }]', "a.1.b: has a NUL character in it"),
        (b"ab\xff", "not UTF-8 text (byte 2)"),
        (b'name = "a long one" # ' + bytes(30), "larger than 50 bytes"),
        ("folder", "not a regular file"),
        # It is not waited for.
        ("pipe", "not a regular file"),
    ],
)
def test_what_is_no_document_is_a_mistake_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str, mistake: str
) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 50)
    path = tmp_path / "f.toml"
    match content:
        case bytes():
            path.write_bytes(content)
        case "folder":
            path.mkdir()
        case _:
            os.mkfifo(path)
    with pytest.raises(ConfigError) as caught:
        load_toml(path, Outer)
    assert mistakes(caught.value) == [mistake]


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        load_json(tmp_path / "f.json", Outer)


@pytest.mark.parametrize(
    "text", [f"name = {'9' * 5000}", f"name = {'[' * 5000}", "name = 2026-99-99", "name = nan"]
)
def test_what_the_librarys_limits_refuse_is_a_mistake_of_the_file(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(ConfigError):
        load_toml(tmp_path / "f.toml", Outer)
