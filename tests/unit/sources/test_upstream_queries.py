"""Asking vendors: on the loopback interface, when they are down, and from what was kept."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.files import write
from kit.fileserver import Mirror
from kit.probe import need_programs
from kit.process import run
from provision.catalogue.fields import Upstream
from provision.documents import parse_json
from provision.fetch import sessions
from provision.sources.upstream import UpstreamResult, ask, kept

_LIST = {"kind": "nvidia-releases-json"}
_ANSWER = {"595": {"type": "Production Branch", "driver_info": [{"release_version": "595.84"}]}}
DATA = Path(__file__).parents[2] / "data/releases"
# The package's member of that name is the function.
ask_module = sys.modules["provision.sources.upstream"]


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Mirror]:
    """A vendor's server with a file of each format."""
    folder = tmp_path / "vendor"
    folder.mkdir(parents=True)
    (folder / "releases.json").write_bytes((DATA / "releases.json").read_bytes())
    (folder / "files.json").write_text(json.dumps(_ANSWER))
    mirror = Mirror(folder)
    with mirror.serving():
        yield mirror


def upstream(*sources: Mapping[str, Any]) -> Upstream:
    return parse_json(json.dumps({"sources": sources}), Upstream, name="upstream")


class Asking:
    """Asks with one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *sources: Mapping[str, Any], **more: Any) -> tuple[UpstreamResult, ...]:  # noqa: ANN401 - arguments of ask
        options = {"machine": "x86_64", "distro": "debian:12", "folder": self.folder, **more}
        return ask(upstream(*sources), **options)

    def kept(self, *sources: Mapping[str, Any]) -> tuple[UpstreamResult, ...]:
        return kept(upstream(*sources), machine="x86_64", distro=None, folder=self.folder)


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path / "kept")


@pytest.fixture
def commit(vendor: Mirror, tmp_path: Path) -> str:
    """Have a bare repository at the vendor's, as git reads it over plain HTTP; one tag's commit."""
    need_programs("git")
    work, bare = tmp_path / "work", vendor.folder / "demo.git"
    who = ("-c", "user.name=Vendor", "-c", "user.email=vendor@example.org")
    run(["git", "init", "-q", work])
    for version in ("v1.2.0", "v1.3.1", "v1.4-rc1"):
        run(["git", "-C", work, *who, "commit", "-q", "--allow-empty", "-m", version])
        run(["git", "-C", work, *who, "tag", "-a", "-m", version, version])
    run(["git", "clone", "-q", "--bare", work, bare])
    run(["git", "-C", bare, "update-server-info"])
    return run(["git", "-C", bare, "rev-parse", "v1.3.1^{commit}"]).stdout.strip()


def test_tags_are_asked_of_git_without_a_password_prompt(
    vendor: Mirror, commit: str, asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'echo "$GIT_TERMINAL_PROMPT $GIT_ALLOW_PROTOCOL $*" >>"{tmp_path}/calls"'
    text = f'#!/bin/sh\n{text}\nexec {shutil.which("git")} "$@"\n'
    write(tmp_path / "programs/git", text, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:{os.environ['PATH']}")
    url = f"{vendor.url}/demo.git"
    source = {"kind": "git-tags", "url": url, "pattern": "v([0-9.]+)"}
    (before,) = asking(source)
    assert [release.version for release in before.releases] == ["1.2.0", "1.3.1"]
    assert before.releases[1].commit == commit
    assert (tmp_path / "calls").read_text() == f"0 http:https ls-remote --tags -- {url}\n"
    (vendor.folder / "demo.git").rename(vendor.folder / "gone")
    (later,) = asking(source)
    assert later.trouble is not None
    assert later.answer == before.answer


def test_the_last_answer_counts_while_a_vendor_is_down(vendor: Mirror, asking: Asking) -> None:
    source = {"kind": "nvidia-releases-json", "url": f"{vendor.url}/releases.json"}
    (before,) = asking(source)
    for broken in ("<html>Down for maintenance</html>", "{}", '{"535": 1}'):
        (vendor.folder / "releases.json").write_text(broken)
        (now,) = asking(source)
        assert now.trouble is not None, broken
        assert now.answer == before.answer
    (vendor.folder / "releases.json").unlink()
    (now,) = asking(source)
    assert now.trouble is not None
    assert now.answer == before.answer
    assert asking.kept(source)[0].answer == before.answer


def test_a_vendor_that_never_answered_is_said(asking: Asking) -> None:
    (reading,) = asking({**_LIST, "url": "http://127.0.0.1:9/files.json"})
    assert reading.answer is None
    assert reading.trouble is not None
    assert "127.0.0.1:9" in reading.trouble.message


def test_an_answer_that_is_young_enough_is_not_asked_for_again(
    vendor: Mirror, asking: Asking
) -> None:
    source = {**_LIST, "url": f"{vendor.url}/files.json"}
    asking(source)
    asking(source, max_age=3600)
    assert vendor.asked == ["/files.json"]
    (path,) = (asking.folder / "upstream").iterdir()
    old = json.loads(path.read_text())
    path.write_text(json.dumps({**old, "read": old["read"] - 3601}))
    asking(source, max_age=3600)
    asking(source)
    assert len(vendor.asked) == 3
    # A clock that was set back does not keep an answer for ever.
    path.write_text(json.dumps({**old, "read": old["read"] + 10_000}))
    asking(source, max_age=3600)
    assert len(vendor.asked) == 4


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 2}', "[]"])
def test_a_damaged_answer_is_asked_for_again(vendor: Mirror, asking: Asking, text: str) -> None:
    source = {**_LIST, "url": f"{vendor.url}/files.json"}
    asking(source)
    (path,) = (asking.folder / "upstream").iterdir()
    path.write_text(text)
    assert asking.kept(source)[0].answer is None
    (reading,) = asking(source, max_age=3600)
    assert reading.releases
    assert asking.kept(source)[0].releases


def test_an_answer_to_another_question_does_not_count(vendor: Mirror, asking: Asking) -> None:
    source = {**_LIST, "url": f"{vendor.url}/releases.json"}
    asking(source)
    assert asking.kept({**source, "arch": {"x86_64": "amd64"}})[0].answer is None


def test_sources_are_for_the_distros_that_they_name(vendor: Mirror, asking: Asking) -> None:
    source = {**_LIST, "url": f"{vendor.url}/files.json", "distros": ["rhel:9*"]}
    assert asking(source) == ()
    assert len(asking(source, distro="rhel:9.6")) == 1
    assert asking(source, distro=None) == ()


def test_a_folder_that_cannot_be_written_is_no_trouble(vendor: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = {**_LIST, "url": f"{vendor.url}/files.json"}
    (reading,) = Asking(tmp_path / "file")(source)
    assert reading.trouble is None
    assert reading.releases


@pytest.mark.parametrize("limited", ["size", "time"])
def test_an_answer_is_bounded_in_size_and_time(
    vendor: Mirror, asking: Asking, monkeypatch: pytest.MonkeyPatch, limited: str
) -> None:
    source = {**_LIST, "url": f"{vendor.url}/files.json"}
    (reading,) = asking(source)
    assert reading.trouble is None
    if limited == "size":
        monkeypatch.setattr(ask_module, "_MAX_ANSWER", 10)
    else:
        monkeypatch.setattr(sessions, "_WAITING_S", -1.0)
    (reading,) = asking(source)
    assert reading.trouble is not None
