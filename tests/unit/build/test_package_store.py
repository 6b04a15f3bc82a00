"""The package store: whole files under their checksums, closures beside them."""

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.files import sha256
from kit.fileserver import Mirror
from provision.build import package_store
from provision.build.package_store import Closure, PackageStore, closure_key
from provision.errors import NotFoundError, ProvisionError
from provision.pin import ClosurePackage, DistroPin, PackagePin

KEY = "0" * 64


def closure(*contents: bytes, kernel: str = "5.14.0-1.el9.x86_64") -> Closure:
    return Closure(
        distro=DistroPin(id="rocky", version="9", codename="el9"),
        kernel=kernel,
        architecture="x86_64",
        cc_version_text="gcc (GCC) 11.4.1",
        compiler=PackagePin(name="gcc", version="11.4.1-3.el9"),
        headers=(PackagePin(name="kernel-devel", version="5.14.0-1.el9"),),
        packages=tuple(
            ClosurePackage(
                name=f"p{number}",
                version="1-1",
                arch="noarch",
                sha256=sha256(content),
                size=len(content),
                repository="baseos",
                location=f"p{number}.rpm",
            )
            for number, content in enumerate(contents)
        ),
    )


def aged(path: Path, days: float) -> None:
    when = time.time() - days * 24 * 3600
    os.utime(path, (when, when))


def test_other_content_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    with pytest.raises(ProvisionError, match=r"a\.rpm"):
        store.add(io.BytesIO(b"other"), sha256=sha256(b"rpm"), name="a.rpm")
    assert not list((tmp_path / "packages/sha256").iterdir())


def test_a_closure_is_what_was_kept(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    assert store.kept(KEY) is None
    store.keep(KEY, closure(b"one"))
    assert store.kept(KEY) == closure(b"one")
    (tmp_path / f"packages/closures/{KEY}.json").write_text('{"schema": 1, "kern')
    assert store.kept(KEY) is None


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    """A server with one package, which others lack."""
    (tmp_path / "served/there").mkdir(parents=True)
    (tmp_path / "served/there/a.rpm").write_bytes(b"rpm")
    made = Mirror(tmp_path / "served")
    with made.serving():
        yield made


def test_a_file_comes_from_the_first_address_that_has_it(tmp_path: Path, mirror: Mirror) -> None:
    store = PackageStore(tmp_path)
    urls = [f"{mirror.url}/{name}/a.rpm" for name in ("gone", "there", "never")]
    for _ in range(2):
        path = store.fetch(sha256(b"rpm"), urls, name="a.rpm")
        assert path.read_bytes() == b"rpm"
    assert mirror.asked == ["/gone/a.rpm", "/there/a.rpm"]
    # A damaged one is had again.
    path.write_bytes(b"other")
    assert store.whole(sha256(b"rpm")) is None
    with pytest.raises(NotFoundError):
        store.fetch(sha256(b"rpm"), (), name="a.rpm")
    assert store.fetch(sha256(b"rpm"), urls, name="a.rpm") == path
    assert path.read_bytes() == b"rpm"
    with pytest.raises(NotFoundError) as caught:
        store.fetch("1" * 64, urls[:1], name="b.rpm")
    assert f"packages/sha256/{'1' * 64}" in str(caught.value.resolution)


def test_gc_goes_by_the_time_of_use_and_not_by_the_date_that_a_file_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackageStore(tmp_path)
    path = store.add(io.BytesIO(b"rpm"), sha256=sha256(b"rpm"), name="a.rpm")
    aged(path, 90)
    # As 'cp -p' from another machine leaves it.
    assert store.collect([], days=30) == []
    monkeypatch.setattr(package_store, "_last_use", lambda status: status.st_mtime)
    assert store.collect([], days=30, dry_run=True) == [(path.name, 3)]
    store.fetch(path.name, (), name="a.rpm")
    assert store.collect([], days=30) == []


def test_gc_does_not_mind_drafts_that_go_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackageStore(tmp_path)
    path = store.add(io.BytesIO(b"rpm"), sha256=sha256(b"rpm"), name="a.rpm")
    names = [path.with_name(".gone"), path]
    monkeypatch.setattr(Path, "iterdir", lambda _folder: iter(names))
    monkeypatch.setattr(package_store, "_last_use", lambda _status: 0.0)
    assert store.collect([], days=30, dry_run=True) == [(path.name, 3)]


def test_gc_keeps_what_a_kernel_of_the_host_needs_and_what_was_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the first of both times can be set.
    monkeypatch.setattr(package_store, "_last_use", lambda status: status.st_mtime)
    store = PackageStore(tmp_path)
    for number, (content, kernel, days) in enumerate(
        [(b"host", "1.el9", 90.0), (b"recent", "2.el9", 1.0), (b"old", "3.el9", 90.0)]
    ):
        key = str(number) * 64
        store.keep(key, closure(content, kernel=kernel))
        aged(tmp_path / f"packages/closures/{key}.json", days)
        aged(store.add(io.BytesIO(content), sha256=sha256(content), name="x"), days)
    new = store.add(io.BytesIO(b"source"), sha256=sha256(b"source"), name="source")
    draft = new.with_name(f".{'5' * 64}.abc")
    draft.write_bytes(b"half")
    aged(draft, 2)
    # A killed fetch of a commit leaves up to some gigabytes.
    commit = store.commits / ".1.tar"
    for path, days in (
        *((commit, 2), (store.commits / "2.tar", 2), (store.commits / "3.tar", 90)),
        *((store.runfiles / "new.json", 1), (store.runfiles / "old.json", 90)),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"objects")
        aged(path, days)
    expected = {"2" * 64 + ".json", sha256(b"old"), draft.name, commit.name, "3.tar", "old.json"}
    assert {name for name, _ in store.collect(["1.el9"], days=30, dry_run=True)} == expected
    assert draft.exists()
    assert {name for name, _ in store.collect(["1.el9"], days=30)} == expected
    assert {name for name, _ in store.collect(["1.el9"], days=30)} == set()
    assert all(store.whole(sha256(c)) for c in (b"host", b"recent", b"source"))
    assert not store.whole(sha256(b"old"))


def test_gc_removes_what_killed_runs_left(tmp_path: Path) -> None:
    """Gigabytes, which only a run of the same would remove."""
    store, scratch = PackageStore(tmp_path), tmp_path / "scratch/verify"
    (scratch / "root").mkdir(parents=True)
    (scratch / "root/file").write_bytes(b"half")
    store.collect([], days=30, dry_run=True)
    assert scratch.exists()
    store.collect([], days=30)
    assert not scratch.exists()


@given(st.dictionaries(st.text(max_size=5), st.lists(st.text(max_size=5))), st.randoms())
def test_a_closures_name_does_not_depend_on_the_order(
    inputs: dict[str, list[str]], random: object
) -> None:
    items = list(inputs.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert closure_key(dict(items)) == closure_key(inputs)
    assert closure_key({**inputs, "more": 1}) != closure_key(inputs)
