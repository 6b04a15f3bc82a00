"""Asking vendors: on the loopback interface, when they are down, and from what was kept."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.fileserver import Mirror
from provision.catalogue.upstream import Upstream
from provision.documents import parse_json
from provision.fetch import sessions
from provision.run import Completed
from provision.sources.upstream.queries import UpstreamResult, ask, kept

DATA = Path(__file__).parents[2] / "data/releases"
# The package's member of that name is the function.
ask_module = sys.modules["provision.sources.upstream.queries"]


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Mirror]:
    """A vendor's server with a file of each format."""
    folder = tmp_path / "vendor"
    (folder / "redist").mkdir(parents=True)
    (folder / "rpm/repodata").mkdir(parents=True)
    files = {
        "releases.json": "releases.json",
        "redist/index.html": "index.html",
        "redist/redistrib_580.65.06.json": "redistrib_580.65.06.json",
        "rpm/repodata/repomd.xml": "repomd.xml",
    }
    for name, source in files.items():
        (folder / name).write_bytes((DATA / source).read_bytes())
    (folder / "latest.txt").write_text("595.84 595.84/NVIDIA-Linux-x86_64-595.84.run\n")
    (folder / "Packages.gz").write_bytes(gzip.compress((DATA / "Packages").read_bytes()))
    primary = gzip.compress((DATA / "primary.xml").read_bytes())
    (folder / "rpm/repodata/abc-primary.xml.gz").write_bytes(primary)
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


def test_every_kind_is_read(vendor: Mirror, asking: Asking) -> None:
    url = vendor.url
    readings = asking(
        {"kind": "nvidia-releases-json", "url": f"{url}/releases.json"},
        {"kind": "latest-txt", "url": f"{url}/latest.txt"},
        {"kind": "redistrib-json", "url": f"{url}/redist", "component": "nvidia_driver"},
        {"kind": "http-index", "url": f"{url}/redist/", "pattern": r"redistrib_(.*)\.json"},
        {"kind": "deb-index", "url": f"{url}/Packages.gz", "package": "nvidia-kernel-open-dkms"},
        {"kind": "rpm-index", "url": f"{url}/rpm/", "package": "kmod-nvidia-open-dkms"},
    )
    assert [reading.trouble for reading in readings] == [None] * 6
    counts = [len(reading.releases) for reading in readings]
    assert counts == [5, 1, 3, 3, 2, 2]
    assert readings[2].releases[0].sha256 == "2" * 64


def test_tags_are_asked_of_git_without_a_password_prompt(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Sequence[str | Path], Mapping[str, str]]] = []

    def git(argv: Sequence[str | Path], *, env: Mapping[str, str], **_more: object) -> Completed:
        calls.append((argv, env))
        return Completed((), 0, f"{'1' * 40}\trefs/tags/v9.0.2\n", "")

    monkeypatch.setattr(ask_module, "run", git)
    (reading,) = asking({"kind": "git-tags", "url": "https://git.example/onload.git"})
    assert [release.version for release in reading.releases] == ["9.0.2"]
    ((argv, env),) = calls
    assert list(argv)[-2:] == ["--", "https://git.example/onload.git"]
    assert env["GIT_TERMINAL_PROMPT"] == "0"
    assert env["GIT_ALLOW_PROTOCOL"] == "http:https"
    failed = Completed((), 128, "", "fatal: not there\n")
    monkeypatch.setattr(ask_module, "run", lambda *_a, **_k: failed)
    (reading,) = asking({"kind": "git-tags", "url": "https://git.example/onload.git"})
    assert reading.trouble is not None
    assert reading.trouble.details == "fatal: not there"
    assert [release.version for release in reading.releases] == ["9.0.2"]


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
    (reading,) = asking({"kind": "latest-txt", "url": "http://127.0.0.1:9/latest.txt"})
    assert reading.answer is None
    assert reading.trouble is not None
    assert "127.0.0.1:9" in reading.trouble.message


def test_an_answer_that_is_young_enough_is_not_asked_for_again(
    vendor: Mirror, asking: Asking
) -> None:
    source = {"kind": "latest-txt", "url": f"{vendor.url}/latest.txt"}
    asking(source)
    asking(source, max_age=3600)
    assert vendor.asked == ["/latest.txt"]
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
    source = {"kind": "latest-txt", "url": f"{vendor.url}/latest.txt"}
    asking(source)
    (path,) = (asking.folder / "upstream").iterdir()
    path.write_text(text)
    assert asking.kept(source)[0].answer is None
    (reading,) = asking(source, max_age=3600)
    assert reading.releases
    assert asking.kept(source)[0].releases


def test_an_answer_to_another_question_does_not_count(vendor: Mirror, asking: Asking) -> None:
    source = {"kind": "http-index", "url": f"{vendor.url}/redist/"}
    asking({**source, "pattern": r"redistrib_(.*)\.json"})
    assert asking.kept({**source, "pattern": "other_(.*)"})[0].answer is None


def test_sources_are_for_the_distros_that_they_name(vendor: Mirror, asking: Asking) -> None:
    source = {"kind": "latest-txt", "url": f"{vendor.url}/latest.txt", "distros": ["rhel:9*"]}
    assert asking(source) == ()
    assert len(asking(source, distro="rhel:9.6")) == 1
    assert asking(source, distro=None) == ()


def test_a_folder_that_cannot_be_written_is_no_trouble(vendor: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = {"kind": "latest-txt", "url": f"{vendor.url}/latest.txt"}
    (reading,) = Asking(tmp_path / "file")(source)
    assert reading.trouble is None
    assert reading.releases


@pytest.mark.parametrize(
    ("module", "limit", "value"),
    [(ask_module, "_MAX_ANSWER", 10), (sessions, "_WAITING_S", -1.0)],
)
def test_an_answer_is_bounded_in_size_and_time(
    vendor: Mirror,
    asking: Asking,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    limit: str,
    value: float,
) -> None:
    source = {"kind": "latest-txt", "url": f"{vendor.url}/latest.txt"}
    (reading,) = asking(source)
    assert reading.trouble is None
    monkeypatch.setattr(module, limit, value)
    (reading,) = asking(source)
    assert reading.trouble is not None
