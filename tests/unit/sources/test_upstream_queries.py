"""Asking vendors, and their formats: as they are published, damaged, and made up."""

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
from provision.errors import ProvisionError
from provision.fetch import sessions
from provision.sources import upstream as formats
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
        options = {"machine": "x86_64", "folder": self.folder, **more}
        return ask(upstream(*sources), **options)

    def kept(self, *sources: Mapping[str, Any]) -> tuple[UpstreamResult, ...]:
        return kept(upstream(*sources), machine="x86_64", folder=self.folder)


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
        # One tag is no object of its own.
        kind = [] if version == "v1.2.0" else ["-a", "-m", version]
        run(["git", "-C", work, *who, "tag", *kind, version])
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
    assert asking.kept({**source, "files": True})[0].answer is None


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


URL = "https://vendor.example/file"


def data(name: str) -> bytes:
    return (DATA / name).read_bytes()


def versions(releases: tuple[formats.Release, ...]) -> list[str]:
    return [release.version for release in releases]


def nvidia(content: bytes, machine: str = "x86_64") -> tuple[formats.Release, ...]:
    return formats.nvidia_releases(content, url=URL, machine=machine)


def test_versions_for_other_architectures_are_left_out() -> None:
    assert "535.54.03" not in versions(nvidia(data("releases.json"), "aarch64"))
    renamed = data("releases.json").replace(b'"aarch64"]', b'"sbsa"]')
    assert "595.91.07" in versions(nvidia(renamed, "aarch64"))
    assert nvidia(renamed, "riscv64") == ()


def test_unknown_members_and_kinds_of_branches_are_accepted() -> None:
    document = json.loads(data("releases.json"))
    document["580"] |= {"type": "Some new branch", "end": {"of": "life"}}
    document["580"]["driver_info"][0]["sha512"] = "0"
    found = {release.version: release for release in nvidia(json.dumps(document).encode())}
    assert found["580.178.04"].maturity is None


_DRIVER = ("535", "driver_info", 1, "release_version")


@pytest.mark.parametrize(
    "members",
    [
        {_DRIVER: None},
        {_DRIVER: 535},
        {_DRIVER: "../535"},
        {("580", "driver_info"): {}},
        {("580", "driver_info", 0, "release_date"): "Aug 18"},
        # All are named together.
        {_DRIVER: None, ("580", "driver_info"): {}},
    ],
)
def test_a_changed_format_is_named_by_address_and_member(
    members: dict[tuple[str | int, ...], object],
) -> None:
    document = json.loads(data("releases.json"))
    for keys, value in members.items():
        table = document
        for key in keys[:-1]:
            table = table[key]
        if value is None:
            del table[keys[-1]]
        else:
            table[keys[-1]] = value
    with pytest.raises(ProvisionError) as refused:
        nvidia(json.dumps(document).encode())
    assert URL in refused.value.message
    named = [line.partition(": ")[0] for line in str(refused.value.details).splitlines()]
    assert named == [".".join(map(str, keys)) for keys in members]


def test_an_answer_has_a_bounded_number_of_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_MOST", 4)
    with pytest.raises(ProvisionError):
        nvidia(data("releases.json"))
