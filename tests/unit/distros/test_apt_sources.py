"""The apt configuration of a machine: its sources, and their keys."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.distros.repositories import AptSource, binary_key, read_sources
from provision.errors import ProvisionError

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
# Each file of a host, and what apt takes from it.
FILES = {
    "sources.list": (
        (
            "# deb http://comment.example/debian bookworm main\n"
            "deb-src http://sources.example/debian bookworm main\n"
            "deb http://m.example\n"
            "deb [arch=amd64,arm64 signed-by=/k/A.gpg,/k/b.gpg] http://mirror.example/debian"
            " bookworm main # why\n"
            "deb [check-valid-until=no] http://old.example/debian/ bookworm main contrib\n"
            "deb [signed-by=ABCDEF0123456789] http://narrow.example bookworm main\n"
            "deb http://flat.example/ ./\n"
        ),
        [
            AptSource("http://mirror.example/debian", "bookworm", ("main",), "/k/A.gpg,/k/b.gpg"),
            AptSource(
                "http://old.example/debian", "bookworm", ("main", "contrib"), is_snapshot=True
            ),
            AptSource("http://narrow.example", "bookworm", ("main",), "ABCDEF0123456789"),
            AptSource("http://flat.example", "./"),
        ],
    ),
    "sources.list.d/b.list": (
        "deb http://b.example/d b main\ndeb mirror+file:/etc/apt/none.list d main\n",
        [
            AptSource("http://b.example/d", "b", ("main",)),
            AptSource("mirror+file:/etc/apt/none.list", "d", ("main",)),
        ],
    ),
    "sources.list.d/c.sources": (
        (
            "# The distribution itself.\n"
            "Types: deb deb-src\n"
            "# An older snapshot stood here.\n"
            "URIs: http://mirror.example/debian/\n"
            "Suites: bookworm\n bookworm-updates\n"
            "Components: main contrib\n"
            "Check-Valid-Until: no\n"
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
            "\n"
            "Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\nEnabled: no\n"
            "\n"
            "Types: deb-src\nURIs: http://sources.example/debian\nSuites: bookworm\n"
            " \n"
            "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/c.list\nSuites: c\nComponents: main\n"
            f"Signed-By:\n {KEY}\n .\n AAAA\n"
        ),
        [
            *(
                AptSource(
                    "http://mirror.example/debian",
                    suite,
                    ("main", "contrib"),
                    "/usr/share/keyrings/debian-archive-keyring.gpg",
                    is_snapshot=True,
                )
                for suite in ("bookworm", "bookworm-updates")
            ),
            AptSource("http://c.example/d", "c", ("main",), f"{KEY}\n .\n AAAA"),
        ],
    ),
    "sources.list.d/e.sources.save": ("not apt's business", []),
    "mirrors/c.list": (
        "# near\nfile:/media/c\nhttp://c.example/d/\tpriority:1\nhttp://far.example\n",
        [],
    ),
}


def test_every_file_of_apt_is_read_as_apt_reads_it(tmp_path: Path) -> None:
    for name, (text, _) in FILES.items():
        path = tmp_path / "etc/apt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert list(read_sources(tmp_path)) == [one for _, found in FILES.values() for one in found]


def test_a_host_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert not list(read_sources(tmp_path))


BEGIN, END = KEY, "-----END PGP PUBLIC KEY BLOCK-----"


def armor(key: bytes, *, headers: tuple[str, ...] = ()) -> str:
    data = base64.b64encode(key).decode()
    body = [data[at : at + 64] for at in range(0, len(data), 64)]
    return "".join(f"{line}\n" for line in (BEGIN, *headers, "", *body, "=njUN", END))


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=3))
def test_armor_comes_off(keys: list[bytes]) -> None:
    text = "\n".join(armor(key, headers=("Version: 1", "Comment: x")) for key in keys)
    assert binary_key(text.encode(), name="f") == b"".join(keys)


def test_a_binary_keyring_stays_as_it_is() -> None:
    assert binary_key(b"\x99\x01binary", name="f") == b"\x99\x01binary"


@pytest.mark.parametrize("body", ["", "AA!A", "AAA", "ÄÄÄÄ"])
def test_a_damaged_key_is_an_error(body: str) -> None:
    with pytest.raises(ProvisionError):
        binary_key(f"{BEGIN}\n\n{body}\n{END}\n".encode(), name="f")
