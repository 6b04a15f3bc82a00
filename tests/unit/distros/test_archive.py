"""What apt's answers say of an archive; tests/engine/test_archive.py has real ones."""

from __future__ import annotations

import pytest

from provision.distros import Repository
from provision.distros.archive import Archive, parse_packages
from provision.errors import ProvisionError
from unit.fake_archive import MIRROR, answer, archive_of, stanza

TEXTS = {
    ("bookworm", "main"): "\n".join([stanza("tool", "1.9-1"), stanza("tool-more", "1-1")]),
    ("bookworm", "contrib"): stanza("tool", "1.10-1"),
    ("bookworm-security", "main"): stanza("tool", "1.10-1+deb12u1"),
    ("bookworm-backports", "main"): "\n".join([stanza("tool", "3-1"), stanza("late", "3-1")]),
}


def test_versions_come_newest_first_and_those_of_backports_last() -> None:
    archive = archive_of(TEXTS)
    found = [
        (package.version, package.suite, package.component, package.url.rpartition("/pool")[0])
        for package in archive.versions("tool")
    ]
    assert found == [
        ("1.10-1+deb12u1", "bookworm-security", "main", f"{MIRROR}-security"),
        ("1.10-1", "bookworm", "contrib", MIRROR),
        ("1.9-1", "bookworm", "main", MIRROR),
        ("3-1", "bookworm-backports", "main", MIRROR),
    ]
    late = archive.package("late")
    assert late is not None
    assert late.version == "3-1"
    assert archive.package("missing") is None


def test_all_that_a_driver_needs_is_one_question() -> None:
    asked: list[tuple[str, ...]] = []

    def ask(words: tuple[str, ...]) -> bytes:
        asked.append(words)
        return answer(TEXTS, words)

    suite = Repository("bookworm", ("http://me:secret@mirror.example/debian",))
    archive = Archive("debian:12", [suite], ["tool", "other"], ask)
    package = archive.package("tool")
    assert archive.versions("other") == []
    assert asked == [("other", "tool")]
    archive.ask("tool-more", "late")
    assert archive.package("late")
    assert len(asked) == 2
    # apt names no passwords, and a download needs them.
    assert package is not None
    assert archive.versions("tool")[-1].url.startswith(
        "http://me:secret@mirror.example/debian/pool/"
    )


def test_what_is_installed_and_in_no_archive_is_left_out() -> None:
    said = answer(TEXTS, ("tool",))
    assert parse_packages(said + b"\nPackage: tool\nVersion: 0.1\n", {}) == parse_packages(said, {})


@pytest.mark.parametrize(("old", "new"), [(b"Size: 1", b"Size: much"), (b"1.9-1", b"1.9_1")])
def test_a_broken_entry_is_refused(old: bytes, new: bytes) -> None:
    said = answer({("bookworm", "main"): stanza("tool", "1.9-1")}, ("tool",))
    with pytest.raises(ProvisionError):
        parse_packages(said.replace(old, new), {})
